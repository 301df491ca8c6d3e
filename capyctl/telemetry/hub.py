"""Committed events to whoever follows them: pushed as they commit, read again when missed.

A subscriber is a place in the history and nothing more: however slow, it costs no memory.
"""

from __future__ import annotations

from typing import Protocol

import trio

from capyctl.contracts.store import Committed, EventPage, OnCommitted
from capyctl.domain.events import Event

PAGE_COUNT_MAX = 64
PAGE_BYTES_MAX = 262_144
RING_BYTES_MAX = 16 * 1024 * 1024


class CursorExpired(Exception):
    """Events after this place were dropped before they were read. Take a snapshot again."""

    def __init__(self, after_seq: int, floor_seq: int) -> None:
        super().__init__(f"events after {after_seq} were asked for, the oldest kept is {floor_seq}")
        self.after_seq = after_seq
        self.floor_seq = floor_seq


class CursorAhead(Exception):
    """This place in the history does not exist yet."""

    def __init__(self, after_seq: int, last_seq: int) -> None:
        super().__init__(f"events after {after_seq} were asked for, the newest is {last_seq}")


class HubClosed(Exception):
    """The daemon is shutting down: nothing more is handed out."""


class EventSource(Protocol):
    """The part of `contracts.store.Store` that the hub needs."""

    def listen(self, listener: OnCommitted) -> None: ...

    async def read_events(
        self, after_seq: int, *, count_max: int = 64, bytes_max: int = 262_144
    ) -> EventPage: ...


class Hub:
    """Holds the newest events, and wakes subscribers in the turn in which a batch commits."""

    def __init__(
        self,
        source: EventSource,
        *,
        last_seq: int,
        ring_count: int = 4096,
        ring_bytes: int = RING_BYTES_MAX,
    ) -> None:
        """Listens to ``source`` from now on. ``last_seq``: as of the load of this start."""
        self._source = source
        self._last_seq = last_seq
        self._ring_count = ring_count
        self._ring_bytes = ring_bytes
        self._ring: dict[int, Event] = {}
        """By sequence, without a gap, up to ``_last_seq``."""
        self._ring_floor = last_seq + 1
        self._held_bytes = 0
        self._news = trio.lowlevel.ParkingLot()
        self._closed = False
        source.listen(self._take)

    @property
    def last_seq(self) -> int:
        """Of the newest event that was announced."""
        return self._last_seq

    @property
    def closed(self) -> bool:
        return self._closed

    def subscribe(self, after_seq: int | None) -> Subscription:
        """A place strictly after ``after_seq``; None is before the oldest retained event.

        Raises:
            CursorAhead: there is no such event yet.
            HubClosed: the hub was closed.
        """
        if self._closed:
            raise HubClosed
        if after_seq is not None and after_seq > self._last_seq:
            raise CursorAhead(after_seq, self._last_seq)
        return Subscription(self, after_seq)

    def close(self) -> None:
        """Wake every subscriber with `HubClosed`. Not undone."""
        self._closed = True
        self._news.unpark_all()

    def _take(self, batch: tuple[Committed, ...]) -> None:
        for committed in batch:
            for event in committed.events:
                self._append(event)
        while len(self._ring) > self._ring_count or self._held_bytes > self._ring_bytes:
            self._held_bytes -= len(self._ring.pop(self._ring_floor).payload_json)
            self._ring_floor += 1
        self._news.unpark_all()

    def _append(self, event: Event) -> None:
        if event.seq != self._last_seq + 1:
            # Committed between the load and this hub: readers behind the gap ask the source.
            assert event.seq > self._last_seq, f"{event.seq} came after {self._last_seq}"
            self._ring.clear()
            self._held_bytes = 0
            self._ring_floor = event.seq
        self._ring[event.seq] = event
        self._held_bytes += len(event.payload_json)
        self._last_seq = event.seq

    def _recent(self, after_seq: int) -> tuple[Event, ...]:
        """A page from memory; empty when the next event is not there."""
        page: list[Event] = []
        size_bytes = 0
        seq = after_seq + 1
        while len(page) < PAGE_COUNT_MAX and (event := self._ring.get(seq)) is not None:
            size_bytes += len(event.payload_json.encode())
            if page and size_bytes > PAGE_BYTES_MAX:
                break
            page.append(event)
            seq += 1
        return tuple(page)

    async def _page(self, after_seq: int | None) -> tuple[Event, ...]:
        """The next page, from memory or from the source; empty at the end of the history."""
        if after_seq is not None:
            if page := self._recent(after_seq):
                return page
            if after_seq >= self._last_seq:
                return ()
        found = await self._source.read_events(
            after_seq or 0, count_max=PAGE_COUNT_MAX, bytes_max=PAGE_BYTES_MAX
        )
        if after_seq is not None and found.floor_seq > after_seq + 1:
            raise CursorExpired(after_seq, found.floor_seq)
        return found.events

    async def _wait_for_news(self, after_seq: int | None) -> None:
        if (after_seq or 0) >= self._last_seq and not self._closed:
            await self._news.park()


class Subscription:
    """One reader's place. For one task at a time."""

    def __init__(self, hub: Hub, after_seq: int | None) -> None:
        self._hub = hub
        self._after_seq = after_seq

    @property
    def after_seq(self) -> int | None:
        """Of the last event that was handed out; None before the first, from the beginning."""
        return self._after_seq

    async def read_page(self) -> tuple[Event, ...]:
        """Up to 64 events and 256 KiB that are there already; empty at the end. Does not wait.

        Cancelling it leaves the place where it was.

        Raises:
            CursorExpired: retention dropped events before they were read.
            HubClosed: the hub was closed.
            StoreBroken: the history could not be read.
        """
        await trio.lowlevel.checkpoint()
        if self._hub.closed:
            raise HubClosed
        page = await self._hub._page(self._after_seq)
        if page:
            self._after_seq = page[-1].seq
        return page

    async def next_page(self) -> tuple[Event, ...]:
        """As `read_page`, but waits for an event when there is none: never empty."""
        while True:
            page = await self.read_page()
            if page:
                return page
            await self._hub._wait_for_news(self._after_seq)
