"""Starts that fail for want of descriptors leave none behind."""

from __future__ import annotations

import subprocess
import sys

import pytest

PROGRAM = """
import gc, os, resource, signal, sys, warnings
from pathlib import Path
import trio
from capyctl.launch.spawning import start_programs

warnings.simplefilter("error")
sys.unraisablehook = lambda problem: sys.exit(f"left unclosed: {problem.exc_value}")

def open_count():
    return len(os.listdir("/proc/self/fd"))

async def main():
    before = open_count()
    highest = max(int(name) for name in os.listdir("/proc/self/fd"))
    failed = 0
    for room in range(0, 40):
        resource.setrlimit(resource.RLIMIT_NOFILE, (highest + room, 4096))
        try:
            started = start_programs(Path(sys.argv[1]) / "engine.log")
        except OSError:
            failed += 1
        else:
            for one in (started.latch, started.relay):
                one.control.socket.close()
                os.kill(one.process.pid, signal.SIGKILL)
                os.waitpid(one.process.pid, 0)
            started = one = None
        resource.setrlimit(resource.RLIMIT_NOFILE, (4096, 4096))
        gc.collect()
        assert open_count() == before, f"{open_count() - before} left with room for {room}"
    print(failed)

trio.run(main)
"""


@pytest.mark.slow
def test_a_start_without_descriptors_leaves_none_open(tmp_path):
    ran = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(tmp_path)], capture_output=True, text=True, timeout=60
    )

    assert ran.returncode == 0, ran.stderr
    assert 3 < int(ran.stdout) < 40
