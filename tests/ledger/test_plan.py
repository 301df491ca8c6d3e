"""Plans fit, move nobody who must stay, and as few as can be."""

from __future__ import annotations

import itertools

import attrs
import pytest
from hypothesis import given, settings

from capyctl.domain.ids import InstanceId
from capyctl.domain.specs import Phase
from capyctl.domain.units import GIB
from capyctl.ledger.ledger import Entry, Ledger, free, hold, lacks, open_ledger, shortage
from capyctl.ledger.places import Hosts, Wanted
from capyctl.ledger.plan import Fits, FitsAfter, NoRoom, commit, plan
from capyctl.ledger.victims import Occupant, after_park, may_go
from tests.ledger.machines import CARD_GIB, HOST, Scene, charges, id_of, places, scenes, shape_of

CARD = shape_of(1).gpus[0].domain


def planned(scene: Scene, **changes):
    return plan(scene.ledger, scene.wanted, scene.occupants, may_evict=True, **changes)


def after(scene: Scene, found: FitsAfter) -> Ledger:
    """The ledger once every victim has done what the plan says."""
    ledger = scene.ledger
    for victim in found.victims:
        if victim.stop:
            ledger = free(ledger, victim.instance)
        else:
            entry = ledger.entries[victim.instance]
            ledger = hold(ledger, after_park(entry, scene.occupants[victim.instance]))
    return ledger


@pytest.mark.slow
@settings(max_examples=100)
@given(scenes())
def test_what_is_planned_fits_when_it_is_done(scene):
    found = planned(scene)
    if isinstance(found, Fits):
        booked = commit(scene.ledger, scene.wanted, found, ask="a")
        assert booked.entries[scene.wanted.instance].ask == "a"
    elif isinstance(found, FitsAfter):
        freed = after(scene, found)
        needed = found.candidate.charges.of(scene.wanted.phase)
        assert shortage(freed, HOST, needed) is None


@pytest.mark.slow
@settings(max_examples=100)
@given(scenes())
def test_nobody_is_moved_without_need_or_who_must_stay(scene):
    found = planned(scene)
    fits = any(
        shortage(scene.ledger, HOST, c.charges.cold) is None for c in scene.wanted.candidates
    )

    assert isinstance(found, Fits) is fits
    if isinstance(found, FitsAfter):
        victims = [scene.occupants[v.instance] for v in found.victims]
        assert victims
        for victim in victims:
            assert victim.state in ("ready", "parked"), "it is busy coming or going"
            assert not victim.protected, "it is warm or explicit"
            assert not victim.waiting, "requests wait for it"
        assert len({v.instance for v in victims}) == len(victims)


def enough(scene: Scene, victims: tuple[Occupant, ...], candidate) -> bool:
    """Whether it fits once these are stopped, which frees the most that can be."""
    ledger = scene.ledger
    for victim in victims:
        ledger = free(ledger, victim.instance)
    return shortage(ledger, HOST, candidate.charges.of(scene.wanted.phase)) is None


@pytest.mark.slow
@settings(max_examples=100)
@given(scenes())
def test_no_smaller_set_of_victims_would_do(scene):
    found = planned(scene)
    if not isinstance(found, FitsAfter):
        return
    movable = [o for o in scene.occupants.values() if may_go(o)]
    for size in range(len(found.victims)):
        for fewer in itertools.combinations(movable, size):
            assert not any(enough(scene, fewer, c) for c in scene.wanted.candidates)


@pytest.mark.slow
@settings(max_examples=100)
@given(scenes())
def test_of_single_victims_the_one_served_elsewhere_then_the_least_recently_used(scene):
    found = planned(scene)
    if not isinstance(found, FitsAfter) or len(found.victims) != 1:
        return
    chosen = scene.occupants[found.victims[0].instance]
    others = [
        o
        for o in scene.occupants.values()
        if may_go(o) and any(enough(scene, (o,), c) for c in scene.wanted.candidates)
    ]

    def rank(o):
        return (not o.ready_elsewhere, o.last_used_s)

    assert rank(chosen) == min(rank(o) for o in others)


