"""Times at which connections want to be looked at: one heap and one task for all of them.

A deadline that moves later costs nothing: the alarm rings at the earlier time, the connection
looks, and says when it wants to be looked at next.
"""

from __future__ import annotations

import heapq
import itertools
import math
from collections.abc import Callable
from typing import Protocol

import trio

from capyctl.dataplane.parking import Bell

LOOK_INTERVAL_MIN_S = 0.001
LOOK_INTERVAL_MAX_S = 60.0
"""Nobody is kept in the heap for longer, so that closed connections leave it."""


class Alarmed(Protocol):
    armed_s: float
    """When it will be looked at next; infinity for not at all. Only `Alarms` writes it."""

    def on_alarm(self, now_s: float) -> float:
        """Look at every deadline; return when to be looked at next, infinity for never."""


class Alarms:
    """``tick`` reads the clock, for everybody who is looked at."""

    __slots__ = ("_bell", "_count", "_heap", "_tick")

    def __init__(self, tick: Callable[[], float]) -> None:
        self._tick = tick
        self._heap: list[tuple[float, int, Alarmed]] = []
        self._count = itertools.count()
        self._bell = Bell()

    def arm(self, who: Alarmed, when_s: float) -> None:
        """Have ``who`` looked at no later than ``when_s`` on the clock of the run."""
        if when_s >= who.armed_s:
            return
        who.armed_s = when_s
        entry = (when_s, next(self._count), who)
        heapq.heappush(self._heap, entry)
        if self._heap[0] is entry:
            self._bell.ring()

    def disarm(self, who: Alarmed) -> None:
        """Never look at it again; `arm` has no effect on it from now on."""
        who.armed_s = -math.inf

    async def run(self) -> None:
        """Ring for ever. Cancelling it is the way to end it."""
        heap = self._heap
        while True:
            next_s = heap[0][0] if heap else math.inf
            with trio.CancelScope(deadline=next_s):
                await self._bell.wait()
            now_s = self._tick()
            while heap and heap[0][0] <= now_s:
                when_s, _, who = heapq.heappop(heap)
                if who.armed_s != when_s:
                    continue
                who.armed_s = math.inf
                wanted_s = max(who.on_alarm(now_s), now_s + LOOK_INTERVAL_MIN_S)
                self.arm(who, min(wanted_s, now_s + LOOK_INTERVAL_MAX_S))
