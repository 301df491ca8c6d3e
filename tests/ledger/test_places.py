"""Of several machines: none that is closed, none beyond its count, the best of the others."""

from __future__ import annotations

import random

import attrs
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from capyctl.domain.ids import DeploymentId, HostId, InstanceId
from capyctl.domain.specs import Phase, Strategy
from capyctl.ledger.ledger import free, hold, open_ledger, shortage, with_domains
from capyctl.ledger.places import DeviceTaken, HostFull, Hosts, Wanted
from capyctl.ledger.plan import Fits, FitsAfter, NoRoom, plan
from capyctl.ledger.victims import Occupant
from tests.ledger.fleets import MINE, Fleet, entry_on, fleets, machine, places_on
from tests.ledger.machines import CARD_GIB

NEW = InstanceId(MINE, 99)
OTHER = DeploymentId("X")
A, B, C = (machine(name) for name in "abc")


def planned(fleet: Fleet, *, may_evict: bool = True, **changes):
    fleet = attrs.evolve(fleet, **changes)
    return plan(fleet.ledger, fleet.wanted, fleet.occupants, may_evict=may_evict, hosts=fleet.hosts)


def count_on(fleet: Fleet, host: HostId) -> int:
    return sum(
        e.host == host and e.instance.deployment == MINE for e in fleet.ledger.entries.values()
    )


def may_be(fleet: Fleet, candidate) -> bool:
    """The rules of one place, said once more and another way."""
    most = fleet.wanted.max_per_host
    if candidate.host in fleet.hosts.closed:
        return False
    if most is not None and count_on(fleet, candidate.host) >= most:
        return False
    for entry in fleet.ledger.entries.values():
        same = entry.host == candidate.host and entry.gpu == candidate.gpu
        if same and entry.phase is not Phase.PARKED and (entry.exclusive or candidate.exclusive):
            return False
    return shortage(fleet.ledger, candidate.host, candidate.charges.cold) is None


@pytest.mark.slow
@settings(max_examples=150)
@given(fleets())
def test_it_goes_where_it_may_be_and_nowhere_else(fleet):
    found = planned(fleet, may_evict=False)
    fitting = [c for c in fleet.wanted.candidates if may_be(fleet, c)]

    assert isinstance(found, Fits) is bool(fitting)
    if isinstance(found, Fits):
        assert found.candidate in fitting


@pytest.mark.slow
@settings(max_examples=150)
@given(fleets())
def test_spread_goes_where_fewest_are_and_pack_where_most_are(fleet):
    found = planned(fleet, may_evict=False)
    if not isinstance(found, Fits):
        return
    counts = [count_on(fleet, c.host) for c in fleet.wanted.candidates if may_be(fleet, c)]
    best = min if fleet.wanted.strategy is Strategy.SPREAD else max

    assert count_on(fleet, found.candidate.host) == best(counts)


@pytest.mark.slow
@settings(max_examples=150)
@given(fleets())
def test_where_it_was_before_wins_where_the_count_is_the_same(fleet):
    found = planned(fleet, may_evict=False)
    if not isinstance(found, Fits):
        return
    count = count_on(fleet, found.candidate.host)
    last = [
        c
        for c in fleet.wanted.candidates
        if may_be(fleet, c)
        and (c.host, c.gpu) == (fleet.wanted.last_host, fleet.wanted.last_gpu)
        and count_on(fleet, c.host) == count
    ]

    assert not last or found.candidate == last[0]


@pytest.mark.slow
@settings(max_examples=150)
@given(fleets(), st.sets(st.sampled_from([HostId(f"host{n}") for n in range(4)])))
def test_others_are_moved_on_the_one_machine_that_needs_it(fleet, switching):
    hosts = attrs.evolve(fleet.hosts, switching=switching)
    found = planned(fleet, hosts=hosts)
    if not isinstance(found, FitsAfter):
        return
    host = found.candidate.host

    assert host not in fleet.hosts.closed
    assert host not in switching
    assert {fleet.ledger.entries[v.instance].host for v in found.victims} == {host}
    after = fleet.ledger
    for victim in found.victims:
        after = free(after, victim.instance)
    assert shortage(after, host, found.candidate.charges.cold) is None


@pytest.mark.slow
@settings(max_examples=150)
@given(fleets(), st.randoms(use_true_random=False))
def test_the_order_in_which_machines_are_known_changes_nothing(fleet, chance: random.Random):
    candidates = list(fleet.wanted.candidates)
    chance.shuffle(candidates)
    shuffled = attrs.evolve(fleet.wanted, candidates=tuple(candidates))

    assert planned(fleet, wanted=shuffled) == planned(fleet)


