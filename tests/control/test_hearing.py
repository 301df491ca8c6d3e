"""What is heard of hosts, however fast it comes and however slow the others are."""

import trio

from capyctl.contracts.hosts import HostSample
from capyctl.control.hearing import Hearing
from capyctl.control.placement import PlacementActor
from capyctl.domain.devices import MemorySample
from capyctl.messages import placement as m
from tests.control.test_placement_hosts import SHAPES, A, B, bench, granted

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
        for at_s in range(2 * here.actor.capacity):
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
