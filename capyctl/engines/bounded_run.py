"""Runs a foreign program for a moment: bounded in time and output, with nothing of our environment.

Blocking and free of trio, so that commands can use it as well as the daemon's threads.
"""

from __future__ import annotations

import contextlib
import os
import selectors
import signal
import subprocess
import time
from collections.abc import Sequence
from typing import IO, Literal

import attrs

READ_BYTES = 4096
CLEARED_ENV = {"PATH": "/usr/local/bin:/usr/bin:/bin", "LC_ALL": "C"}


class RunFailed(Exception):
    """The program could not be started, or did not end in time. Says so in a sentence."""


@attrs.frozen(kw_only=True)
class Ran:
    exit_code: int
    """Negative: the signal that ended it."""
    output: bytes


def run_bounded(
    argv: Sequence[str], *, read: Literal["stdout", "stderr"], within_s: float, bytes_max: int
) -> Ran:
    """Run ``argv`` in a process group of its own and read the beginning of one output.

    Whatever it leaves behind in its group is killed before this returns.

    Raises:
        RunFailed: no such program, or it still ran after ``within_s`` seconds.
    """
    pipe, null = subprocess.PIPE, subprocess.DEVNULL
    try:
        child = subprocess.Popen(
            argv,
            stdin=null,
            stdout=pipe if read == "stdout" else null,
            stderr=pipe if read == "stderr" else null,
            env=CLEARED_ENV,
            cwd="/",
            start_new_session=True,
        )
    except OSError as problem:
        raise RunFailed(f"{argv[0]} could not be started: {problem.strerror}") from problem
    source = child.stdout if read == "stdout" else child.stderr
    assert source is not None
    try:
        output = _read_until_exit(child.pid, source, within_s, bytes_max)
    finally:
        # Until it is reaped, the leader keeps its group's number from being given away.
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child.pid, signal.SIGKILL)
        exit_code = child.wait()
        source.close()
    if output is None:
        raise RunFailed(f"{argv[0]} did not end within {within_s:g} s")
    return Ran(exit_code=exit_code, output=output)


def _read_until_exit(pid: int, source: IO[bytes], within_s: float, bytes_max: int) -> bytes | None:
    """The first ``bytes_max`` bytes up to the leader's end; None when time is up."""
    ends_s = time.monotonic() + within_s
    output = b""
    leader = os.pidfd_open(pid)
    try:
        with selectors.DefaultSelector() as ready:
            ready.register(leader, selectors.EVENT_READ)
            ready.register(source, selectors.EVENT_READ)
            while (left_s := ends_s - time.monotonic()) > 0:
                seen = {key.fd for key, _ in ready.select(left_s)}
                if source.fileno() in seen and not (leader in seen and len(output) == bytes_max):
                    piece = os.read(source.fileno(), READ_BYTES)
                    output = (output + piece)[:bytes_max]
                    if not piece:
                        ready.unregister(source)
                elif leader in seen:
                    return output
    finally:
        os.close(leader)
    return None