@pytest.mark.slow
@settings(max_examples=150)
@given(fleets())
def test_each_machine_that_is_out_of_question_is_named_once(fleet):
    found = planned(fleet)
    if not isinstance(found, NoRoom):
        return
    places = {c.host for c in fleet.wanted.candidates}
    open_ones = [one.host for one in found.obstacles]

    assert {host for host, _ in found.closed} == places & set(fleet.hosts.closed)
    assert sorted(open_ones) == sorted(places - set(fleet.hosts.closed))
    assert found.ineligible is (not open_ones)


@pytest.mark.slow
@settings(max_examples=100)
@given(fleets())
def test_each_machines_books_are_what_is_charged_there(fleet):
    for host in {host for host, _ in fleet.ledger.pools}:
        there = {id: e for id, e in fleet.ledger.entries.items() if e.host == host}

        assert fleet.ledger.entries_on(host) == there


def fleet_of(*shapes, gib=4, **changes) -> Fleet:
    candidates = tuple(place for shape in shapes for place in places_on(shape, gib))
    wanted = Wanted(instance=NEW, phase=Phase.COLD, candidates=candidates, **changes)
    return Fleet(ledger=open_ledger(shapes), occupants={}, wanted=wanted, hosts=Hosts())


def with_held(fleet: Fleet, *held, deployment=OTHER, **changes) -> Fleet:
    """``held``: machine, GiB."""
    ledger = fleet.ledger
    for number, (shape, gib) in enumerate(held):
        id = InstanceId(deployment, len(ledger.entries) + number)
        place = places_on(shape, gib, exclusive=changes.get("exclusive", False))[0]
        ledger = hold(ledger, entry_on(place, id, changes.get("phase", Phase.READY)))
    return attrs.evolve(fleet, ledger=ledger)


def test_equal_machines_are_taken_by_id():
    assert planned(fleet_of(B, A, C)).candidate.host == "a"


def test_spread_takes_the_emptier_machine_and_pack_the_fuller_one():
    spread = with_held(fleet_of(A, B), (A, 8))
    pack = with_held(fleet_of(A, B, strategy=Strategy.PACK), (B, 8))

    assert planned(spread).candidate.host == "b"
    assert planned(pack).candidate.host == "b"


def test_the_number_of_instances_comes_before_the_room():
    spread = with_held(with_held(fleet_of(A, B), (A, 1), deployment=MINE), (B, 16))

    assert planned(spread).candidate.host == "b"


def test_devices_are_counted_not_spelled():
    """gpu2 comes before gpu10."""
    big = machine("big", 11)
    fleet = with_held(fleet_of(big), *[(big, 1)])
    for card in range(11):
        if card not in (2, 10):
            place = places_on(big, CARD_GIB - 1)[card]
            taken = entry_on(place, InstanceId(DeploymentId("Y"), card))
            if card:
                fleet = attrs.evolve(fleet, ledger=hold(fleet.ledger, taken))

    assert planned(fleet).candidate.gpu == "gpu2"


@pytest.mark.parametrize(("most", "host"), [(None, "a"), (2, "a"), (1, "b")])
def test_no_more_than_so_many_on_a_machine(most, host):
    pack = fleet_of(A, B, strategy=Strategy.PACK, max_per_host=most)

    assert planned(with_held(pack, (A, 1), deployment=MINE)).candidate.host == host


def test_when_every_machine_has_its_count_that_is_said():
    full = fleet_of(A, B, max_per_host=1)
    full = with_held(full, (A, 1), (B, 1), deployment=MINE)

    found = planned(full)

    assert found.obstacles == (
        HostFull(host=HostId("a"), count=1),
        HostFull(host=HostId("b"), count=1),
    )
    assert not found.ineligible


def test_a_wake_is_of_one_that_counts_already():
    wake = fleet_of(A, max_per_host=1)
    wake = attrs.evolve(wake, wanted=attrs.evolve(wake.wanted, phase=Phase.WAKE))
    wake = with_held(wake, (A, 1), deployment=MINE)

    assert isinstance(planned(wake), Fits)


def test_one_that_is_promised_counts_with_its_siblings():
    promise = entry_on(places_on(A, 1)[0], InstanceId(MINE, 1), Phase.COLD)
    fleet = fleet_of(A, B, max_per_host=1)

    found = planned(fleet, hosts=Hosts(promised={HostId("a"): promise}))

    assert found.candidate.host == "b"


def test_a_promise_on_one_machine_keeps_nobody_from_another():
    promise = entry_on(places_on(A, CARD_GIB)[0], InstanceId(DeploymentId("Y"), 1), Phase.COLD)
    fleet = fleet_of(A, B, gib=20)

    found = planned(fleet, hosts=Hosts(promised={HostId("a"): promise}))

    assert found.candidate.host == "b"


