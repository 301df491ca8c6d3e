"""Inside a role's process: it may be killed at a moment that a test names, and its clock be set.

A test says which by files in the seams' folder; they are looked at each time, so a process that
runs can be told.
"""

from __future__ import annotations

import functools
import importlib
import inspect
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import attrs
import trio

SERVER_PROGRAM = """
import sys, json
from capyctl.daemon.serve_server import run_server
from tests.e2e.multi.seams import install
a = json.loads(sys.argv[1])
install(%r, *%r)
sys.exit(run_server(a["flags"], a["sets"], "json"))
"""
HOST_PROGRAM = """
import sys, json
from capyctl.daemon.serve_host import run_host
from tests.e2e.multi.seams import install
a = json.loads(sys.argv[1])
install(%r, *%r)
sys.exit(run_host(a["flags"], a["sets"], a["simulate"], "json"))
"""
STEPS = ("fdopen", "fsync", "link", "replace", "unlink")
"""Of the system, by which files that only their owner reads are written; none of them is done
half."""


@attrs.frozen
class Seams:
    """The test's side, and the folder that both know."""

    folder: Path

    def server(self, *places: str) -> str:
        """The program of a server that may die at these places, and goes by this clock."""
        return SERVER_PROGRAM % (str(self.folder), places)

    def host(self, *places: str) -> str:
        """Likewise of a host."""
        return HOST_PROGRAM % (str(self.folder), places)

    @property
    def _moment(self) -> Path:
        return self.folder / "moment"

    @property
    def _clock(self) -> Path:
        return self.folder / "clock"

    def die(self, when: str, where: str) -> None:
        """Be killed ``before`` or ``after`` the next call of ``<module>:<name>``."""
        self.folder.mkdir(exist_ok=True)
        self._write(self._moment, f"{when} {where}")

    def set_clock(self, ahead_s: float) -> None:
        """The wall clock from now on, beside the real one; no other clock notices."""
        self.folder.mkdir(exist_ok=True)
        self._write(self._clock, str(round(ahead_s * 1e9)))

    def _write(self, path: Path, text: str) -> None:
        fresh = path.with_suffix(".new")
        fresh.write_text(text)
        fresh.replace(path)

    # -- in the process ---------------------------------------------------------------------

    def at(self, moment: str) -> None:
        """Die here, once, if this is the moment."""
        try:
            wanted = self._moment.read_text()
        except FileNotFoundError:
            return
        if wanted == moment:
            self._moment.unlink()
            die()

    def ahead_ns(self) -> int:
        try:
            return int(self._clock.read_text())
        except FileNotFoundError:
            return 0


def install(folder: str, *places: str) -> None:
    """In the process, first of all: its clock, and the places at which it may die."""
    seams = Seams(Path(folder))
    real = time.time_ns
    time.time_ns = lambda: real() + seams.ahead_ns()
    time.time = lambda: time.time_ns() / 1e9
    for place in places:
        module, _, name = place.partition(":")
        owner: Any = importlib.import_module(module)
        *path, last = name.split(".")
        for part in path:
            owner = getattr(owner, part)
        setattr(owner, last, _watched(getattr(owner, last), seams, place))


def _watched(fn: Callable[..., Any], seams: Seams, place: str) -> Callable[..., Any]:
    @functools.wraps(fn)
    async def waits(*args: Any, **named: Any) -> Any:
        seams.at(f"before {place}")
        found = await fn(*args, **named)
        seams.at(f"after {place}")
        return found

    @functools.wraps(fn)
    def does(*args: Any, **named: Any) -> Any:
        seams.at(f"before {place}")
        found = fn(*args, **named)
        seams.at(f"after {place}")
        return found

    return waits if inspect.iscoroutinefunction(fn) else does


def die_at_step(count: int) -> None:
    """In the process: die before the step of this number, from 0, that is durable or sent."""
    left = count

    def step() -> None:
        nonlocal left
        left -= 1
        if left < 0:
            die()

    def stepped(fn: Callable[..., Any]) -> Callable[..., Any]:
        def does(*args: Any, **named: Any) -> Any:
            step()
            return fn(*args, **named)

        return does

    for name in STEPS:
        setattr(os, name, stepped(getattr(os, name)))
    send = trio.SSLStream.send_all

    async def sent(stream: trio.SSLStream[Any], data: bytes) -> None:
        step()
        await send(stream, data)
        step()

    trio.SSLStream.send_all = sent  # type: ignore[method-assign,assignment]  # in this process alone


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)
