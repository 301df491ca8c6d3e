"""Only a demo's own programs are ended, and of those every one."""

import os
import signal
import subprocess
import sys

import pytest

from capyctl.cli.demo.leftovers import end_all, processes_of

IGNORES = "import signal,sys,time\nif 'ignore' in sys.argv: signal.signal(15, signal.SIG_IGN)\n"
SLEEPS = IGNORES + "print('up', flush=True)\ntime.sleep(60)\n"


@pytest.fixture
def folder(tmp_path):
    place = tmp_path / "demo"
    place.mkdir()
    return place


@pytest.fixture
def start(tmp_path):
    """Starts a program of a name, with words and variables."""
    started = []

    def start(name, *words, **env):
        path = tmp_path / name
        path.write_text(SLEEPS)
        process = subprocess.Popen(
            [sys.executable, str(path), *words],
            stdout=subprocess.PIPE,
            env={**os.environ, **env},
            start_new_session=True,
        )
        started.append(process)
        assert process.stdout.readline() == b"up\n"
        return process

    yield start
    for process in started:
        if process.poll() is None:
            process.kill()
        process.wait()
        process.stdout.close()


@pytest.mark.slow
def test_programs_with_the_folder_among_words_or_variables_belong_to_it(folder, start):
    by_word = start("log_relay.py", f"{folder}/state/x.log")
    by_variable = start("engine_program.py", CAPYCTL_SIMULATED_USAGE=f"{folder}/state/simulated")

    assert set(processes_of(folder)) == {by_word.pid, by_variable.pid}


@pytest.mark.slow
def test_other_programs_and_other_folders_are_left_alone(folder, start):
    start("editor.py", f"{folder}/state/x.log")
    start("log_relay.py", f"{folder}-2/state/x.log")
    start("engine_program.py", f"see:{folder}/x")

    assert processes_of(folder) == []
    assert end_all(folder)


@pytest.mark.slow
def test_one_that_ignores_sigterm_is_killed(folder, start, monkeypatch):
    monkeypatch.setattr("capyctl.cli.demo.leftovers.GRACE_S", 0.3)
    mild = start("engine_program.py", f"{folder}/a")
    stubborn = start("log_relay.py", f"{folder}/b", "ignore")

    # What ends is collected here, as the role or init does it for a demo.
    signal.signal(signal.SIGCHLD, lambda *_: (mild.poll(), stubborn.poll()))
    try:
        assert end_all(folder)
    finally:
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)

    assert mild.wait() == -signal.SIGTERM
    assert stubborn.wait() == -signal.SIGKILL
