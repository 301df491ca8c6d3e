"""Fetch, then measure, again and again: in virtual time, with a host that does as it is told."""

from __future__ import annotations

import itertools
from types import SimpleNamespace

import attrs
import pytest
import trio
import trio.testing

from capyctl.contracts.checkpoints import Unfetchable, Unmeasurable
from capyctl.control.measuring import MEASURE_PAUSES_S, PROGRESS_PAUSE_S, Measuring
from capyctl.domain.checkpoints import CheckpointRecord, RemoteSource, SourceKind, SourceState
from capyctl.messages import deployment as m
from tests.machines.making import FACTS, HOST, SPEC, deployment

SOURCE = RemoteSource(kind=SourceKind.HTTP, key="sources/http/ab", url_ref="secret://x")
LOCAL = deployment(checkpoint=CheckpointRecord(), resolved=None)
REMOTE = attrs.evolve(LOCAL, spec=attrs.evolve(SPEC, source=SOURCE))
TOTAL = 100


def away(**changes):
    return Unfetchable("unreachable", "it is away", **changes)


@attrs.define(eq=False)
class Host:
    """Each fetch and each measurement takes the next of what it was given; the last stays."""

    fetches: list = attrs.field(factory=list)
    measures: list = attrs.field(factory=list)
    fetched_at_s: list = attrs.field(factory=list)

    async def fetch(self, source, progress):
        assert source == SOURCE
        self.fetched_at_s.append(trio.current_time())
        todo = self.fetches.pop(0) if self.fetches else TOTAL
        if isinstance(todo, Unfetchable):
            raise todo
        if callable(todo):
            return await todo(progress)
        return todo

    async def measure(self, model_path, *, weights_file, declared=None):
        todo = self.measures.pop(0) if self.measures else FACTS
        if isinstance(todo, Unmeasurable):
            raise todo
        return todo


@attrs.define(eq=False)
class Owner:
    """Runs tasks, and keeps what the measuring tells."""

    nursery: trio.Nursery
    told: list = attrs.field(factory=list)
    ref: object = None

    def spawn(self, fn, *args):
        scope = trio.CancelScope()

        async def run():
            with scope:
                await fn(*args)

        self.nursery.start_soon(run)
        return scope

    def tell(self, ref, message):
        self.told.append((trio.current_time(), message))

    @property
    def records(self):
        return [one.record for _, one in self.told if isinstance(one, m.SourceMoved)]


def as_it_is(path, host):
    return path


async def outcome(host, data=REMOTE, within_s=1000.0):
    """What was told of ``data`` by then."""
    async with trio.open_nursery() as nursery:
        owner = Owner(nursery)
        world = SimpleNamespace(hosts={HOST: host}, tell=owner.tell)
        Measuring(owner, world, as_it_is).begin(data, [HOST])
        with trio.move_on_after(within_s):
            await trio.sleep_forever()
        nursery.cancel_scope.cancel()
    return owner


def states(owner):
    return [(record.state, record.terminal) for record in owner.records]


async def test_files_on_the_machine_are_only_measured(autojump_clock):
    owner = await outcome(Host(), LOCAL)

    (told,) = owner.told
    assert told[1] == m.CheckpointMeasured(revision=1, host=HOST, facts=FACTS)


async def test_files_elsewhere_are_fetched_and_then_measured(autojump_clock):
    owner = await outcome(Host())

    *moved, last = [one for _, one in owner.told]
    assert states(owner) == [(SourceState.PENDING, False), (SourceState.VERIFIED, False)]
    assert (moved[-1].record.bytes_done, moved[-1].record.bytes_total) == (TOTAL, TOTAL)
    assert last == m.CheckpointMeasured(revision=1, host=HOST, facts=FACTS)


async def test_progress_is_told_once_a_second(autojump_clock):
    async def slow(progress):
        for done in range(TOTAL):
            progress(done, TOTAL)
            await trio.sleep(0.1)
        return TOTAL

    owner = await outcome(Host(fetches=[slow]))

    at_s = [
        at_s
        for at_s, one in owner.told
        if isinstance(one, m.SourceMoved) and one.record.state is SourceState.DOWNLOADING
    ]
    assert 9 <= len(at_s) <= 11
    assert all(later - earlier >= PROGRESS_PAUSE_S for earlier, later in itertools.pairwise(at_s))


