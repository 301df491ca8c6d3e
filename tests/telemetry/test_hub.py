"""Subscribers see every event once and in order, whatever their pace and wherever they begin."""

from __future__ import annotations

import random

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from capyctl.contracts.store import Change, Committed, EventPage
from capyctl.domain.events import Event
from capyctl.store.retention import Retention
from capyctl.telemetry.hub import CursorAhead, CursorExpired, Hub, HubClosed
from tests.store.making import event, noted, opened


class Source:
    """A history in memory that announces when it is told to. Counts what is read from it."""

    def __init__(self) -> None:
        self.events: list[Event] = []
        self.floor_seq = 1
        self.reads_count = 0
        self._listeners = []

    def listen(self, listener) -> None:
        self._listeners.append(listener)

    def record(self, *texts: str) -> tuple[Event, ...]:
        fresh = tuple(
            Event(
                seq=len(self.events) + 1 + place,
                kind="tested",
                deployment=None,
                operation=None,
                payload_json=text,
                recorded_at_ms=0,
            )
            for place, text in enumerate(texts)
        )
        self.events += fresh
        return fresh

    def announce(self, *groups: tuple[Event, ...]) -> None:
        batch = tuple(Committed(change=Change(), events=events) for events in groups)
        for listener in self._listeners:
            listener(batch)

    def commit(self, count: int = 1, text: str = "{}") -> None:
        self.announce(self.record(*[text] * count))

    async def read_events(self, after_seq, *, count_max=64, bytes_max=262_144) -> EventPage:
        await trio.lowlevel.checkpoint()
        self.reads_count += 1
        start = max(after_seq + 1, self.floor_seq)
        return EventPage(
            events=tuple(self.events[start - 1 :][:count_max]),
            floor_seq=self.floor_seq,
            last_seq=len(self.events),
        )


def seqs(events) -> list[int]:
    return [one.seq for one in events]


async def read_all(subscription) -> list[int]:
    found: list[int] = []
    while page := await subscription.read_page():
        found += seqs(page)
    return found


async def test_new_events_are_pushed_without_a_read(nursery):
    source = Source()
    hub = Hub(source, last_seq=0)
    subscription = hub.subscribe(0)
    pages = []

    async def follow():
        pages.append(await subscription.next_page())

    nursery.start_soon(follow)
    await wait_all_tasks_blocked()
    source.commit(2)
    await wait_all_tasks_blocked()

    assert [seqs(page) for page in pages] == [[1, 2]]
    assert source.reads_count == 0


async def test_a_page_that_is_there_does_not_wait():
    source = Source()
    hub = Hub(source, last_seq=0)
    source.commit(100)
    subscription = hub.subscribe(10)

    assert seqs(await subscription.next_page()) == list(range(11, 75))
    assert seqs(await subscription.next_page()) == list(range(75, 101))
    assert await subscription.read_page() == ()


async def test_pages_are_bounded_in_bytes_and_never_empty():
    source = Source()
    hub = Hub(source, last_seq=0)
    source.commit(3, text="x" * 150_000)
    source.commit(1, text="x" * 300_000)
    subscription = hub.subscribe(0)

    assert [seqs(await subscription.next_page()) for _ in range(4)] == [[1], [2], [3], [4]]


@pytest.mark.parametrize("after_seq", [0, 5, 7, 9, 10])
async def test_what_the_ring_has_no_more_is_read(after_seq):
    source = Source()
    hub = Hub(source, last_seq=0, ring_count=4)
    source.commit(10)

    assert await read_all(hub.subscribe(after_seq)) == list(range(after_seq + 1, 11))
    assert source.reads_count == (1 if after_seq < 6 else 0)


async def test_the_ring_is_bounded_in_bytes():
    source = Source()
    hub = Hub(source, last_seq=0, ring_bytes=1000)
    source.commit(10, text="x" * 300)

    assert await read_all(hub.subscribe(7)) == [8, 9, 10]
    assert source.reads_count == 0
    assert await read_all(hub.subscribe(6)) == [7, 8, 9, 10]
    assert source.reads_count == 1


async def test_without_a_cursor_it_begins_at_the_oldest_that_is_kept():
    source = Source()
    hub = Hub(source, last_seq=0, ring_count=3)
    source.commit(10)
    source.floor_seq = 4

    assert await read_all(hub.subscribe(None)) == list(range(4, 11))


async def test_without_a_cursor_and_without_events_it_waits_for_the_first(nursery):
    source = Source()
    hub = Hub(source, last_seq=0)
    subscription = hub.subscribe(None)
    assert await subscription.read_page() == ()
    found = []

    async def follow():
        found.extend(seqs(await subscription.next_page()))

    nursery.start_soon(follow)
    await wait_all_tasks_blocked()
    source.commit()
    await wait_all_tasks_blocked()

    assert found == [1]