@pytest.mark.parametrize("theirs", [True, False])
@pytest.mark.parametrize("ours", [True, False])
def test_a_device_that_is_not_shared_takes_one_at_a_time(theirs, ours):
    fleet = with_held(fleet_of(A), (A, 1), exclusive=theirs)
    places = places_on(A, 4, exclusive=ours)

    found = planned(fleet, may_evict=False, wanted=attrs.evolve(fleet.wanted, candidates=places))

    assert isinstance(found, Fits) is not (theirs or ours)
    if theirs or ours:
        (taken,) = found.obstacles
        assert isinstance(taken, DeviceTaken)
        assert not found.hopeless


def test_what_is_parked_shares_a_device_with_anybody():
    fleet = with_held(fleet_of(A), (A, 1), exclusive=True, phase=Phase.PARKED)

    assert isinstance(planned(fleet), Fits)


def test_a_model_makes_way_on_a_device_that_is_not_shared():
    fleet = with_held(fleet_of(A), (A, 1), exclusive=True)
    (id,) = fleet.ledger.entries
    victim = Occupant(
        instance=id,
        state="ready",
        parks=True,
        protected=False,
        waiting=False,
        ready_elsewhere=False,
        last_used_s=0.0,
        parked=places_on(A, 1)[0].charges.parked,
    )

    found = planned(fleet, occupants={id: victim})

    assert [(v.instance, v.stop) for v in found.victims] == [(id, False)]


def test_a_machine_that_may_come_back_is_no_reason_to_give_up():
    fleet = fleet_of(A, B, gib=20)
    fleet = with_held(fleet, (A, 20))
    (id,) = fleet.ledger.entries
    stays = Occupant(
        instance=id,
        state="ready",
        parks=False,
        protected=True,
        waiting=False,
        ready_elsewhere=False,
        last_used_s=0.0,
        parked={},
    )

    closed = planned(fleet, occupants={id: stays}, hosts=Hosts(closed={HostId("b"): "offline"}))

    assert not closed.hopeless
    assert closed.closed == ((HostId("b"), "offline"),)


# -- pools that come later -------------------------------------------------------------------


def test_what_is_held_on_a_machine_that_was_not_known_yet_stays_charged():
    held = entry_on(places_on(A, CARD_GIB)[0], InstanceId(DeploymentId("X"), 0))
    ledger = hold(open_ledger(()), held)

    known = with_domains(ledger, A.host, A.domains)

    assert known.charged_bytes((A.host, A.gpus[0].domain)) == held.charges[A.gpus[0].domain]
    wanted = Wanted(instance=NEW, phase=Phase.COLD, candidates=places_on(A, 1))
    assert isinstance(plan(known, wanted, {}, may_evict=False), NoRoom)


def test_limits_that_were_lowered_below_what_is_held_fit_nothing_more():
    held = entry_on(places_on(A, 20)[0], InstanceId(DeploymentId("X"), 0))
    ledger = hold(open_ledger((A,)), held)
    lower = tuple(
        attrs.evolve(d, managed_limit_bytes=d.managed_limit_bytes // 2) for d in A.domains
    )

    lowered = with_domains(ledger, A.host, lower)
    freed = with_domains(free(lowered, held.instance), A.host, lower)

    wanted = Wanted(instance=NEW, phase=Phase.COLD, candidates=places_on(A, 1))
    assert isinstance(plan(lowered, wanted, {}, may_evict=False), NoRoom)
    assert isinstance(plan(freed, wanted, {}, may_evict=False), Fits)


def test_the_same_pools_again_are_no_change():
    ledger = open_ledger((A,))

    assert with_domains(ledger, A.host, A.domains) is ledger


@pytest.mark.parametrize(("most", "stops"), [(None, False), (1, False), (0, True)])
def test_a_victim_is_stopped_where_no_more_may_be_parked(most, stops):
    fleet = with_held(fleet_of(A, gib=20), (A, 20))
    (id,) = fleet.ledger.entries
    victim = Occupant(
        instance=id,
        state="ready",
        parks=True,
        protected=False,
        waiting=False,
        ready_elsewhere=False,
        last_used_s=0.0,
        parked=places_on(A, 20)[0].charges.parked,
    )
    hosts = Hosts(parked_max={} if most is None else {A.host: most})

    found = planned(fleet, occupants={id: victim}, hosts=hosts)

    assert [(v.stop, v.why) for v in found.victims] == [
        (stops, "no room to park" if stops else None)
    ]
