"""The store as a whole: groups, breaking, cancelling, starts. Its promises: tests/contracts."""

from __future__ import annotations

import errno
import sqlite3
import threading

import attrs
import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from capyctl.contracts.store import Change, ReceiptTaken, StoreBroken
from capyctl.domain.ids import DeploymentId
from capyctl.store import writer
from tests.machines.making import deployment
from tests.store.making import (
    Blocker,
    accepted,
    all_events,
    database,
    event,
    noted,
    opened,
    operation,
    receipt,
)

DEPLOYMENT = deployment()


async def test_changes_that_wait_are_committed_together_in_order(tmp_path):
    blocker = Blocker()
    batches = []
    async with opened(tmp_path, before_commit=blocker) as store:
        store.listen(batches.append)
        blocker.close()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(store.commit, noted(0))
            await trio.to_thread.run_sync(lambda: spin_until(lambda: blocker.batches))
            for number in range(1, 21):
                nursery.start_soon(store.commit, noted(number))
                await wait_all_tasks_blocked()
            blocker.open()

    assert [len(batch) for batch in batches] == [1, 20]
    assert [one.change for batch in batches for one in batch] == [noted(n) for n in range(21)]


async def test_what_is_submitted_rides_with_what_is_committed_next(tmp_path):
    blocker = Blocker()
    async with opened(tmp_path, before_commit=blocker) as store:
        blocker.close()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(store.commit, noted(0))
            await trio.to_thread.run_sync(lambda: spin_until(lambda: blocker.batches))
            store.submit(noted(1))
            nursery.start_soon(store.commit, noted(2))
            await wait_all_tasks_blocked()
            blocker.open()

    assert blocker.batches == [[noted(0)], [noted(1), noted(2)]]


async def test_what_nobody_waits_for_is_kept_for_what_comes_next_or_the_end(tmp_path, monkeypatch):
    monkeypatch.setattr(writer, "RIDE_S", 30.0)
    blocker = Blocker()
    async with opened(tmp_path, before_commit=blocker) as store:
        store.submit(noted(1))
        await store.commit(noted(2))
        store.submit(noted(3))

    assert blocker.batches == [[noted(1), noted(2)], [noted(3)]]


async def test_what_nobody_waits_for_is_written_soon(tmp_path):
    heard = trio.Event()
    async with opened(tmp_path) as store:
        store.listen(lambda _: heard.set())
        store.submit(noted(1))
        await heard.wait()

        assert len(await all_events(store)) == 1


async def test_only_what_tells_is_submitted_and_nothing_to_a_broken_store(tmp_path):
    blocker = Blocker()
    async with opened(tmp_path, before_commit=blocker) as store:
        with pytest.raises(AssertionError):
            store.submit(accepted(1))
        blocker.failure = OSError("gone")
        with pytest.raises(StoreBroken):
            await store.commit(noted(1))
        store.submit(noted(2))

    assert len(blocker.batches) == 1


async def test_a_group_is_bounded(tmp_path):
    blocker = Blocker()
    async with opened(tmp_path, before_commit=blocker) as store:
        blocker.close()
        async with trio.open_nursery() as nursery:
            for number in range(600):
                nursery.start_soon(store.commit, noted(number))
            await wait_all_tasks_blocked()
            blocker.open()

    assert max(len(batch) for batch in blocker.batches) == 256
    assert sum(len(batch) for batch in blocker.batches) == 600


async def test_a_taken_key_does_not_hurt_the_others_of_its_group(tmp_path):
    blocker = Blocker()
    taken = []

    async def compete(store):
        try:
            await store.commit(attrs.evolve(accepted(2), receipt=receipt("1")))
        except ReceiptTaken as problem:
            taken.append(problem.receipt.response)

    async with opened(tmp_path, before_commit=blocker) as store:
        blocker.close()
        async with trio.open_nursery() as nursery:
            for call in (
                (store.commit, noted(0)),
                (store.commit, accepted(1)),
                (compete, store),
                (store.commit, accepted(3)),
            ):
                nursery.start_soon(*call)
                await wait_all_tasks_blocked()
            blocker.open()
        stored = await store.load()

    assert taken == ["1"]
    assert stored.operations == (operation(1), operation(3))
    assert stored.last_seq == 5


async def test_after_a_failed_commit_nothing_is_taken_and_reads_go_on(tmp_path):
    blocker = Blocker()
    announced = []
    told = []
    full = f"the disk that holds {database(tmp_path)} is full "
    async with opened(tmp_path, before_commit=blocker, on_broken=told.append) as store:
        await store.commit(accepted(1))
        store.listen(announced.append)
        blocker.failure = OSError(errno.ENOSPC, "No space left on device")
        with pytest.raises(StoreBroken, match=full):
            await store.commit(accepted(2))
        blocker.failure = None
        with pytest.raises(StoreBroken, match=full):
            await store.commit(accepted(3))

        assert store.broken
        assert [str(one).startswith(full) for one in told] == [True]
        assert store.why_broken is not None
        assert store.why_broken.startswith(full)
        assert announced == []
        assert await store.find_receipt("create", "1") is not None
        assert await store.find_receipt("create", "2") is None
        assert len(await all_events(store)) == 2

    async with opened(tmp_path) as store:
        assert not store.broken
        assert store.put_back is None
        assert (await store.commit(noted(4))).events[0].seq == 3