async def test_a_passing_failure_is_told_and_tried_again_after_growing_pauses(autojump_clock):
    host = Host(fetches=[away() for _ in range(6)])

    owner = await outcome(host)

    pauses = [b - a for a, b in itertools.pairwise(host.fetched_at_s)]
    assert pauses == pytest.approx([*MEASURE_PAUSES_S, 60.0, 60.0])
    assert owner.records[1].reason == "unreachable: it is away"
    assert states(owner)[-1] == (SourceState.VERIFIED, False)


async def test_bytes_that_came_start_the_pauses_over(autojump_clock):
    def brings(bytes_done):
        async def some(progress):
            progress(bytes_done, TOTAL)
            raise away()

        return some

    host = Host(fetches=[brings(done) for done in (10, 20, 30)])

    await outcome(host)

    pauses = [b - a for a, b in itertools.pairwise(host.fetched_at_s)]
    assert pauses == pytest.approx([MEASURE_PAUSES_S[0]] * 3)


async def test_a_cheap_terminal_failure_is_looked_at_again_every_minute(autojump_clock):
    host = Host(fetches=[away(terminal=True), away(terminal=True)])

    owner = await outcome(host)

    assert host.fetched_at_s[1:] == pytest.approx(
        [host.fetched_at_s[0] + 60.0, host.fetched_at_s[0] + 120.0]
    )
    assert states(owner) == [
        (SourceState.PENDING, False),
        (SourceState.FAILED, True),
        (SourceState.FAILED, True),
        (SourceState.VERIFIED, False),
    ]


async def test_a_terminal_failure_that_would_cost_a_download_is_the_end(autojump_clock):
    host = Host(fetches=[away(terminal=True, again=False)])

    owner = await outcome(host)

    assert len(host.fetched_at_s) == 1
    assert states(owner)[-1] == (SourceState.FAILED, True)
    assert not any(isinstance(one, m.CheckpointMeasured) for _, one in owner.told)


async def test_a_new_revision_ends_the_fetch_of_the_old_one(autojump_clock):
    ended = []

    async def forever(progress):
        try:
            await trio.sleep_forever()
        finally:
            ended.append(True)

    host = Host(fetches=[forever])
    async with trio.open_nursery() as nursery:
        owner = Owner(nursery)
        world = SimpleNamespace(hosts={HOST: host}, tell=owner.tell)
        measuring = Measuring(owner, world, as_it_is)
        measuring.begin(REMOTE, [HOST])
        await trio.testing.wait_all_tasks_blocked()
        measuring.begin(attrs.evolve(REMOTE, revision=2), [HOST])
        await trio.testing.wait_all_tasks_blocked()

    assert ended == [True]
    assert owner.told[-1][1] == m.CheckpointMeasured(revision=2, host=HOST, facts=FACTS)


async def test_what_cannot_be_measured_is_told_and_measured_again(autojump_clock):
    owner = await outcome(Host(measures=[Unmeasurable("io_error", "no")]), LOCAL)

    assert [type(one) for _, one in owner.told] == [m.CheckpointUnmeasured, m.CheckpointMeasured]
    assert owner.told[1][0] - owner.told[0][0] == pytest.approx(MEASURE_PAUSES_S[0])


async def test_each_host_measures_its_own_files(autojump_clock):
    slow = Host(measures=[Unmeasurable("io_error", "no")])
    async with trio.open_nursery() as nursery:
        owner = Owner(nursery)
        world = SimpleNamespace(hosts={"a": slow, "b": Host()}, tell=owner.tell)
        Measuring(owner, world, lambda path, host: f"/{host}{path}").begin(LOCAL, ["a", "b"])

    measured = [one for _, one in owner.told if isinstance(one, m.CheckpointMeasured)]
    assert [one.host for one in measured] == ["b", "a"]


async def test_one_that_may_not_run_it_any_more_is_left_alone(autojump_clock):
    ended = []

    class Away(Host):
        async def measure(self, model_path, *, weights_file, declared=None):
            try:
                await trio.sleep_forever()
            finally:
                ended.append(model_path)

    async with trio.open_nursery() as nursery:
        owner = Owner(nursery)
        world = SimpleNamespace(hosts={"a": Away(), "b": Away()}, tell=owner.tell)
        measuring = Measuring(owner, world, lambda path, host: host)
        measuring.begin(LOCAL, ["a", "b"])
        await trio.testing.wait_all_tasks_blocked()
        measuring.begin(LOCAL, ["b"])
        await trio.testing.wait_all_tasks_blocked()
        left_alone = list(ended)
        nursery.cancel_scope.cancel()

    assert left_alone == ["a"]
