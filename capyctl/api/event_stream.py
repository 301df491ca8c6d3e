"""One client's stream of events: frames, heartbeats, and the reasons for which it ends."""

from __future__ import annotations

import logging
from types import TracebackType

import trio
from quart.wrappers.response import ResponseBody

from capyctl.api.limits import Limits
from capyctl.api.work import Slot
from capyctl.contracts.management import CursorExpired, Management, Subscription
from capyctl.domain.errors import Refused
from capyctl.domain.events import Event
from capyctl.wire.frames import HEARTBEAT, event_frames, last_frame

_log = logging.getLogger(__name__)


def expired(why: str) -> Refused:
    """The refusal of a cursor that can no longer be gone on from."""
    return Refused(
        "cursor_expired",
        f"{why}: read the snapshot again and go on from its cursor",
        {"resnapshot_required": True},
    )


class EventStream(ResponseBody):
    """A body that never waits inside of a nursery or a cancel scope of somebody else.

    Holds its slot until it is closed and its first read, which may outlast it, has ended.
    """

    def __init__(
        self, management: Management, catch_ups: trio.Semaphore, limits: Limits, slot: Slot
    ) -> None:
        self._management = management
        self._catch_ups = catch_ups
        self._limits = limits
        self._slot = slot
        self._subscription: Subscription | None = None
        self._first_page: tuple[Event, ...] = ()
        self._seq = 0
        self._ends_at_s = trio.current_time() + limits.stream_s_max
        self._quiet_until_s = trio.current_time() + limits.heartbeat_s
        self._waiting: trio.CancelScope | None = None
        self._is_subscribing = False
        self._is_closed = False
        self._has_said_last = False

    async def subscribe(self, after_seq: int | None) -> None:
        """The first read of the past, where there is one. Raises Refused(``cursor_expired``)."""
        self._seq = after_seq or 0
        async with self._catch_ups:
            if self._is_closed:
                return
            try:
                self._subscription = await self._management.subscribe(after_seq)
                # After a point that is behind there is a page, or the point is too old.
                if after_seq is not None and after_seq < self._management.last_seq:
                    self._first_page = await self._subscription.next_page()
            except CursorExpired as problem:
                raise expired("The events after this point are no longer kept") from problem

    def take_over(self) -> None:
        """The first read has begun: it holds the slot as well."""
        self._slot.take_over()
        self._is_subscribing = True

    def give_back(self) -> None:
        """The first read has ended."""
        self._is_subscribing = False
        if self._is_closed:
            self._release()

    def close(self) -> None:
        """End the stream, if need be from outside; the client sees an ordinary end."""
        self._is_closed = True
        if self._waiting is not None:
            self._waiting.cancel()
        if not self._is_subscribing:
            self._release()

    def _release(self) -> None:
        self._slot.give_back()
        if self._subscription is not None:
            self._subscription.close()
            self._subscription = None

    async def __aenter__(self) -> EventStream:
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc_value: BaseException | None,
        tb: TracebackType | None,
    ) -> None:
        self.close()

    def __aiter__(self) -> EventStream:
        return self

    async def __anext__(self) -> bytes:
        """A page of frames, a heartbeat, or the last frame."""
        subscription = self._subscription
        if subscription is None or self._has_said_last:
            raise StopAsyncIteration
        page: tuple[Event, ...] = ()
        deadline_s = min(self._quiet_until_s, self._ends_at_s)
        with trio.CancelScope(deadline=deadline_s) as self._waiting:
            try:
                page = await self._next_page(subscription)
            except CursorExpired:
                return self._last_words(expired("Older events were dropped before they were sent"))
            except Exception:
                _log.exception("an event stream could not read on")
                return self._last_words(Refused("internal", "An internal error"))
        now_s = trio.current_time()
        if self._is_closed or (not page and now_s >= self._ends_at_s):
            raise StopAsyncIteration
        self._quiet_until_s = now_s + self._limits.heartbeat_s
        if not page:
            return HEARTBEAT
        self._seq = page[-1].seq
        return event_frames(self._management.incarnation, page)

    async def _next_page(self, subscription: Subscription) -> tuple[Event, ...]:
        if self._first_page:
            page, self._first_page = self._first_page, ()
            return page
        if self._seq >= self._management.last_seq:
            return await subscription.next_page()
        async with self._catch_ups:
            return await subscription.next_page()

    def _last_words(self, refused: Refused) -> bytes:
        self._has_said_last = True
        return last_frame(refused)