async def test_all_that_wait_when_a_commit_fails_are_told(tmp_path):
    blocker = Blocker()
    failed = []

    async def commit(store, number):
        with pytest.raises(StoreBroken):
            await store.commit(noted(number))
        failed.append(number)

    async with opened(tmp_path, before_commit=blocker) as store:
        blocker.close()
        blocker.failure = OSError("gone")
        async with trio.open_nursery() as nursery:
            for number in range(300):
                nursery.start_soon(commit, store, number)
            await wait_all_tasks_blocked()
            blocker.open()

    assert sorted(failed) == list(range(300))


async def test_a_listener_that_raises_breaks_the_store(tmp_path):
    def failing(batch):
        raise RuntimeError("listener")

    async with opened(tmp_path) as store:
        store.listen(failing)
        with pytest.raises(StoreBroken, match="RuntimeError"):
            await store.commit(accepted(1))
        with pytest.raises(StoreBroken, match="RuntimeError"):
            await store.commit(accepted(2))

        assert store.broken
        assert await store.find_receipt("create", "1") is not None, "it was durable"
        assert await store.find_receipt("create", "2") is None


async def test_cancelling_does_not_undo_a_change(tmp_path):
    blocker = Blocker()
    announced = []
    async with opened(tmp_path, before_commit=blocker) as store:
        store.listen(announced.extend)
        blocker.close()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(store.commit, accepted(1))
            await wait_all_tasks_blocked()
            nursery.cancel_scope.cancel()
        blocker.open()
        await store.commit(noted(2))

        assert [one.change for one in announced] == [accepted(1), noted(2)]
        assert await store.find_receipt("create", "1") is not None


async def test_a_change_that_cannot_be_encoded_hurts_only_its_caller(tmp_path):
    wrong = attrs.evolve(event(1), payload={"x": object()})
    async with opened(tmp_path) as store:
        with pytest.raises(TypeError):
            await store.commit(Change(events=(wrong,)))

        assert (await store.commit(noted(1))).events[0].seq == 1


async def test_closing_writes_what_was_accepted_even_when_cancelled(tmp_path):
    blocker = Blocker()
    with trio.CancelScope() as scope:
        async with opened(tmp_path, before_commit=blocker) as store:
            blocker.close()
            async with trio.open_nursery() as nursery:
                for number in range(10):
                    nursery.start_soon(store.commit, accepted(number))
                await wait_all_tasks_blocked()
                scope.cancel()
                trio.lowlevel.spawn_system_task(open_when_all_wait, blocker)

    assert not database(tmp_path).with_name("srv.sqlite3-wal").exists()
    async with opened(tmp_path) as store:
        assert len((await store.load()).operations) == 10
        assert store.put_back is None


async def test_a_closed_store_takes_nothing(tmp_path):
    async with opened(tmp_path) as store:
        await store.commit(noted(1))

    with pytest.raises(StoreBroken, match="closed"):
        await store.commit(noted(2))
    with pytest.raises(StoreBroken, match="closed"):
        await store.load()


async def test_each_start_is_a_session_of_the_same_history(tmp_path):
    found = []
    for number in range(3):
        async with opened(tmp_path) as store:
            await store.commit(noted(number))
            found.append(await store.load())
            assert (await store.load()) == found[-1], "loading again changes nothing"

    assert [one.session_epoch for one in found] == [1, 2, 3]
    assert [one.last_seq for one in found] == [1, 2, 3]
    assert len({one.incarnation for one in found}) == 1


async def test_event_reads_do_not_hold_up_other_reads(tmp_path):
    async with opened(tmp_path) as store:
        await store.commit(accepted(1))
        async with trio.open_nursery() as nursery:
            for _ in range(50):
                nursery.start_soon(store.read_events, 0)
            assert await store.find_receipt("create", "1") is not None


async def test_old_ended_operations_are_deleted_in_time(tmp_path):
    async with opened(tmp_path) as store:
        await store.commit(Change(puts=tuple(operation(n) for n in range(2000))))
        for number in range(2000, 2010):
            await store.commit(Change(puts=(operation(number),)))

    rows = sqlite3.connect(database(tmp_path))
    (count,) = rows.execute("SELECT count(*) FROM operations").fetchone()
    rows.close()
    assert 1000 <= count <= 1000 + 256


async def test_the_latest_of_each_deployment_outlives_a_thousand_newer_ones(tmp_path):
    quiet, busy = DeploymentId("quiet"), DeploymentId("busy")
    deployments = tuple(attrs.evolve(DEPLOYMENT, id=id) for id in (quiet, busy))
    old = tuple(
        attrs.evolve(operation(n), deployment=quiet, instance=instance)
        for n, instance in enumerate([None, 0, None, 0, 1])
    )
    newer = tuple(attrs.evolve(operation(n), deployment=busy) for n in range(10, 1310))
    async with opened(tmp_path) as store:
        await store.commit(Change(puts=(*deployments, *old, *newer)))
        await store.commit(noted(1))
    async with opened(tmp_path) as store:
        kept = await store.load()
        await store.commit(Change(deleted=quiet, puts=newer[:256]))
        without = await store.load()

    assert kept.operations == (*old[2:], *newer[-1000:])
    assert without.operations == newer[-1000:]


async def open_when_all_wait(blocker) -> None:
    await wait_all_tasks_blocked()
    blocker.open()


def spin_until(condition) -> None:
    """In a thread of its own: until the writing thread has come where it is blocked."""
    pause = threading.Event()
    for _ in range(10_000):
        if condition():
            return
        pause.wait(0.001)
    raise AssertionError("it never came true")
