"""Carries messages between actors, each as late as the world likes, so that they cross.

In one process a message is in the mailbox at once, and two on their way to each other never
cross. With slow commits, and between machines, they do.
"""

from __future__ import annotations

import random
from collections import deque
from typing import Any

import trio

from actors import Ref
from capyctl.control.surroundings import tell_now
from capyctl.simulation.faults import Faults

Lane = tuple[str, str]


class Courier:
    """One session's. Its order: kept for each sender and receiver, or for each receiver.

    Closing it drops what is under way, as the end of a process does.
    """

    def __init__(self, chance: random.Random, nursery: trio.Nursery, faults: Faults) -> None:
        self._chance = chance
        self._nursery = nursery
        self.faults = faults
        self._lanes: dict[Lane, deque[tuple[Ref[Any], Any]]] = {}
        self.closed = False
        self._crosses = faults.senders_cross

    def tell(self, ref: Ref[Any], message: Any) -> None:
        """As `control.surroundings.tell_now`, perhaps later."""
        if self.closed:
            return
        sender = ""
        if self._crosses:
            sender = trio.lowlevel.current_task().name.partition(":")[0]
        lane = (sender, ref.name)
        waiting = self._lanes.get(lane)
        if waiting is not None:
            waiting.append((ref, message))
        elif self.faults.message_delay_max_s > 0:
            self._lanes[lane] = deque([(ref, message)])
            self._nursery.start_soon(self._carry, lane, name=f"courier to {ref.name}")
        else:
            tell_now(ref, message)

    async def _carry(self, lane: Lane) -> None:
        waiting = self._lanes[lane]
        while waiting:
            # Most go through at once; a few are late, and hold up those behind them.
            if self._chance.random() < 0.3:
                await trio.sleep(self._chance.uniform(0.0, self.faults.message_delay_max_s))
            ref, message = waiting.popleft()
            if not self.closed:
                tell_now(ref, message)
        del self._lanes[lane]
