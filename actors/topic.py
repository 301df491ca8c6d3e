"""Broadcast to bounded subscribers: a slow one is dropped and told so, never holds up others."""

from __future__ import annotations

from collections import deque
from types import TracebackType
from typing import Generic, TypeVar

import trio

from .errors import Lagged
from .slot import Slot

T = TypeVar("T")

SUBSCRIBER_CAPACITY_COUNT = 256


class Topic(Generic[T]):
    """What is published reaches every subscriber there is at that moment, in the same order."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.lost_count = 0
        """Subscribers dropped because they lagged, ever."""
        self._subscriptions: dict[Subscription[T], None] = {}
        self._is_closed = False

    @property
    def subscribers_count(self) -> int:
        return len(self._subscriptions)

    def publish(self, value: T) -> None:
        """Hand ``value`` to every subscriber. Never waits. Does nothing once closed."""
        for subscription in list(self._subscriptions):
            if not subscription.offer(value):
                self.lost_count += 1

    def subscribe(self, *, capacity: int = SUBSCRIBER_CAPACITY_COUNT) -> Subscription[T]:
        """A subscription that begins now. Use it as a context manager, or close it.

        Args:
            capacity: values that may wait unread; one more and the subscription is lost.
        """
        assert capacity > 0, f"{self.name}: a subscription of capacity {capacity} reads nothing"
        subscription = Subscription(self, capacity=capacity)
        if self._is_closed:
            subscription.end()
        else:
            self._subscriptions[subscription] = None
        return subscription

    def close(self) -> None:
        """No more values: subscribers read what waits, then their iteration ends."""
        self._is_closed = True
        for subscription in list(self._subscriptions):
            subscription.end()
        self._subscriptions.clear()

    def forget(self, subscription: Subscription[T]) -> None:
        self._subscriptions.pop(subscription, None)

    def __repr__(self) -> str:
        return f"<Topic {self.name}: {self.subscribers_count} subscribers>"


class Subscription(Generic[T]):
    """One reader of a topic: ``async for value in subscription``, by one task at a time."""

    def __init__(self, topic: Topic[T], *, capacity: int) -> None:
        self._topic = topic
        self._capacity = capacity
        self._values: deque[T] = deque()
        self._slot = Slot()
        self._is_ended = False
        self._is_lost = False

    @property
    def is_lost(self) -> bool:
        """Whether it lagged: what waited has been dropped, and reading raises Lagged."""
        return self._is_lost

    @property
    def waiting_count(self) -> int:
        """Values published and not yet read."""
        return len(self._values)

    def __aiter__(self) -> Subscription[T]:
        return self

    async def __anext__(self) -> T:
        """The next value. Always a checkpoint; cancelling loses nothing.

        Raises:
            Lagged: more than ``capacity`` values were waiting.
            StopAsyncIteration: the topic or this subscription was closed.
        """
        if not await self._wait():
            raise StopAsyncIteration
        return self._values.popleft()

    async def take(self) -> list[T]:
        """Wait for a value, then everything that waits; empty only once all is read and closed.

        Raises:
            Lagged: more than ``capacity`` values were waiting.
        """
        await self._wait()
        taken = list(self._values)
        self._values.clear()
        return taken

    def close(self) -> None:
        """Leave the topic and drop what waits. Closing twice does nothing."""
        self._topic.forget(self)
        self._values.clear()
        self.end()

    def __enter__(self) -> Subscription[T]:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        raised: BaseException | None,
        where: TracebackType | None,
    ) -> None:
        self.close()

    # For the topic.

    def offer(self, value: T) -> bool:
        """Take a value; False when that is one too many, and this subscription is lost."""
        is_room = len(self._values) < self._capacity
        if is_room:
            self._values.append(value)
        else:
            self._is_lost = True
            self._values.clear()
            self._topic.forget(self)
        self._slot.wake()
        return is_room

    def end(self) -> None:
        self._is_ended = True
        self._slot.wake()

    async def _wait(self) -> bool:
        """Wait for something to read; False when there will be nothing any more."""
        if self._values or self._is_lost or self._is_ended:
            await trio.lowlevel.checkpoint()
        while not (self._values or self._is_lost or self._is_ended):
            await self._slot.wait()
        if self._is_lost:
            raise Lagged(self._topic.name, capacity=self._capacity)
        return bool(self._values)
