"""A channel inside one process, whose wire can be slow, deaf, stuck or cut at will.

For tests and seeded worlds: the link's own code runs over it as over a socket.
"""

from __future__ import annotations

from collections import deque

import attrs
import trio

from capyctl.link.channel import ChannelClosed

CLOSED_HERE = "closed here"
QUEUE_COUNT_MAX = 64
"""Messages on their way before a sender waits, as for a socket's buffers."""


@attrs.define(eq=False, kw_only=True)
class Way:
    """One direction of a wire."""

    delay_s: float = 0.0
    """For messages that are sent from now on; they never overtake each other."""
    deaf: bool = False
    """What is sent vanishes, and the sender is not told."""
    stuck: bool = False
    """What is sent stays on its way, until this ends."""
    closed: str | None = None
    _queue: deque[tuple[float, bytes]] = attrs.field(factory=deque)
    _changed: trio.lowlevel.ParkingLot = attrs.field(factory=trio.lowlevel.ParkingLot)
    _last_due_s: float = 0.0
    _abandoned: bool = False

    def close(self, why: str, *, losing: bool) -> None:
        """No more goes in. ``losing``: nor does what is on its way come out."""
        if self.closed is None:
            self.closed = why
        if losing:
            self._queue.clear()
        self.change()

    def change(self, *, deaf: bool | None = None, stuck: bool | None = None) -> None:
        self.deaf = self.deaf if deaf is None else deaf
        self.stuck = self.stuck if stuck is None else stuck
        self._changed.unpark_all()

    def abandon(self) -> None:
        """Its reader is gone, and the sender cannot be told: what is sent vanishes."""
        self.deaf, self._abandoned = True, True
        self._queue.clear()
        self._changed.unpark_all()

    async def put(self, data: bytes) -> None:
        await trio.lowlevel.checkpoint()
        while self.closed is None and len(self._queue) >= QUEUE_COUNT_MAX and not self.deaf:
            await self._changed.park()
        if self.closed is not None:
            raise ChannelClosed(self.closed)
        if self.deaf:
            return
        self._last_due_s = max(self._last_due_s, trio.current_time() + self.delay_s)
        self._queue.append((self._last_due_s, data))
        self._changed.unpark_all()

    async def take(self) -> bytes:
        await trio.lowlevel.checkpoint()
        while not self._abandoned:
            left_s = self._next_s()
            if left_s <= 0.0:
                self._changed.unpark_all()
                return self._queue.popleft()[1]
            if self.closed is not None and not self._queue:
                raise ChannelClosed(self.closed)
            with trio.move_on_after(left_s):
                await self._changed.park()
        raise ChannelClosed(CLOSED_HERE)

    def _next_s(self) -> float:
        """Seconds until a message may be taken, as things are now."""
        if self.stuck or not self._queue:
            return float("inf")
        return self._queue[0][0] - trio.current_time()


@attrs.frozen(eq=False)
class MemoryChannel:
    """One end. Implements `channel.Channel`."""

    out: Way
    back: Way

    async def send(self, data: bytes) -> None:
        await self.out.put(data)

    async def receive(self) -> bytes:
        return await self.back.take()

    async def aclose(self, why: str) -> None:
        if self.out.deaf or self.out.stuck:
            # Such a wire does not carry the news of its end either.
            self.back.abandon()
        else:
            self.out.close(why or "closed by the other side", losing=False)
            self.back.close(CLOSED_HERE, losing=True)
        await trio.lowlevel.checkpoint()


@attrs.frozen(eq=False)
class Wire:
    """What lies between two ends, for a test to damage."""

    here: MemoryChannel
    there: MemoryChannel

    @property
    def ways(self) -> tuple[Way, Way]:
        return self.here.out, self.there.out

    def cut(self) -> None:
        """Both ends are told at once; what is on its way is lost."""
        for way in self.ways:
            way.close("the connection was reset", losing=True)

    def delay(self, seconds: float) -> None:
        for way in self.ways:
            way.delay_s = seconds

    def half_open(self, way: int) -> None:
        """One direction becomes deaf; nobody is told."""
        self.ways[way].change(deaf=True)

    def stick(self, stuck: bool) -> None:
        """Hold up all messages, or let them go on."""
        for way in self.ways:
            way.change(stuck=stuck)


def open_wire() -> Wire:
    """Two ends that talk to each other."""
    one, other = Way(), Way()
    return Wire(here=MemoryChannel(one, other), there=MemoryChannel(other, one))
