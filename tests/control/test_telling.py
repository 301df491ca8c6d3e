"""What events say of states when two actors write about one instance at once."""

import pytest
import trio
import trio.testing

from capyctl.contracts.store import Change, Committed, ReceiptTaken
from capyctl.control.directory import Directory
from capyctl.control.telling import TellingStore
from capyctl.domain.events import NewEvent, Receipt
from capyctl.domain.operations import OperationKind
from capyctl.machines.instance import Instance, InstanceState
from tests.machines.making import DEPLOYMENT, ONE, deployment, operation

RECEIPT = Receipt(scope="s", key="k", fingerprint="f", response="{}")


class SlowStore:
    """Stores one change after the other, each once it is let."""

    broken = False

    def __init__(self):
        self.listeners = []
        self.let = trio.Semaphore(0)
        self.order = trio.StrictFIFOLock()
        self.stored = []

    def listen(self, listener):
        self.listeners.append(listener)

    async def commit(self, change):
        async with self.order:
            await self.let.acquire()
            if change.receipt is not None and any(s.receipt for s in self.stored):
                raise ReceiptTaken(change.receipt)
            self.stored.append(change)
            done = Committed(change=change, events=())
            for listener in self.listeners:
                listener((done,))
            return done

    def told(self):
        return [
            (event.payload["from"], event.payload["to"])
            for change in self.stored
            for event in change.events
        ]


def world():
    directory = Directory()
    directory.load((deployment(),))
    inner = SlowStore()
    inner.listen(directory.apply)
    return inner, TellingStore(inner, directory)


def event(**payload):
    """As a machine makes it, with states that are out of date by now."""
    stated = {"deployment_id": DEPLOYMENT, "instance": 0, "from": "?", "to": "?", **payload}
    return NewEvent(kind="any", deployment=DEPLOYMENT, operation=None, payload=stated)


def becomes(state, *, events=1, **more):
    puts = (Instance(id=ONE, state=state),)
    return Change(puts=puts, events=(event(),) * events, **more)


async def together(inner, store, *changes):
    """Each is sent before any is stored; what came of it, in order."""
    found = []

    async def one(change):
        try:
            await store.commit(change)
            found.append(None)
        except ReceiptTaken as taken:
            found.append(taken)

    async with trio.open_nursery() as nursery:
        for change in changes:
            nursery.start_soon(one, change)
            await trio.testing.wait_all_tasks_blocked()
        for _ in changes:
            inner.let.release()
    return found


async def test_states_join_though_neither_change_was_stored_when_the_other_was_made():
    inner, store = world()
    accepted = Change(puts=(operation(OperationKind.INITIALIZE),), events=(event(),))
    await together(
        inner, store, accepted, becomes(InstanceState.STARTING), becomes(InstanceState.READY)
    )
    assert inner.told() == [("stopped", "queued"), ("queued", "starting"), ("starting", "ready")]


async def test_of_two_events_the_second_begins_where_the_first_ends():
    inner, store = world()
    await together(inner, store, becomes(InstanceState.STARTING, events=2))
    assert inner.told() == [("stopped", "starting"), ("starting", "starting")]


async def test_what_was_refused_is_not_told_from():
    inner, store = world()
    found = await together(
        inner,
        store,
        becomes(InstanceState.READY, receipt=RECEIPT),
        becomes(InstanceState.PARKED, receipt=RECEIPT),
    )
    await together(inner, store, becomes(InstanceState.STOPPING))
    assert [type(one) for one in found] == [type(None), ReceiptTaken]
    assert inner.told() == [("stopped", "ready"), ("ready", "reconciling")]


async def test_other_events_are_stored_as_they_came():
    inner, store = world()
    plain = NewEvent(kind="any", deployment=None, operation=None, payload={"session_epoch": "1"})
    await together(inner, store, Change(events=(plain,)))
    assert inner.stored[0].events == (plain,)


async def test_a_cancelled_commit_tells_nothing():
    inner, store = world()
    with trio.CancelScope() as scope:
        scope.cancel()
        await store.commit(becomes(InstanceState.READY))
    await together(inner, store, becomes(InstanceState.STARTING))
    assert inner.told() == [("stopped", "starting")]


@pytest.mark.parametrize("state", list(InstanceState))
async def test_every_state_is_told_as_it_is_shown(state):
    inner, store = world()
    await together(inner, store, becomes(state))
    assert "?" not in inner.told()[0]
