"""Time and names of a world: virtual, counted, the same in every run of a seed."""

from __future__ import annotations

import attrs
import trio

BEGAN_AT_MS = 1_800_000_000_000


class WorldClock:
    """Implements `contracts.clock.Clock` on Trio's clock."""

    def monotonic_s(self) -> float:
        return trio.current_time()

    def wall_ms(self) -> int:
        return BEGAN_AT_MS + round(trio.current_time() * 1000)


@attrs.define
class WorldIds:
    """Implements `contracts.clock.Ids`: numbers, in the form of ULIDs."""

    given_count: int = 0

    def ulid(self) -> str:
        self.given_count += 1
        return f"{self.given_count:026d}"
