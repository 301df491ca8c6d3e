"""What every store promises. An implementation is one line in `OPENERS`."""

from __future__ import annotations

import attrs
import pytest
import trio

from capyctl.contracts.store import Change, ReceiptTaken
from capyctl.domain.events import EVENT_PAYLOAD_BYTES_MAX, NewEvent
from tests.store import making
from tests.store.making import (
    accepted,
    all_events,
    certificate,
    event,
    host,
    invitation,
    noted,
    operation,
    receipt,
)

OPENERS = {"sqlite": making.opened}
"""Name to ``opener(folder)``, an async context manager that gives a store with ``load``."""


@pytest.fixture(params=OPENERS.values(), ids=OPENERS.keys())
def opened(request):
    return request.param


async def test_a_commit_gives_each_event_its_place(opened, tmp_path):
    async with opened(tmp_path) as store:
        first = await store.commit(Change(events=(event(1), event(2))))
        second = await store.commit(Change(events=(event(3),)))

    assert [one.seq for one in first.events + second.events] == [1, 2, 3]
    assert first.events[0].payload_json == '{"number":"1","z":""}'
    assert first.events[0].kind == "tested"
    assert first.events[0].operation == making.operation_id(1)


async def test_what_is_submitted_has_its_place_and_is_durable_with_what_follows(opened, tmp_path):
    async with opened(tmp_path) as store:
        store.submit(Change(events=(event(1),)))
        committed = await store.commit(Change(events=(event(2),)))
        store.submit(Change(events=(event(3),)))

        assert committed.events[0].seq == 2

    async with opened(tmp_path) as store:
        found = await all_events(store)

    assert [one.operation for one in found] == [making.operation_id(n) for n in (1, 2, 3)]


async def test_what_was_committed_is_found(opened, tmp_path):
    async with opened(tmp_path) as store:
        committed = await store.commit(accepted(7))

        assert await store.find_receipt("create", "7") == receipt("7", response="7")
        assert tuple(await all_events(store)) == committed.events
        stored = await store.load()

    assert stored.operations == (operation(7),)
    assert stored.last_seq == 2


async def test_a_put_replaces_the_record_with_the_same_id(opened, tmp_path):
    failed = attrs.evolve(operation(1), reason="gave up")
    async with opened(tmp_path) as store:
        await store.commit(Change(puts=(operation(1),)))
        await store.commit(Change(puts=(failed,)))

        assert (await store.load()).operations == (failed,)


async def test_what_is_on_record_of_machines_is_found_again(opened, tmp_path):
    used = attrs.evolve(invitation(1), used_at_ms=5, host=host(1).id, key_digest="f" * 64)
    later = attrs.evolve(certificate(1), issued_at_ms=9)
    async with opened(tmp_path) as store:
        await store.commit(Change(puts=(host(2), host(1), invitation(1), later, certificate(2))))
        await store.commit(Change(puts=(used, attrs.evolve(host(2), draining=True))))

        stored = await store.load()

    assert stored.hosts == (host(1), attrs.evolve(host(2), draining=True))
    assert stored.invitations == (used,)
    assert stored.certificates == (certificate(2), later), "as they were issued"


async def test_a_taken_receipt_stores_nothing_of_the_change(opened, tmp_path):
    async with opened(tmp_path) as store:
        await store.commit(accepted(1))
        second = attrs.evolve(accepted(2), receipt=receipt("1", response="other"))
        with pytest.raises(ReceiptTaken) as taken:
            await store.commit(second)

        assert taken.value.receipt == receipt("1", response="1")
        assert (await store.load()).operations == (operation(1),)
        assert len(await all_events(store)) == 2
        assert not store.broken
        assert (await store.commit(noted(3))).events[0].seq == 3


async def test_the_same_key_in_another_scope_is_free(opened, tmp_path):
    async with opened(tmp_path) as store:
        await store.commit(Change(receipt=receipt("k", scope="create")))
        await store.commit(Change(receipt=receipt("k", scope="replace:x")))

        assert await store.find_receipt("replace:x", "k") is not None
        assert await store.find_receipt("actions:x", "k") is None


