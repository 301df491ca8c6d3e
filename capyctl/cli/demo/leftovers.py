"""The processes of one demo, found by its folder, and the end of those that remain."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import attrs

PROGRAMS = (b"engine_program.py", b"log_relay.py", b"latch.py", b"capyctl.cli.main")
"""Our own programs: nothing else is ever ended, whatever folder it was given."""
GRACE_S = 3.0
POLL_S = 0.05


@attrs.frozen(kw_only=True)
class Found:
    """A process that was given the demo's folder."""

    pid: int
    pidfd: int


def processes_of(folder: Path) -> list[int]:
    """Ids of this user's processes that run one of our programs for ``folder``."""
    return [pid for pid in _all_pids() if _belongs(pid, folder)]


def end_all(folder: Path) -> bool:
    """End what is left of a demo: SIGTERM, and SIGKILL after 3 s. Whether nothing is left.

    Each process is held by a descriptor, so that a reused id is never signalled.
    """
    for sent in (signal.SIGTERM, signal.SIGKILL):
        with contextlib.ExitStack() as held:
            found = [held.enter_context(_opened(pid, folder)) for pid in processes_of(folder)]
            for one in found:
                if one is not None:
                    with contextlib.suppress(ProcessLookupError):
                        signal.pidfd_send_signal(one.pidfd, sent)
            if _gone_within(folder, GRACE_S):
                return True
    return False


@contextlib.contextmanager
def _opened(pid: int, folder: Path) -> Iterator[Found | None]:
    try:
        pidfd = os.pidfd_open(pid)
    except OSError:
        yield None
        return
    try:
        # Looked at after opening: if the id is one of ours now, the descriptor is too.
        yield Found(pid=pid, pidfd=pidfd) if _belongs(pid, folder) else None
    finally:
        os.close(pidfd)


def _gone_within(folder: Path, within_s: float) -> bool:
    end_s = time.monotonic() + within_s
    while processes_of(folder):
        if time.monotonic() >= end_s:
            return False
        time.sleep(POLL_S)
    return True


def _all_pids() -> list[int]:
    try:
        return [int(name) for name in os.listdir("/proc") if name.isdecimal()]
    except OSError:
        return []


def _belongs(pid: int, folder: Path) -> bool:
    if pid == os.getpid():
        return False
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
        if not any(word.endswith(PROGRAMS) for word in words):
            return False
        environ = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:
        return False
    place = os.fsencode(folder) + b"/"
    values = (entry.partition(b"=")[2] for entry in environ)
    return any(text.startswith(place) for text in (*words, *values))
