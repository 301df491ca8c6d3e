"""One connection of the link: a bounded queue of frames out, frames in, one reason to end."""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable, Callable
from typing import Generic, TypeVar

import trio

from capyctl.link.channel import Channel, ChannelClosed
from capyctl.wire.link import BadFrame, Frame, FrameTooLarge, write_frame

QUEUE_COUNT_MAX = 8192
QUEUE_BYTES_MAX = 8 * 1024 * 1024
"""What waits to be sent. A peer that reads so slowly is better met anew."""
LAST_WORD_S = 2.0
CLOSE_S = 2.0

F = TypeVar("F", bound=Frame)


class Session(Generic[F]):
    """Sends without waiting, so that whoever decides never waits for a wire.

    It ends once, for the reason that came first: `close`, a peer that is silent or slow, a
    frame that is none, or the channel's own end.
    """

    def __init__(self, channel: Channel, read: Callable[[bytes], F]) -> None:
        self._channel = channel
        self._read = read
        self._queue: deque[bytes] = deque()
        self._queued_bytes = 0
        self._beat: bytes | None = None
        self._greeting = True
        """What was queued first goes first: a beat overtakes nothing before the queue was empty."""
        self._more = trio.Event()
        self._scope = trio.CancelScope()
        self._nursery: trio.Nursery | None = None
        self._leaving: str | None = None
        self.ended: str | None = None
        """Why it has ended."""

    async def converse(self, body: Callable[[Session[F]], Awaitable[None]]) -> str:
        """Run ``body`` over the channel, and close that afterwards, in bounded time.

        Returns:
            Why it ended: ``closed: …``, ``silent``, ``slow``, ``bad_frame: …``,
            ``too_large: …``, or what `close` was told. Cancelling closes the channel, too.
        """
        try:
            with self._scope:
                async with trio.open_nursery() as nursery:
                    self._nursery = nursery
                    nursery.start_soon(self._write)
                    await self._guarded(body)
                    nursery.cancel_scope.cancel()
        finally:
            if self.ended is None:
                self.ended = self._leaving or "ended"
            with trio.move_on_after(CLOSE_S) as closing:
                closing.shield = True
                await self._channel.aclose(self.ended)
        return self.ended

    async def _guarded(self, body: Callable[[Session[F]], Awaitable[None]]) -> None:
        try:
            await body(self)
        except ChannelClosed as closed:
            self.close(f"closed: {closed.why}")
        except BadFrame as problem:
            self.close(f"bad_frame: {problem}")
        except FrameTooLarge as problem:
            self.close(f"too_large: {problem}")

    def start_soon(self, fn: Callable[..., Awaitable[None]], *args: object) -> None:
        """Run this beside the body, until the session ends. It must not raise."""
        assert self._nursery is not None
        self._nursery.start_soon(fn, *args)

    def post(self, frame: Frame) -> None:
        """Queue a frame. Too many that wait, or too large ones, end the session as ``slow``.

        Raises:
            FrameTooLarge: nothing was queued.
        """
        self.post_bytes(write_frame(frame))

    def post_bytes(self, data: bytes) -> None:
        """As `post`, for a frame that was written before."""
        if self.ended is not None or self._leaving is not None:
            return
        self._queued_bytes += len(data)
        self._queue.append(data)
        if len(self._queue) > QUEUE_COUNT_MAX or self._queued_bytes > QUEUE_BYTES_MAX:
            self.close("slow")
        self._more.set()

    def post_beat(self, frame: Frame) -> None:
        """Send a frame before what waits; it takes the place of an earlier one of its kind."""
        self._beat = write_frame(frame)
        self._more.set()

    def post_last(self, frame: Frame, why: str) -> None:
        """Send this frame instead of all that waits, and close; within two seconds in any case."""
        if self.ended is not None or self._leaving is not None:
            return
        self._leaving = why
        self._beat = None
        self._queue = deque([write_frame(frame)])
        self._queued_bytes = len(self._queue[0])
        self._scope.deadline = min(self._scope.deadline, trio.current_time() + LAST_WORD_S)
        self._more.set()

    def close(self, why: str) -> None:
        """End it now. Later reasons change nothing."""
        if self.ended is None:
            self.ended = self._leaving or why
            self._scope.cancel()

    async def receive(self, *, within_s: float) -> F:
        """The next frame.

        Raises:
            BadFrame: what came is none, or nothing came in time.
            ChannelClosed: see `Channel.receive`.
        """
        with trio.move_on_after(within_s):
            return self._read(await self._channel.receive())
        raise BadFrame(f"nothing came within {within_s:g} s")

    async def listen(self, handle: Callable[[F], None], *, silent_s: float) -> None:
        """Hand each frame to ``handle``, until the session ends.

        A peer that is silent for ``silent_s`` ends it. What ``handle`` may raise is BadFrame.
        """
        while True:
            data = None
            with trio.move_on_after(silent_s):
                data = await self._channel.receive()
            if data is None:
                self.close("silent")
                await trio.sleep_forever()
            elif self._leaving is None:
                handle(self._read(data))

    async def _write(self) -> None:
        try:
            while True:
                await self._channel.send(await self._next())
        except ChannelClosed as closed:
            self.close(f"closed: {closed.why}")

    async def _next(self) -> bytes:
        while self._beat is None and not self._queue:
            if self._leaving is not None:
                self.close(self._leaving)
            self._more = trio.Event()
            await self._more.wait()
        if self._beat is not None and not (self._greeting and self._queue):
            data, self._beat = self._beat, None
            return data
        data = self._queue.popleft()
        self._queued_bytes -= len(data)
        self._greeting = self._greeting and bool(self._queue)
        return data