@pytest.mark.slow
@settings(max_examples=100)
@given(scenes())
def test_victims_are_stopped_only_where_parking_will_not_do(scene):
    found = planned(scene)
    if not isinstance(found, FitsAfter):
        return
    for victim in found.victims:
        occupant = scene.occupants[victim.instance]
        if not victim.stop:
            assert occupant.parks
            assert occupant.state == "ready"
        alone = occupant.state == "ready" and not occupant.ready_elsewhere
        assert victim.windowed is alone


@pytest.mark.slow
@settings(max_examples=100)
@given(scenes())
def test_no_room_is_hopeless_only_where_no_eviction_could_ever_help(scene):
    """What is in the books, and nothing is known of, may leave as well."""
    found = planned(scene)
    if not isinstance(found, NoRoom):
        return
    bare = scene.ledger
    for id in scene.ledger.entries:
        known = scene.occupants.get(id)
        if known is None or not known.protected:
            bare = free(bare, id)
    ever = any(shortage(bare, HOST, c.charges.cold) is None for c in scene.wanted.candidates)

    assert found.hopeless is not ever
    assert found.short is not None


@pytest.mark.slow
@settings(max_examples=100)
@given(scenes())
def test_lacks_and_shortage_are_one_rule(scene):
    for candidate in scene.wanted.candidates:
        needed = candidate.charges.of(scene.wanted.phase)
        short = shortage(scene.ledger, HOST, needed)
        found = lacks(scene.ledger, HOST, needed)

        assert (short is None) is (found == {})
        if short is not None:
            assert found[short.domain.name] >= short.need_bytes - short.available_bytes > 0


@pytest.mark.slow
@settings(max_examples=100)
@given(scenes())
def test_a_plan_is_the_same_every_time(scene):
    shuffled = attrs.evolve(scene, occupants=dict(reversed(scene.occupants.items())))

    assert planned(scene) == planned(shuffled)


def one_card(*sizes_gib: int) -> tuple[Ledger, dict]:
    ledger = open_ledger((shape_of(1),))
    occupants = {}
    for number, gib in enumerate(sizes_gib):
        figures = charges(CARD, gib)
        entry = Entry(instance=id_of(number), host=HOST, phase=Phase.READY, charges=figures.ready)
        ledger = hold(ledger, entry)
        occupants[id_of(number)] = Occupant(
            instance=id_of(number),
            state="ready",
            parks=True,
            protected=False,
            waiting=False,
            ready_elsewhere=False,
            last_used_s=0.0,
            parked=figures.parked,
        )
    return ledger, occupants


def test_a_plan_against_an_older_ledger_is_not_booked():
    ledger, _ = one_card(10)
    wanted = Wanted(instance=id_of(99), phase=Phase.COLD, candidates=places(shape_of(1), 10))
    found = plan(ledger, wanted, {}, may_evict=False)

    assert commit(free(ledger, id_of(0)), wanted, found, ask="a") is None


def test_a_promise_is_kept_free_and_evicts_nobody():
    ledger, occupants = one_card(6)
    wanted = Wanted(instance=id_of(99), phase=Phase.COLD, candidates=places(shape_of(1), 10))
    promise = Entry(instance=id_of(98), host=HOST, phase=Phase.COLD, charges=charges(CARD, 10).cold)

    assert isinstance(plan(ledger, wanted, occupants, may_evict=True), Fits)
    assert isinstance(
        plan(ledger, wanted, occupants, may_evict=True, hosts=Hosts(promised={HOST: promise})),
        NoRoom,
    )


def test_a_wake_gives_up_its_own_parked_charge():
    """It is parked with 1 GiB of the 24, and needs all of them awake."""
    ledger = open_ledger((shape_of(1),))
    figures = charges(CARD, CARD_GIB)
    mine = Entry(instance=id_of(0), host=HOST, phase=Phase.PARKED, charges=figures.parked)
    wanted = Wanted(instance=id_of(0), phase=Phase.WAKE, candidates=places(shape_of(1), CARD_GIB))

    assert isinstance(plan(hold(ledger, mine), wanted, {}, may_evict=False), Fits)