async def test_of_many_at_once_one_gets_the_key(opened, tmp_path):
    outcomes = []

    async def compete(store, number):
        change = attrs.evolve(accepted(number), receipt=receipt("k", response=str(number)))
        try:
            await store.commit(change)
        except ReceiptTaken as taken:
            outcomes.append(taken.receipt.response)
        else:
            outcomes.append("won")

    async with opened(tmp_path) as store:
        async with trio.open_nursery() as nursery:
            for number in range(20):
                nursery.start_soon(compete, store, number)
        winner = await store.find_receipt("create", "k")
        stored = await store.load()

    assert outcomes.count("won") == 1
    assert outcomes.count(winner.response) == 19
    assert [str(int(one.id[2:])) for one in stored.operations] == [winner.response]


async def test_listeners_see_every_change_in_order_before_its_commit_returns(opened, tmp_path):
    seen: list[int] = []
    late: list[int] = []

    async def commit(store, number):
        committed = await store.commit(noted(number))
        late.extend(one.seq for one in committed.events if one.seq not in seen)

    async with opened(tmp_path) as store:
        store.listen(lambda batch: seen.extend(e.seq for one in batch for e in one.events))
        async with trio.open_nursery() as nursery:
            for number in range(200):
                nursery.start_soon(commit, store, number)

    assert seen == list(range(1, 201))
    assert late == []


async def test_pages_are_bounded_in_count_and_bytes(opened, tmp_path):
    async with opened(tmp_path) as store:
        await store.commit(Change(events=tuple(event(n, "x" * 1000) for n in range(10))))

        by_count = await store.read_events(0, count_max=3)
        by_bytes = await store.read_events(3, bytes_max=2500)
        single = await store.read_events(5, bytes_max=1)
        end = await store.read_events(10)

    assert [one.seq for one in by_count.events] == [1, 2, 3]
    assert [one.seq for one in by_bytes.events] == [4, 5]
    assert [one.seq for one in single.events] == [6], "at least one, however large"
    assert (end.events, end.floor_seq, end.last_seq) == ((), 1, 10)


async def test_an_empty_history_begins_after_its_end(opened, tmp_path):
    async with opened(tmp_path) as store:
        page = await store.read_events(0)

    assert (page.events, page.floor_seq, page.last_seq) == ((), 1, 0)


@pytest.mark.parametrize(("over", "fits"), [(0, True), (1, False)])
async def test_a_payload_has_a_bound(opened, tmp_path, over, fits):
    text = "é" * ((EVENT_PAYLOAD_BYTES_MAX - len('{"t":""}')) // 2) + "x" * over
    large = NewEvent(kind="k", deployment=None, operation=None, payload={"t": text})
    async with opened(tmp_path) as store:
        if fits:
            await store.commit(Change(events=(large,)))
        else:
            with pytest.raises(AssertionError):
                await store.commit(Change(events=(large,)))

        assert not store.broken
        assert len(await all_events(store)) == fits


async def test_open_operations_and_the_newest_thousand_are_loaded(opened, tmp_path):
    running = making.OperationState.RUNNING
    numbers = range(1, 1201)
    async with opened(tmp_path) as store:
        await store.commit(
            Change(puts=tuple(operation(n, *([running] if n == 5 else [])) for n in numbers))
        )
        loaded = (await store.load()).operations

    assert [one.id for one in loaded] == [making.operation_id(n) for n in (5, *range(201, 1201))]


async def test_a_cancelled_caller_that_has_not_begun_stores_nothing(opened, tmp_path):
    async with opened(tmp_path) as store:
        with trio.CancelScope() as scope:
            scope.cancel()
            await store.commit(accepted(1))

        assert scope.cancelled_caught
        assert await store.find_receipt("create", "1") is None
