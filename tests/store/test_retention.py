"""Old events go, oldest first, and the writer's figures stay those of the table."""

from __future__ import annotations

import sqlite3
import threading

import pytest
import trio

from capyctl.contracts.store import Change
from capyctl.store.retention import Retention
from tests.store.making import Clock, all_events, database, event, noted, opened


def table_figures(folder) -> tuple[int, int, int, int]:
    connection = sqlite3.connect(database(folder))
    row = connection.execute(
        "SELECT count(*), coalesce(sum(events.payload_bytes), 0), meta.payload_bytes, meta.last_seq"
        " FROM meta LEFT JOIN events"
    ).fetchone()
    connection.close()
    return row


async def test_the_number_of_events_is_bounded_after_each_commit(tmp_path):
    async with opened(tmp_path, retention=Retention(count_max=10)) as store:
        for number in range(25):
            await store.commit(Change(events=(event(number), event(number))))
            page = await store.read_events(0)
            assert len(await all_events(store)) == min(10, page.last_seq)

        assert (page.floor_seq, page.last_seq) == (41, 50)


async def test_their_bytes_are_bounded_after_each_commit(tmp_path):
    keep = Retention(payload_bytes_max=10_000)
    async with opened(tmp_path, retention=keep) as store:
        for number in range(40):
            await store.commit(Change(events=(event(number, "x" * (37 * number % 3000)),)))
            size = sum(len(one.payload_json) for one in await all_events(store))
            assert size <= 10_000

    count, seen_bytes, known_bytes, last_seq = table_figures(tmp_path)
    assert seen_bytes == known_bytes == size
    assert 2 < count < 40
    assert last_seq == 40


async def test_one_event_that_is_too_much_by_itself_leaves_nothing(tmp_path):
    async with opened(tmp_path, retention=Retention(payload_bytes_max=10)) as store:
        await store.commit(noted(1))
        page = await store.read_events(0)
        assert (page.events, page.floor_seq, page.last_seq) == ((), 2, 1)
        await store.commit(noted(2))

    async with opened(tmp_path) as store:
        assert (await store.commit(noted(3))).events[0].seq == 3, "the place is never given again"


async def test_old_events_go_a_part_in_each_transaction(tmp_path):
    clock = Clock()
    keep = Retention(age_max_ms=1000, aged_per_commit_max=5)
    groups = []
    async with opened(tmp_path, clock=clock, retention=keep) as store:
        await store.commit(Change(events=tuple(event(n) for n in range(12))))
        clock.now_ms += 1000
        await store.commit(noted(1))
        groups.append((await store.read_events(0)).floor_seq)
        clock.now_ms += 1
        await store.commit(noted(2))
        groups.append((await store.read_events(0)).floor_seq)
        # The writer goes on by itself, without a change.
        await trio.to_thread.run_sync(until_floor, database(tmp_path), 13)
        last = (await store.read_events(0)).floor_seq

    assert groups[0] == 1, "exactly seven days are not too old"
    assert groups[1] >= 6
    assert last == 13
    assert table_figures(tmp_path)[1] == table_figures(tmp_path)[2]


async def test_a_start_after_a_long_pause_drops_what_is_old(tmp_path):
    clock = Clock()
    async with opened(tmp_path, clock=clock) as store:
        await store.commit(Change(events=tuple(event(n) for n in range(600))))
    clock.now_ms += Retention().age_max_ms + 1
    async with opened(tmp_path, clock=clock) as store:
        await trio.to_thread.run_sync(until_floor, database(tmp_path), None)
        page = await store.read_events(0)

    assert (page.floor_seq, page.last_seq) == (601, 600)


@pytest.mark.parametrize("jump_ms", [-10_000_000, 10_000])
async def test_a_clock_that_jumps_breaks_nothing(tmp_path, jump_ms):
    clock = Clock()
    async with opened(tmp_path, clock=clock) as store:
        await store.commit(noted(1))
        clock.now_ms += jump_ms
        await store.commit(noted(2))
        assert [one.seq for one in await all_events(store)] == [1, 2]


def until_floor(path, floor_seq: int | None) -> None:
    connection = sqlite3.connect(path)
    pause = threading.Event()
    try:
        for _ in range(5000):
            if connection.execute("SELECT min(seq) FROM events").fetchone() == (floor_seq,):
                return
            pause.wait(0.001)
        raise AssertionError("the writer did not go on")
    finally:
        connection.close()
