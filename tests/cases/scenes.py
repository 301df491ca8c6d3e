"""Scenes that several failures start from: models of a daemon that are ready, and what was seen."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable
from typing import Any

from tests.e2e.daemon import Daemon, Reply
from tests.e2e.streams import Seen, events

BIG_MIB = 8192
"""Two of these do not fit one card."""


def ready(daemon: Daemon, *names: str, mib: int = 1024, **document: Any) -> list[str]:
    """Deployments of these names; the last one is ready."""
    ids = [daemon.create(name, mib, **document) for name in names]
    daemon.do(ids[-1], "start")
    daemon.wait_state(ids[-1], "ready")
    return ids


def parked(daemon: Daemon, name: str, *, mib: int = 1024, **document: Any) -> str:
    """One deployment, parked."""
    (id,) = ready(daemon, name, mib=mib, **document)
    daemon.do(id, "park")
    daemon.wait_state(id, "parked")
    return id


def seen(daemon: Daemon, *kinds: str) -> list[Seen]:
    """Every event so far, of these kinds where some are named."""
    return [one for one in events(daemon) if not kinds or one.kind in kinds]


def kill_engines(daemon: Daemon) -> None:
    """SIGKILL to the group of every engine, as the kernel would when memory runs out."""
    for one in daemon.engines():
        os.killpg(one.group, signal.SIGKILL)


class Clients:
    """Requests in threads of their own, each begun at its own moment; results in that order."""

    def __init__(self) -> None:
        self._threads: list[threading.Thread] = []
        self.replies: list[Reply | Exception] = []

    def begin(self, ask: Callable[[], Reply]) -> None:
        place = len(self.replies)
        self.replies.append(AssertionError("not answered"))

        def run() -> None:
            try:
                self.replies[place] = ask()
            except Exception as problem:
                self.replies[place] = problem

        thread = threading.Thread(target=run, daemon=True)
        self._threads.append(thread)
        thread.start()

    def begin_at(self, offsets_s: list[float], ask: Callable[[], Reply]) -> None:
        """One request at each of these offsets from now."""
        began_s = time.monotonic()
        for offset_s in offsets_s:
            time.sleep(max(0.0, began_s + offset_s - time.monotonic()))
            self.begin(ask)

    def statuses(self) -> list[int]:
        """Wait for all; an exception is raised."""
        for thread in self._threads:
            thread.join(60)
        found = []
        for reply in self.replies:
            if isinstance(reply, Exception):
                raise reply
            found.append(reply.status)
        return found
