"""Real time and fresh ULIDs."""

from __future__ import annotations

import time

import trio
from ulid import ULID


class SystemClock:
    """Implements `contracts.clock.Clock` inside a Trio run."""

    def monotonic_s(self) -> float:
        return trio.current_time()

    def wall_ms(self) -> int:
        return time.time_ns() // 1_000_000


class UlidIds:
    """Implements `contracts.clock.Ids`. Ids of one process never repeat and never go back."""

    def __init__(self) -> None:
        self._last = 0

    def ulid(self) -> str:
        fresh = int(ULID())
        if fresh <= self._last:
            fresh = self._last + 1
        self._last = fresh
        return str(ULID.from_int(fresh))
