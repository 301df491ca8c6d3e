"""The processes that an engine consists of: small children that live, die and survive as real ones.

Forked before anything heavy is loaded, so that each costs a few MiB.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import time
from pathlib import Path
from typing import NoReturn

import attrs

ORPHAN_S_MAX = 600.0
"""Survivors of a killed engine end by themselves after so long."""


@attrs.frozen(kw_only=True)
class ProcessTree:
    """The children of one engine process. All are in its process group."""

    core_pid: int | None = None
    worker_pid: int | None = None
    lifeline: int = attrs.field(default=-1, repr=False)
    """Open as long as the engine process lives; children see it end."""

    @property
    def memory_owner(self) -> int:
        """Who holds the device's memory: the worker, where there is one."""
        return self.worker_pid or os.getpid()

    def end_workers(self) -> None:
        """End the core, which takes its worker along; both are gone afterwards.

        Blocks for some milliseconds; kills them after a second.
        """
        if self.core_pid is None or self.worker_pid is None:
            return
        with contextlib.suppress(ProcessLookupError, ChildProcessError):
            os.kill(self.core_pid, signal.SIGTERM)
            for _ in range(200):
                if os.waitpid(self.core_pid, os.WNOHANG) != (0, 0):
                    return
                time.sleep(0.005)
            os.kill(self.worker_pid, signal.SIGKILL)
            os.kill(self.core_pid, signal.SIGKILL)
            os.waitpid(self.core_pid, 0)

    def die(self, exit_code: int) -> NoReturn:
        """End at once, connections and all."""
        self.end_workers()
        os._exit(exit_code)


def fork_tree(*, workers: bool, survivor: bool) -> ProcessTree:
    """Fork ``VLLM::EngineCore`` with its ``VLLM::Worker``, and a child that outlives us."""
    end, lifeline = os.pipe()
    os.set_inheritable(lifeline, False)
    if survivor and os.fork() == 0:
        _survive(end, lifeline)
    if not workers:
        os.close(end)
        return ProcessTree(lifeline=lifeline)
    told, tell = os.pipe()
    core_pid = os.fork()
    if core_pid == 0:
        os.close(told)
        _be_core(end, lifeline, tell)
    os.close(tell)
    worker_pid = int(os.read(told, 32))
    os.close(told)
    os.close(end)
    return ProcessTree(core_pid=core_pid, worker_pid=worker_pid, lifeline=lifeline)


def _survive(end: int, lifeline: int) -> NoReturn:
    os.close(lifeline)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    _name("engine-child")
    _outlive(end)


def _be_core(end: int, lifeline: int, tell: int) -> NoReturn:
    """Wait for the worker, and end when it ends. Ended itself, it takes the worker along."""
    os.close(lifeline)
    _name("VLLM::EngineCore")
    worker_pid = os.fork()
    if worker_pid == 0:
        os.close(tell)
        _name("VLLM::Worker")
        _outlive(end)
    os.write(tell, str(worker_pid).encode())
    os.close(tell)

    def end_both(*_: object) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(worker_pid, signal.SIGKILL)

    signal.signal(signal.SIGTERM, end_both)
    with contextlib.suppress(ChildProcessError):
        os.waitpid(worker_pid, 0)
    os._exit(1)


def _outlive(end: int) -> NoReturn:
    """Until killed; or, once the engine process is gone, for a bounded time."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    select.select([end], [], [])
    time.sleep(ORPHAN_S_MAX)
    os._exit(0)


def _name(name: str) -> None:
    with contextlib.suppress(OSError):
        Path("/proc/self/comm").write_text(name[:15])
