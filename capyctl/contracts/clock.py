"""Time and fresh names, as the control floor is given them."""

from __future__ import annotations

from typing import Protocol


class Clock(Protocol):
    """Two clocks: one for intervals, one for what people and other programs read."""

    def monotonic_s(self) -> float:
        """Seconds that never go back. In worlds and tests: virtual."""

    def wall_ms(self) -> int:
        """Milliseconds since 1970."""


class Ids(Protocol):
    """Fresh names. Production draws ULIDs; a seeded world draws from its seed."""

    def ulid(self) -> str:
        """A fresh ULID in canonical upper case, 26 characters, never given twice."""