async def test_a_cursor_that_retention_overtook_is_expired():
    source = Source()
    hub = Hub(source, last_seq=0, ring_count=3)
    source.commit(10)
    source.floor_seq = 5

    with pytest.raises(CursorExpired) as expired:
        await hub.subscribe(3).read_page()
    assert (expired.value.after_seq, expired.value.floor_seq) == (3, 5)
    assert await read_all(hub.subscribe(4)) == [5, 6, 7, 8, 9, 10]


async def test_a_place_in_the_future_is_refused():
    source = Source()
    hub = Hub(source, last_seq=0)
    source.commit(2)

    with pytest.raises(CursorAhead):
        hub.subscribe(3)
    assert await hub.subscribe(2).read_page() == ()


async def test_events_from_before_the_hub_are_read():
    """Committed between the load and the hub: announced to nobody, and not lost."""
    source = Source()
    source.record("{}", "{}")
    hub = Hub(source, last_seq=0)
    source.commit(1)

    assert await read_all(hub.subscribe(0)) == [1, 2, 3]


async def test_events_that_are_durable_and_not_yet_announced_come_once():
    source = Source()
    hub = Hub(source, last_seq=0, ring_count=1)
    source.commit(2)
    early = source.record("{}")
    subscription = hub.subscribe(0)

    assert seqs(await subscription.read_page()) == [1, 2, 3]
    source.announce(early)
    assert await subscription.read_page() == ()
    source.commit()
    assert seqs(await subscription.next_page()) == [4]


async def test_cancelling_a_read_loses_no_event():
    source = Source()
    hub = Hub(source, last_seq=0, ring_count=1)
    source.commit(3)
    subscription = hub.subscribe(0)
    with trio.CancelScope() as scope:
        scope.cancel()
        await subscription.next_page()

    assert scope.cancelled_caught
    assert await read_all(subscription) == [1, 2, 3]


async def test_closing_wakes_everyone(nursery):
    source = Source()
    hub = Hub(source, last_seq=0)
    source.commit()
    ended = []

    async def follow(after_seq):
        with pytest.raises(HubClosed):
            await hub.subscribe(after_seq).next_page()
        ended.append(after_seq)

    for _ in range(3):
        nursery.start_soon(follow, 1)
    await wait_all_tasks_blocked()
    hub.close()
    await wait_all_tasks_blocked()

    assert ended == [1, 1, 1]
    with pytest.raises(HubClosed):
        hub.subscribe(0)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(2))
async def test_many_events_to_fast_and_slow_subscribers(tmp_path, seed):
    """10,000 events over a real store to 16 readers of every pace: none twice, none missing."""
    dice = random.Random(seed)
    found: list[list[int]] = [[] for _ in range(16)]
    expected = list(range(1, 10_001))

    async with opened(tmp_path) as store:
        hub = Hub(store, last_seq=0, ring_count=256)

        async def follow(place: int) -> None:
            subscription = hub.subscribe(0)
            while len(found[place]) < 10_000:
                found[place] += seqs(await subscription.next_page())
                # The first is never late; the last ones fall far behind the ring.
                for _ in range(dice.randrange(place * 4 + 1)):
                    await trio.lowlevel.checkpoint()

        async def commit(first: int) -> None:
            for number in range(first, 2_000, 8):
                await store.commit(Change(events=tuple(event(number) for _ in range(5))))

        async with trio.open_nursery() as nursery:
            for place in range(16):
                nursery.start_soon(follow, place)
            for first in range(8):
                nursery.start_soon(commit, first)

        assert all(one == expected for one in found)
        assert len(hub._ring) == 256
        assert hub.last_seq == 10_000


async def test_a_reader_that_sleeps_holds_no_memory():
    source = Source()
    hub = Hub(source, last_seq=0, ring_count=50)
    sleepers = [hub.subscribe(0) for _ in range(16)]
    for _ in range(100):
        source.commit(100)

    assert len(hub._ring) == 50
    assert all(vars(one) == {"_hub": hub, "_after_seq": 0} for one in sleepers)
    assert await read_all(sleepers[0]) == list(range(1, 10_001))


async def test_retention_overtakes_a_slow_subscriber_of_a_real_store(tmp_path):
    async with opened(tmp_path, retention=Retention(count_max=20)) as store:
        hub = Hub(store, last_seq=0, ring_count=5)
        subscription = hub.subscribe(0)
        await store.commit(Change(events=(event(1),)))
        assert seqs(await subscription.next_page()) == [1]
        for number in range(30):
            await store.commit(noted(number))

        with pytest.raises(CursorExpired):
            await subscription.next_page()
        assert await read_all(hub.subscribe(None)) == list(range(12, 32))
