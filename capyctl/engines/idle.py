"""Waiting for an engine's own gauges to say that nothing runs in it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import trio

from capyctl.contracts.engines import ParkRefused
from capyctl.domain.devices import EngineSample

IDLE_POLL_S_MIN = 0.02
IDLE_POLL_S_MAX = 0.25


async def wait_idle(
    sample: Callable[[], Awaitable[EngineSample | None]], *, within_s: float
) -> None:
    """Until both gauges are zero in one sample.

    Raises:
        ParkRefused: they were not within that time, or could not be read.
    """
    pause_s = IDLE_POLL_S_MIN
    with trio.move_on_after(within_s):
        while True:
            seen = await sample()
            if seen is not None and seen.running == 0 and seen.waiting == 0:
                return
            await trio.sleep(pause_s)
            pause_s = min(pause_s * 1.5, IDLE_POLL_S_MAX)
    raise ParkRefused(f"its gauges did not show idle within {within_s:g} s")
