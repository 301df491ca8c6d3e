"""The bounded queue in front of one actor. Two lanes: what the runtime says is read first.

A mailbox belongs to a name, not to one incarnation of an actor: a restart empties it, no more.
"""

from __future__ import annotations

from collections import deque
from typing import Any

import trio

from .envelope import Asked
from .errors import ActorGone, MailboxFull
from .slot import Slot

CAPACITY_COUNT = 256
"""How many messages may wait when an actor does not say."""


class Mailbox:
    """One reader, any number of writers, all in one Trio run. Writing never waits."""

    __slots__ = ("_slot", "_system", "_user", "capacity", "is_closed", "name")

    def __init__(self, name: str, *, capacity: int = CAPACITY_COUNT) -> None:
        self.name = name
        self.capacity = capacity
        self.is_closed = False
        self._system: deque[Any] = deque()
        self._user: deque[Any] = deque()
        self._slot = Slot()

    def __len__(self) -> int:
        """User messages that wait."""
        return len(self._user)

    def put(self, item: Any) -> None:
        """Enqueue one user message.

        Raises:
            MailboxFull: ``capacity`` messages wait already.
            ActorGone: the mailbox is closed.
        """
        if self.is_closed:
            raise ActorGone(self.name)
        if len(self._user) >= self.capacity:
            raise MailboxFull(self.name, capacity=self.capacity)
        self._user.append(item)
        self._slot.wake()

    def put_past_bound(self, item: Any) -> None:
        """Enqueue what must not be lost and is bounded elsewhere: rung timers, death notices.

        Does nothing when the mailbox is closed.
        """
        if not self.is_closed:
            self._user.append(item)
            self._slot.wake()

    def put_system(self, item: Any) -> None:
        """Enqueue in the lane that is read first. Does nothing when the mailbox is closed."""
        if not self.is_closed:
            self._system.append(item)
            self._slot.wake()

    async def next(self) -> Any:
        """The next item, system lane first. Always a checkpoint; cancelling loses nothing.

        Raises:
            trio.BusyResourceError: another task reads this mailbox.
        """
        if self._system or self._user:
            await trio.lowlevel.checkpoint()
        while not (self._system or self._user):
            await self._slot.wait()
        return self._system.popleft() if self._system else self._user.popleft()

    def drain(self) -> list[Any]:
        """All user items that wait, taken out."""
        items = list(self._user)
        self._user.clear()
        return items

    def reset(self, why: str) -> None:
        """Drop what waits, in both lanes; askers among it get ActorGone."""
        self._system.clear()
        for item in self.drain():
            if type(item) is Asked:
                item.reply.abandon(why)

    def close(self, why: str = "has gone and takes no more messages") -> None:
        """Drop what waits and refuse everything from now on. Closing twice does nothing."""
        self.is_closed = True
        self.reset(why)
