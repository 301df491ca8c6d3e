"""An orderly stop: admission closes, requests finish, engines stay."""

from __future__ import annotations

import signal
from collections.abc import AsyncIterator, Callable
from typing import Protocol

import trio

SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
CUT_S = 2.0
"""How long requests that were broken off may take to end."""


async def wait_for_stop(signals: AsyncIterator[int]) -> str:
    """The name of the first signal that asks us to stop."""
    async for number in signals:
        return signal.Signals(number).name
    raise AssertionError("the signal receiver ended")


class Draining(Protocol):
    """What takes requests in: the data plane, or a host's ingress."""

    @property
    def active_count(self) -> int: ...

    def begin_shutdown(self) -> None: ...

    async def wait_idle(self, timeout_s: float) -> bool: ...

    def cut(self) -> int: ...


async def drain(
    plane: Draining, signals: AsyncIterator[int], *, drain_s: float, log: Callable[..., None]
) -> None:
    """Refuse new requests, let those in progress finish for ``drain_s``; then cut them.

    A second signal skips the wait.
    """
    plane.begin_shutdown()
    log("drain_started", requests=plane.active_count, within_s=drain_s)
    async with trio.open_nursery() as nursery:

        async def second() -> None:
            name = await wait_for_stop(signals)
            log("drain_skipped", signal=name)
            nursery.cancel_scope.cancel()

        nursery.start_soon(second)
        await plane.wait_idle(drain_s)
        nursery.cancel_scope.cancel()
    if plane.active_count:
        log("requests_cut", count=plane.cut())
        await plane.wait_idle(CUT_S)
