"""What is heard of hosts, however fast it comes and however slow the others are."""

import attrs
import pytest
import trio

from capyctl.contracts.hosts import HostSample
from capyctl.contracts.store import Change, Committed
from capyctl.control.directory import Directory
from capyctl.control.hearing import Hearing
from capyctl.control.placement import PlacementActor
from capyctl.domain.devices import EngineSample, MemorySample
from capyctl.domain.ids import InstanceId, LaunchId
from capyctl.machines.instance import InstanceState
from capyctl.messages import placement as m
from tests.control.test_placement_hosts import SHAPES, A, B, bench, granted
from tests.machines import making

LOOKS_COUNT = 20_000
CARD = {host: SHAPES[host].gpus[0].domain for host in SHAPES}


def sample(host, at_s: float, *, full: bool = False) -> HostSample:
    """A look at a card with or without room."""
    free_bytes = 0 if full else SHAPES[host].gpus[0].total_bytes
    memory = MemorySample(at_s=at_s, available_bytes={CARD[host]: free_bytes})
    return HostSample(memory=memory)


def hearing(here, ref) -> Hearing:
    return Hearing(world=here.world, hosts=ref, placement=ref)


async def test_looks_at_memory_do_not_pile_up_before_a_slow_placement(autojump_clock):
    async with bench() as here:
        placement = here.actor.ref
        hears = hearing(here, placement)
        for at_s in range(LOOKS_COUNT):
            for host in (A, B):
                hears.sampled(host, sample(host, float(at_s)))
        assert len(placement.mailbox) == 2

        hears.sampled(A, sample(A, 1e6, full=True))
        one = await here.reserve(0, 4)

        assert granted(here.told(one)) == [B], "the newest look counts"


async def test_each_look_counts_once_it_was_taken_in(autojump_clock):
    async with bench() as here:
        hears = hearing(here, here.actor.ref)
        for at_s, full in ((1.0, True), (2.0, False), (3.0, True)):
            hears.sampled(A, sample(A, at_s, full=full))
            await here.tell()
            one = await here.reserve(int(at_s), 4, A)
            assert granted(here.told(one)) == ([] if full else [A])
            await here.tell(m.Withdraw(instance=one, ask=f"ask{here.asks_count}"))


async def test_looks_come_in_again_after_placement_has_failed(autojump_clock):
    async with bench() as here:
        hears = hearing(here, here.actor.ref)
        hears.sampled(A, sample(A, 1.0))
        here.actor.ref.mailbox.reset("it failed")
        again = PlacementActor(here.world, here.books, instance_ref=here.instance_ref, first=False)
        async with trio.open_nursery() as nursery:
            await nursery.start(again.run)
            here.actor = again
            hears = hearing(here, again.ref)
            hears.sampled(A, sample(A, 2.0, full=True))
            one = await here.reserve(0, 4, A)
            assert granted(here.told(one)) == []
            nursery.cancel_scope.cancel()


def stored(*puts, removes=(), deleted=None) -> tuple[Committed, ...]:
    return (Committed(change=Change(puts=puts, removes=removes, deleted=deleted), events=()),)


def looks(*launches: LaunchId) -> HostSample:
    """A heartbeat that tells of these engines."""
    seen = EngineSample(at_s=1.0, running=2, waiting=1)
    return HostSample(memory=None, engines=dict.fromkeys(launches, seen))


def loaded(directory: Directory) -> list[int]:
    """Indices of the instances whose engine's load is known."""
    gates = directory.admission(making.DEPLOYMENT).gates
    return [index for index, gate in sorted(gates.items()) if gate.load is not None]


OLD, NEW, OTHER = (LaunchId(letter + "0" * 25) for letter in "ABC")


def ready(index: int, launch: LaunchId):
    record = making.record(launch, index)
    return making.instance(InstanceState.READY, index, launch_id=launch, launch=record)


@pytest.mark.parametrize(
    ("later", "known"),
    [
        ((), [0, 1]),
        (stored(ready(0, NEW)), [1]),
        (stored(making.instance(InstanceState.STOPPED)), [1]),
        (stored(removes=(InstanceId(making.DEPLOYMENT, 1),)), [0]),
        (stored(deleted=making.DEPLOYMENT), []),
    ],
)
async def test_a_look_at_an_engine_counts_for_whose_it_is_now(later, known, autojump_clock):
    async with bench() as here:
        directory = here.world.directory
        directory.apply(stored(making.deployment(2), ready(0, OLD), ready(1, OTHER)))
        directory.apply(later)

        hearing(here, here.actor.ref).sampled(A, looks(OLD, OTHER))

        assert loaded(directory) == known


async def test_an_instance_that_changes_keeps_its_launch(autojump_clock):
    async with bench() as here:
        directory = here.world.directory
        directory.apply(stored(making.deployment(2), ready(0, OLD)))
        for state in (InstanceState.PARKED, InstanceState.READY):
            directory.apply(stored(attrs.evolve(ready(0, OLD), state=state)))

        assert directory.launches == {OLD: InstanceId(making.DEPLOYMENT, 0)}
