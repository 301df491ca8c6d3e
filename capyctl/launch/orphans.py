"""Reaps what the kernel hands to the first process of a container: orphans that have ended."""

from __future__ import annotations

import contextlib
import os

import trio

from capyctl.launch.identity import Unreadable, look
from capyctl.launch.kin import running_pids

INIT_PID = 1
REAP_EVERY_S = 5.0


async def reap_orphans(every_s: float = REAP_EVERY_S) -> None:
    """For as long as this process is the first one; returns at once where it is not.

    Our own children are waited for by whoever started them, within moments. So only what
    was a zombie at one look and still is at the next is taken: nobody else will.
    """
    if os.getpid() != INIT_PID:
        return
    before: set[int] = set()
    while True:
        await trio.sleep(every_s)
        ended = await trio.to_thread.run_sync(_ended_children)
        for pid in ended & before:
            _reap(pid)
        before = ended


def _ended_children() -> set[int]:
    found = set()
    for pid in running_pids():
        try:
            sight = look(pid)
        except Unreadable:
            continue
        if sight is not None and sight.ended and sight.parent_pid == INIT_PID:
            found.add(pid)
    return found


def _reap(pid: int) -> None:
    with contextlib.suppress(ChildProcessError):
        os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG)
