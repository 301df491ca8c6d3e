"""Named timers of one actor, which arrive as messages. One task for all of them, none if unused."""

from __future__ import annotations

import heapq
import math
from typing import Any, Generic, TypeVar

import trio

from .mailbox import Mailbox

M = TypeVar("M")

SLACK_COUNT = 16
"""How many dead entries the heap may hold besides one for each live timer."""


class Alarm:
    """One setting of one timer; in the mailbox it stands for its message."""

    __slots__ = ("at_s", "message", "name")

    def __init__(self, name: str, at_s: float, message: Any) -> None:
        self.name = name
        self.at_s = at_s
        self.message = message


class Timers(Generic[M]):
    """``set`` under a name in use replaces that timer; after ``set`` or ``cancel`` the old message
    is never handled, not even if it lay in the mailbox already.

    A timer rings once, lines up behind what waits in the mailbox, and is not lost when that is
    full. All of an actor's timers end with its incarnation.
    """

    def __init__(self) -> None:
        self._alarms: dict[str, Alarm] = {}
        self._heap: list[tuple[float, int, Alarm]] = []
        self._set_count = 0
        self._work: trio.Nursery | None = None
        self._mailbox: Mailbox | None = None
        self._sleep: trio.CancelScope | None = None

    def set(self, name: str, after_s: float, message: M) -> None:
        """Deliver ``message`` in ``after_s`` seconds; at once when that is not positive."""
        self.set_at(name, trio.current_time() + after_s, message)

    def set_at(self, name: str, at_s: float, message: M) -> None:
        """Deliver ``message`` at the instant ``at_s`` of Trio's clock; at once when it is past."""
        if math.isnan(at_s):
            raise ValueError(f"timer {name!r}: the time is not a number")
        if self._work is None:
            raise RuntimeError(f"timer {name!r}: set timers from on_start on, while the actor runs")
        alarm = Alarm(name, at_s, message)
        self._alarms[name] = alarm
        self._set_count += 1
        heapq.heappush(self._heap, (at_s, self._set_count, alarm))
        self._drop_dead()
        if self._sleep is None:
            self._sleep = trio.CancelScope(deadline=at_s)
            self._work.start_soon(self._ring)
        elif at_s < self._sleep.deadline:
            self._sleep.deadline = at_s

    def cancel(self, name: str) -> None:
        """Forget this timer. Does nothing when there is none of that name."""
        self._alarms.pop(name, None)

    def cancel_all(self) -> None:
        """Forget every timer."""
        self._alarms.clear()
        self._heap.clear()

    @property
    def names(self) -> tuple[str, ...]:
        """Timers set and not yet handled, the one set first in front."""
        return tuple(self._alarms)

    def due_at_s(self, name: str) -> float | None:
        """The instant this timer rings, or None when there is none of that name."""
        alarm = self._alarms.get(name)
        return None if alarm is None else alarm.at_s

    # What follows is for the actor's loop.

    def open(self, work: trio.Nursery, mailbox: Mailbox) -> None:
        self._work = work
        self._mailbox = mailbox

    def claim(self, alarm: Alarm) -> bool:
        """Whether this ring still counts; it does so once."""
        if self._alarms.get(alarm.name) is not alarm:
            return False
        del self._alarms[alarm.name]
        return True

    async def _ring(self) -> None:
        while True:
            assert self._sleep is not None
            with self._sleep:
                await trio.sleep_forever()
            # A timer that was set for later stays asleep until here: most are, again and again.
            next_at_s = self._deliver_due(trio.current_time())
            self._sleep = trio.CancelScope(deadline=next_at_s)

    def _deliver_due(self, now_s: float) -> float:
        """Put what is due into the mailbox; the instant to look again."""
        assert self._mailbox is not None
        while self._heap:
            at_s, _, alarm = self._heap[0]
            live = self._alarms.get(alarm.name) is alarm
            if live and at_s > now_s:
                return at_s
            heapq.heappop(self._heap)
            if live:
                self._mailbox.put_past_bound(alarm)
        return math.inf

    def _drop_dead(self) -> None:
        if len(self._heap) > 2 * len(self._alarms) + SLACK_COUNT:
            self._heap = [entry for entry in self._heap if self._is_live(entry[2])]
            heapq.heapify(self._heap)

    def _is_live(self, alarm: Alarm) -> bool:
        return self._alarms.get(alarm.name) is alarm