def test_many_small_victims_are_found_past_the_bound():
    """Sixteen of 1.5 GiB are in the way of a model that takes all: every set is too many to try."""
    ledger, occupants = one_card(*[1] * 16)
    wanted = Wanted(instance=id_of(99), phase=Phase.COLD, candidates=places(shape_of(1), CARD_GIB))
    stopped = {id: attrs.evolve(o, parks=False) for id, o in occupants.items()}

    found = plan(ledger, wanted, stopped, may_evict=True)

    assert isinstance(found, FitsAfter)
    assert len(found.victims) == 16


def test_what_others_hold_beyond_the_reserve_counts_as_taken():
    ledger, _ = one_card()
    wanted = Wanted(instance=id_of(99), phase=Phase.COLD, candidates=places(shape_of(1), 20))
    pool = (HOST, CARD)

    within = plan(ledger, wanted, {}, may_evict=False, foreign={pool: 5 * GIB})
    beyond = plan(ledger, wanted, {}, may_evict=False, foreign={pool: 5 * GIB + 1})

    assert isinstance(within, Fits)
    assert isinstance(beyond, NoRoom)
    assert not beyond.hopeless, "a program that is not ours may end"


@pytest.mark.parametrize(("gib", "hopeless"), [(CARD_GIB, False), (CARD_GIB + 1, True)])
def test_larger_than_the_card_is_hopeless(gib, hopeless):
    ledger, occupants = one_card(10)
    held = {id: attrs.evolve(o, waiting=True) for id, o in occupants.items()}
    wanted = Wanted(instance=id_of(99), phase=Phase.COLD, candidates=places(shape_of(1), gib))

    assert plan(ledger, wanted, held, may_evict=True).hopeless is hopeless


def test_what_nothing_was_told_of_may_still_leave():
    """After a restart the books are there before the deployments have said who may be moved."""
    ledger, _ = one_card(20)
    wanted = Wanted(instance=id_of(99), phase=Phase.COLD, candidates=places(shape_of(1), 20))

    assert not plan(ledger, wanted, {}, may_evict=True).hopeless


def test_a_model_does_not_wait_for_its_own_parked_copies():
    """Requests wait for it, so nothing of it may go; but what is parked of it serves nobody."""
    ledger, _ = one_card()
    figures = charges(CARD, 20, parked_gib=6)
    sibling = InstanceId(id_of(99).deployment, 1)
    parked = Entry(instance=sibling, host=HOST, phase=Phase.PARKED, charges=figures.parked)
    known = Occupant(
        instance=sibling,
        state="parked",
        parks=True,
        protected=True,
        waiting=True,
        ready_elsewhere=False,
        last_used_s=0.0,
        parked=figures.parked,
    )
    wanted = Wanted(instance=id_of(99), phase=Phase.COLD, candidates=places(shape_of(1), 20))

    found = plan(hold(ledger, parked), wanted, {sibling: known}, may_evict=True)
    other = attrs.evolve(known, state="ready")

    assert [v.instance for v in found.victims] == [sibling]
    kept = plan(hold(ledger, parked), wanted, {sibling: other}, may_evict=True)
    assert isinstance(kept, NoRoom)


def test_a_model_does_not_move_its_own_ready_copy_for_another():
    """It would serve no more than before, and not at all meanwhile."""
    ledger, _ = one_card()
    sibling = InstanceId(id_of(99).deployment, 1)
    figures = charges(CARD, 20)
    entry = Entry(instance=sibling, host=HOST, phase=Phase.READY, charges=figures.ready)
    known = Occupant(
        instance=sibling,
        state="ready",
        parks=True,
        protected=False,
        waiting=False,
        ready_elsewhere=False,
        last_used_s=0.0,
        parked=figures.parked,
    )
    wanted = Wanted(
        instance=id_of(99), phase=Phase.COLD, candidates=places(shape_of(1), 20), max_per_host=1
    )
    held = hold(ledger, entry)

    assert isinstance(plan(held, wanted, {sibling: known}, may_evict=True), NoRoom)
    alone = attrs.evolve(wanted, instance=id_of(98))
    assert isinstance(plan(held, alone, {sibling: known}, may_evict=True), FitsAfter)
