"""Processes: nothing unrecorded is ever left, and nothing that is not ours is ever touched."""

import os
import shutil
import subprocess
import sys
import time

import pytest
import trio

from tests.cases.scenes import kill_engines, ready, seen
from tests.e2e.daemon import Daemon, running, simulation
from tests.e2e.truth import check_truth, recorded, settle
from tests.launch.programs import Bench

pytestmark = pytest.mark.slow

PID_ONE = """
import os, sys, trio
from capyctl.launch.orphans import reap_orphans

def zombies():
    found = 0
    for name in os.listdir("/proc"):
        if name.isdigit():
            with open(f"/proc/{name}/stat") as file:
                found += file.read().rpartition(")")[2].split()[0] == "Z"
    return found

async def main():
    script = "for n in 1 2 3 4 5 6 7 8 9 10; do (sleep 0.1 &) ; done; sleep 0.3; exit 7"
    async with trio.open_nursery() as nursery:
        nursery.start_soon(reap_orphans, 0.1)
        process = await trio.lowlevel.open_process(["/bin/sh", "-c", script])
        code = await process.wait()
        with trio.move_on_after(5):
            while zombies():
                await trio.sleep(0.05)
        print(os.getpid(), code, zombies())
        nursery.cancel_scope.cancel()

trio.run(main)
"""


@pytest.mark.parametrize("after_s", [0.0, 0.15, 0.5])
def test_told_to_stop_in_a_start_the_daemon_leaves_only_what_it_knows(tmp_path, after_s):
    slow = simulation(engines={"load_s": 0.6})
    with running(tmp_path, simulate=slow) as daemon:
        a = daemon.create("a", 1024)
        daemon.do(a, "start")
        time.sleep(after_s)  # the moment is what is tested
        status = daemon.stop()
        daemon.start()
        settle(daemon)
        check_truth(daemon)
        daemon.do(a, "stop")
        daemon.wait_state(a, "stopped")
        left = daemon.engines()
        launched = seen(daemon, "owned_launch_associated")
    assert status == 0
    assert left == []
    assert len(launched) <= 2


def test_a_killed_engine_is_told_with_its_signal_and_not_started_for_nobody(tmp_path):
    """As the kernel does when memory runs out: no loop into the same wall."""
    with running(tmp_path, simulate=simulation()) as daemon:
        (a,) = ready(daemon, "a")
        kill_engines(daemon)
        failed = daemon.wait_state(a, "failed")
        time.sleep(1.0)
        launched = seen(daemon, "initialize_armed")
        free = recorded(daemon.state)[0].charges
        again = daemon.chat("a", max_tokens=1)
    assert "signal 9" in failed["instances"][0]["last_error"]
    assert len(launched) == 1
    assert free == {}
    assert again.status == 200


@pytest.mark.parametrize("engine", ["vllm", "llamacpp"])
def test_an_engine_that_the_kernel_killed_for_want_of_memory_says_so_and_what_to_do(
    tmp_path, engine
):
    with running(tmp_path, simulate=simulation()) as daemon:
        (a,) = ready(daemon, "a", engine=engine)
        time.sleep(1.5)  # the count is looked at once a second
        (usage,) = daemon.state.rglob("document.json")
        usage.with_name("oom_kills").write_text("1")
        kill_engines(daemon)
        failed = daemon.wait_state(a, "failed")
        again = daemon.chat("a", max_tokens=1)
    error = failed["instances"][0]["last_error"]
    assert error.startswith("oom_killed: ")
    assert "the kernel ended it for want of memory" in error
    assert again.status == 200


def test_another_daemon_s_engines_and_the_user_s_are_left_alone(tmp_path):
    """A second daemon starts, is killed, and starts again beside a serving one."""
    with running(tmp_path / "one", simulate=simulation()) as one:
        ready(one, "a")
        mine = [e.pid for e in one.engines()]
        other = Daemon(tmp_path / "other", simulate=simulation())
        try:
            other.start()
            other.kill()
            other.start()
            assert other.stop() == 0
        finally:
            other.end_everything()
        still = [e.pid for e in one.engines()]
        served = one.chat("a", max_tokens=1).status
    assert still == mine
    assert served == 200


def test_as_the_first_process_of_a_container_orphans_are_reaped_and_exit_codes_kept():
    unshare = shutil.which("unshare")
    apart = [unshare or "unshare", "--user", "--map-root-user", "--pid", "--fork", "--mount-proc"]
    if unshare is None or subprocess.run([*apart, "true"], capture_output=True).returncode:
        pytest.skip("namespaces of its own are not allowed here")

    done = subprocess.run(
        [*apart, sys.executable, "-c", PID_ONE],
        capture_output=True,
        text=True,
        timeout=30,
        cwd=os.getcwd(),
    )

    assert done.stdout.split() == ["1", "7", "0"], done.stderr


async def test_output_that_is_no_text_is_logged_all_the_same(tmp_path):
    """Half characters, progress bars without an end of line, one line of a megabyte."""
    body = (
        "os.write(2, b'\\xff\\x97 50%\\r' * 20_000 + b'\\n')\n"
        "os.write(1, b'x' * 1_000_000 + b'\\n')\n"
        "os.write(1, 'done é\\n'.encode())\n"
    )
    bench = Bench(tmp_path)
    try:
        command = bench.program(body)
        process = await bench.run(command)
        status = await bench.processes.wait_exit(process)
        tail = await bench.tail(command)
        with trio.fail_after(30):
            while not tail.endswith("done é\n"):  # the relay is a process of its own
                await trio.sleep(0.01)
                tail = await bench.tail(command)
    finally:
        await bench.aclose()

    assert status.exit_code == 0
