"""SGLang's children, which the kernel kills with their parent; the scheduler holds the memory."""

from __future__ import annotations

import contextlib
import ctypes
import os
import select
import signal
import time
from pathlib import Path
from typing import NoReturn

import attrs

from capyctl.simulated.process_tree import ORPHAN_S_MAX, ProcessTree

_PR_SET_PDEATHSIG = 1


@attrs.frozen(kw_only=True)
class SglangTree(ProcessTree):
    """Both children are direct ones; the kernel kills them when the engine process ends."""

    scheduler_pid: int
    detokenizer_pid: int

    @property
    def memory_owner(self) -> int:
        return self.scheduler_pid

    def end_workers(self) -> None:
        """Kill both, as SGLang does with its tree; they are gone afterwards."""
        for pid in (self.detokenizer_pid, self.scheduler_pid):
            with contextlib.suppress(ProcessLookupError, ChildProcessError):
                os.kill(pid, signal.SIGKILL)
                os.waitpid(pid, 0)

    def kill_everything(self) -> NoReturn:
        """What follows a scheduler's exception: the whole tree is killed, oneself included."""
        self.end_workers()
        os.kill(os.getpid(), signal.SIGKILL)
        raise AssertionError("SIGKILL does not return")


def fork_sglang_tree(*, survivor: bool) -> SglangTree:
    """Fork ``sglang::scheduler`` and ``sglang::detokenizer``; ``survivor`` outlives them all."""
    parent_pid = os.getpid()
    end, lifeline = os.pipe()
    os.set_inheritable(lifeline, False)
    if survivor and os.fork() == 0:
        os.close(lifeline)
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        _name("engine-child")
        select.select([end], [], [])
        time.sleep(ORPHAN_S_MAX)
        os._exit(0)
    children = []
    for name in ("sglang::scheduler", "sglang::detokenizer"):
        pid = os.fork()
        if pid == 0:
            os.close(lifeline)
            _serve(name, parent_pid, end)
        children.append(pid)
    os.close(end)
    scheduler, detokenizer = children
    return SglangTree(lifeline=lifeline, scheduler_pid=scheduler, detokenizer_pid=detokenizer)


def _serve(name: str, parent_pid: int, end: int) -> NoReturn:
    """Until killed. The pipe is for a kernel that knows no death signal."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    _name(name)
    # The parent may have ended before the death signal was asked for.
    if os.getppid() == parent_pid:
        select.select([end], [], [])
    os._exit(0)


def _name(name: str) -> None:
    with contextlib.suppress(OSError):
        Path("/proc/self/comm").write_text(name[:15])
