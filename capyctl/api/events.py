"""GET /events: from which point a stream starts, and which streams are open."""

from __future__ import annotations

import trio
from quart import ResponseReturnValue, request
from quart_trio.wrappers import TrioResponse

from capyctl.api.event_stream import EventStream, expired
from capyctl.api.exchange import at_end
from capyctl.api.headers import values_of
from capyctl.api.limits import Limits
from capyctl.api.work import Pool, Work
from capyctl.contracts.management import Management
from capyctl.domain.errors import Refused
from capyctl.domain.events import Cursor
from capyctl.wire.cursor import asked_cursor


class Events:
    """The handler, and its open streams.

    Reading the past has its own few places. Streams wait for one in turn, which is bounded
    by their own number; a stream that has caught up needs none.
    """

    def __init__(self, management: Management, work: Work, *, limits: Limits) -> None:
        self._management = management
        self._work = work
        self._limits = limits
        self._slots = Pool("event streams", limits.streams_max)
        self._catch_ups = trio.Semaphore(limits.catch_ups_max)
        self._open: set[EventStream] = set()

    async def stream(self) -> ResponseReturnValue:
        """GET /events. What is wrong with the cursor is told before the stream begins."""
        sent = values_of(request.scope["headers"], b"last-event-id")
        query = request.scope["query_string"]
        cursor = asked_cursor(query, [value.decode("latin-1") for value in sent])
        after_seq = self._after(cursor)
        stream = EventStream(self._management, self._catch_ups, self._limits, self._slots.take())
        self._open.add(stream)
        exit_stack = at_end(request.scope)
        exit_stack.callback(self._open.discard, stream)
        exit_stack.callback(stream.close)

        async def subscribe() -> None:
            await stream.subscribe(after_seq)

        await self._work.answer(stream, subscribe, within_s=self._limits.answer_s_max)
        response = TrioResponse(stream, content_type="text/event-stream")
        response.timeout = None  # Quart would cut the stream after a minute
        return response

    def close(self) -> None:
        """End every stream as at the end of its time; clients go on from their last id."""
        for stream in tuple(self._open):
            stream.close()

    def _after(self, cursor: Cursor | None) -> int | None:
        if cursor is None:
            return None
        if cursor.incarnation != self._management.incarnation:
            raise expired("The cursor belongs to another database")
        if cursor.seq > self._management.last_seq:
            raise Refused("invalid_cursor", "The cursor is ahead of every event")
        return cursor.seq
