"""`capyctl demo` from end to end: it shows what it promises, and leaves nothing behind."""

import io
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from capyctl.cli.demo.leftovers import processes_of
from capyctl.cli.demo.screen import GIB, Screen, memory_bar, shown_s
from capyctl.cli.demo.stage import MARK, Stage, free_ports
from capyctl.cli.failure import CommandFailed
from capyctl.cli.surroundings import Surroundings
from tests.tidy.tree import ROOT

DEMO = [sys.executable, "-m", "capyctl.cli.main", "demo"]
DEMO_S_MAX = 60


def open_demo(tmp_path, *words):
    env = {**os.environ, "TMPDIR": str(tmp_path), "PYTHONUNBUFFERED": "1"}
    return subprocess.Popen(
        [*DEMO, *words],
        cwd=ROOT,
        env=env,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=heed_interrupts,
    )


def heed_interrupts():
    """A shell ignores SIGINT for what it runs in the background, and so would its children."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def folder_in(text):
    return Path(re.search(r"lies in (\S+)", text).group(1))


@pytest.mark.slow
def test_it_shows_starts_answers_parks_wakes_and_switches(tmp_path):
    with open_demo(tmp_path) as process:
        shown, errors = process.communicate(timeout=DEMO_S_MAX)

    assert (process.returncode, errors) == (0, "")
    moves = re.findall(r"s  (\w+) +(\w+) -> (\w+) +\[([A-Za-z.]{24})\]", shown)
    steps = [(name, before, after) for name, before, after, _ in moves]
    for step in (
        ("poet", "queued", "starting"),
        ("poet", "starting", "ready"),
        ("poet", "ready", "parking"),
        ("poet", "parking", "parked"),
        ("poet", "parked", "waking"),
        ("poet", "waking", "ready"),
        ("coder", "starting", "ready"),
        ("guide", "starting", "ready"),
    ):
        assert step in steps
    awake = {name: bar for name, _, after, bar in moves if after == "ready"}
    assert awake["coder"].startswith("C" * 18)
    assert "p" in awake["coder"]
    assert "\x1b" not in shown
    assert shown.count("first text after") == 5
    assert "All of it has ended; nothing was left behind." in shown
    assert list(tmp_path.iterdir()) == []
    assert processes_of(folder_in(shown)) == []


@pytest.mark.slow
@pytest.mark.parametrize("sent", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_demo_leaves_nothing_behind(tmp_path, sent):
    with open_demo(tmp_path) as process:
        shown = ""
        for line in process.stdout:
            shown += line
            if "queued -> starting" in line:
                process.send_signal(sent)
        errors = process.stderr.read()
        process.wait(timeout=30)

    assert process.returncode == 130
    assert errors == "error [interrupted]: the demo was ended before its end\n"
    assert list(tmp_path.iterdir()) == []
    assert processes_of(folder_in(shown)) == []


@pytest.mark.slow
def test_a_role_that_ends_is_told_with_its_last_words(tmp_path):
    program = tmp_path / "role.py"
    program.write_text("import sys\nprint('no such machine')\nsys.exit(3)\n")
    stage = Stage(tmp_path / "stage")
    stage.folder.mkdir()

    with pytest.raises(CommandFailed, match=r"ended with 3:\nno such machine"):
        stage.start(os.environ, [sys.executable, str(program)])

    assert stage.end()
    assert not stage.folder.exists()


def test_only_the_folder_of_a_demo_is_ended(bench, tmp_path):
    (tmp_path / "mine").mkdir()

    ran = bench.run("demo", "--end", str(tmp_path / "mine"))

    assert ran.status == 2
    assert MARK in ran.errors[0]
    assert (tmp_path / "mine").is_dir()


@pytest.mark.parametrize(
    ("held", "awake", "bar"),
    [
        ({}, set(), "[........]  0.0 of 8 GiB"),
        ({"poet": 3 * GIB, "coder": GIB}, {"poet"}, "[PPPc....]  4.0 of 8 GiB"),
        ({"poet": 1, "coder": GIB}, {"coder"}, "[Cp......]  1.0 of 8 GiB"),
        ({"poet": 9 * GIB}, {"poet"}, "[PPPPPPPP]  9.0 of 8 GiB"),
    ],
)
def test_memory_as_letters(held, awake, bar):
    assert memory_bar(held, awake, 8 * GIB) == bar


def test_a_line_breaks_a_running_answer_off_at_its_margin():
    out = io.StringIO()
    screen = Screen(Surroundings(out=out, environ={}, monotonic_s=lambda: 0.0))

    screen.piece("a b")
    screen.happened("moved")
    screen.piece("c\nd")
    screen.end_piece()

    margin = " " * 11
    assert out.getvalue() == f"{margin}| a b\n    0.0 s  moved\n{margin}| c\n{margin}| d\n"


def test_times_are_short():
    assert (shown_s(0.34), shown_s(2.06)) == ("340 ms", "2.1 s")


def test_free_ports_are_neighbours_below_the_systems_own():
    assert 20_000 <= free_ports(4) < 32_000
