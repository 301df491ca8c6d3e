"""Every message in every state is decided: an edge, ignored for a reason, or impossible for one."""

from __future__ import annotations

import attrs
import pytest

from capyctl.domain.errors import IllegalTransition
from capyctl.domain.ids import HostId, LaunchId
from capyctl.domain.operations import OperationKind as K
from capyctl.domain.operations import OperationState as O
from capyctl.domain.units import GIB
from capyctl.machines import instance as e
from capyctl.machines.instance import Failure, Instance
from capyctl.machines.instance import InstanceState as S
from capyctl.machines.instance_table import TABLE, step
from capyctl.machines.table import Edge, Ignored
from capyctl.messages import instance as m
from capyctl.messages.instance import Cause, InstanceMessage
from tests.machines import making
from tests.machines.making import (
    ASK,
    LAUNCH,
    back,
    evict,
    instance,
    lost,
    moment,
    park,
    record,
    start,
    stop,
    suspended,
)

MESSAGES = InstanceMessage.__args__

ABOUT_A_LAUNCH = (
    m.LaunchPrepared,
    m.LaunchNotPrepared,
    m.LaunchDiscarded,
    m.EngineAnswered,
    m.EngineUnfit,
    m.StepTimedOut,
    m.EngineExited,
    m.GateEmpty,
    m.DrainTimedOut,
    m.EngineParked,
    m.EngineNotParked,
    m.EngineWoken,
    m.EngineBroken,
    m.EngineProved,
    m.GroupGone,
    m.EndUnproven,
)
NO_LAUNCH = (S.STOPPED, S.FAILED, S.QUEUED)
ANSWERS = (m.Reserved, m.ReserveWaits, m.ReserveRefused)
ROOM = (m.ParkRoom, m.NoParkRoom)
IN_LINE = (S.QUEUED, S.WAKE_QUEUED)
STARTS = (m.LaunchPrepared, m.LaunchNotPrepared)
RUNS = frozenset(S) - {*NO_LAUNCH, S.STARTING, S.STOPPING}
DOWN = (S.STOPPING, S.CLEANING, S.UNCERTAIN)


def impossible() -> dict[tuple[S, type], str]:
    """Pairs that cannot come, each with its reason."""
    found: dict[tuple[S, type], str] = {}

    def never(states, messages, why):
        for state in states:
            for message in messages:
                found.setdefault((state, message), why)

    never(S, (m.LeaseUnproven,), "the actor's own business: it settles slots, not states")
    never(NO_LAUNCH, ABOUT_A_LAUNCH, "there is no launch, so it is about an earlier one")
    never(set(S) - set(IN_LINE), ANSWERS, "nothing is asked, so it answers an earlier request")
    never(set(S) - {S.PARK_DRAIN}, ROOM, "only a park asks, and forgets it as it moves on")
    never(RUNS, STARTS, "its latch was prepared before it ran")
    never(set(S) - {S.STOPPING}, (m.LaunchDiscarded,), "only a stop discards a latch")
    never(set(S) - set(DOWN), (m.GroupGone, m.EndUnproven), "nothing was told to end")
    never((S.READY,), (m.EngineAnswered, m.EngineUnfit), "the probe answered once already")
    never((S.READY,), (m.EngineProved,), "the proof answered once already")
    never((S.READY,), (m.EngineWoken, m.EngineBroken), "the wake or park answered once already")
    never((S.READY,), (m.EngineParked, m.EngineNotParked), "the park answered once already")
    never((S.READY, S.PARK_DRAIN, S.STOP_DRAIN), (m.StepTimedOut,), "no step is under way")
    step_answers = (
        m.EngineAnswered,
        m.EngineUnfit,
        m.EngineProved,
        m.EngineParked,
        m.EngineNotParked,
        m.EngineWoken,
        m.EngineBroken,
    )
    never((S.PARK_DRAIN, S.STOP_DRAIN), step_answers, "a drain tells the engine nothing")
    probe = (m.EngineAnswered, m.EngineUnfit, m.EngineProved)
    never((S.PARKING, S.PARKED, S.WAKE_QUEUED, S.WAKING), probe, "it was ready before")
    parks = (m.EngineParked, m.EngineNotParked, m.EngineBroken, m.StepTimedOut)
    never((S.PARKED, S.WAKE_QUEUED), parks, "the park answered once already")
    never((S.WAKING,), (m.EngineParked, m.EngineNotParked), "the park answered once already")
    never((S.PARKING, S.PARKED, S.WAKE_QUEUED), (m.EngineWoken,), "nothing was told to wake")
    other = (m.EngineProved, m.EngineParked, m.EngineNotParked, m.EngineWoken, m.EngineBroken)
    never((S.STARTING,), other, "the engine was never ready")
    never((S.STARTING,), (m.GateEmpty, m.DrainTimedOut), "no request was ever let in")
    late = (m.EngineAnswered, m.EngineParked, m.EngineNotParked, m.EngineWoken, m.EngineBroken)
    never((S.RECONCILING,), late, "the tasks of the earlier daemon are no more")
    return found


IMPOSSIBLE = impossible()
OTHER_HOST = HostId("another")


@pytest.mark.parametrize("message", MESSAGES, ids=lambda one: one.__name__)
@pytest.mark.parametrize("state", list(S), ids=lambda one: one.value)
def test_every_pair_is_decided_once(state, message):
    on_the_table = message in TABLE[state]

    assert on_the_table != ((state, message) in IMPOSSIBLE)


def test_what_is_ignored_says_why():
    whys = [x.why for row in TABLE.values() for x in row.values() if isinstance(x, Ignored)]

    assert all(len(why) > 10 for why in whys)


def test_an_event_without_an_edge_raises_and_changes_nothing():
    with pytest.raises(IllegalTransition, match="EngineWoken in starting"):
        step(instance(S.STARTING), m.EngineWoken(launch=LAUNCH), moment())


@pytest.mark.parametrize("state", list(S), ids=lambda one: one.value)
@pytest.mark.parametrize(
    "message",
    [
        m.EngineExited(launch=LaunchId("earlier"), how="exit code 1"),
        m.GroupGone(launch=LaunchId("earlier")),
        m.LaunchPrepared(record=record(LaunchId("earlier"))),
        m.ReserveWaits(ask="earlier", reason="full"),
        m.Reserved(ask="earlier", candidate=making.CANDIDATE),
        suspended(OTHER_HOST),
        lost(OTHER_HOST),
        back(OTHER_HOST),
    ],
    ids=lambda one: type(one).__name__,
)
def test_late_messages_change_nothing(state, message):
    """Rule 1: about an earlier launch or another host, or an answer to an earlier request."""
    one = instance(state)

    done = step(one, message, moment())

    assert done.data == one
    assert done.effects == ()
    assert done.events == ()


@pytest.mark.parametrize("state", [s for s in S if isinstance(TABLE[s].get(m.Stop), Edge)])
def test_a_stop_told_twice_counts_once(state):
    told = stop()
    once = step(instance(state), told, moment()).data

    if once.operation is not None:
        assert step(once, told, moment()).data == once


# -- what the edges do, one sentence each ----------------------------------------------------


def kinds(done) -> list[str]:
    return [event.kind for event in done.events]


def effects(done, *types) -> list[object]:
    return [effect for effect in done.effects if isinstance(effect, types)]


def outcomes(done) -> dict[str, O]:
    return {operation.id: operation.state for operation in done.operations}


def test_a_stop_of_a_ready_instance_gives_exactly_three_events():
    """One is told by the deployment (accepted), two here."""
    told = stop()
    draining = step(instance(S.READY), told, moment())
    ending = step(draining.data, m.GateEmpty(launch=LAUNCH), moment())
    gone = step(ending.data, m.GroupGone(launch=LAUNCH), moment())

    assert kinds(draining) + kinds(ending) + kinds(gone) == [
        "ordinary_cleanup_armed",
        "ordinary_cleanup_completed",
    ]
    assert outcomes(gone) == {told.operation.id: O.SUCCEEDED}
    assert gone.data.state is S.STOPPED


@pytest.mark.parametrize("state", [S.PARK_DRAIN, S.PARKING])
def test_a_start_while_parking_wakes_once_parked(state):
    waits = start(K.RESTORE)
    one = step(instance(state), waits, moment()).data
    if state is S.PARK_DRAIN:
        one = step(one, m.GateEmpty(launch=LAUNCH), moment()).data

    parked = step(one, m.EngineParked(launch=LAUNCH, residue={}), moment())
    woken = step(parked.data, waits, moment())

    assert parked.data.state is S.PARKED
    assert effects(parked, e.Begin) == [e.Begin(waits)]
    assert woken.data.state is S.WAKE_QUEUED
    assert woken.data.then is None
    assert [(x.payload["from"], x.payload["to"]) for x in woken.events] == [("parked", "waking")]


@pytest.mark.parametrize("state", [S.PARK_DRAIN, S.PARKING, S.RECONCILING])
def test_a_stop_drops_the_start_that_waited(state):
    """The stop came after it: nothing begins once it is down."""
    waits = start(K.RESTORE)
    one = step(instance(state), waits, moment()).data

    done = step(one, stop(), moment())

    assert done.data.then is None
    assert outcomes(done)[waits.operation.id] is O.FAILED


def test_a_start_that_waited_for_a_proof_succeeds_with_it():
    waits = start()
    one = step(instance(S.RECONCILING), waits, moment()).data

    done = step(one, m.EngineProved(launch=LAUNCH), moment())

    assert done.data.state is S.READY
    assert done.data.then is None
    assert outcomes(done) == {waits.operation.id: O.SUCCEEDED}


def test_the_same_start_told_again_is_not_superseded():
    waits = start(K.RESTORE)
    one = step(instance(S.PARKING), waits, moment()).data

    again = step(one, waits, moment())

    assert again.data == one
    assert again.operations == ()


def test_a_second_gate_report_does_not_break_a_park():
    """The gate emptied twice: before a deadline reopened it, and after it closed again."""
    parking = step(instance(S.PARK_DRAIN), m.GateEmpty(launch=LAUNCH), moment()).data

    assert step(parking, m.GateEmpty(launch=LAUNCH), moment()).data == parking


def draining(told) -> Instance:
    """Told to park, and placement has room for it."""
    one = step(instance(S.READY, operation=None), told, moment()).data
    return step(one, m.ParkRoom(ask=one.ask), moment()).data


def test_a_switch_stops_what_refuses_to_park():
    one = draining(evict())
    one = step(one, m.GateEmpty(launch=LAUNCH), moment()).data

    refused = step(one, m.EngineNotParked(launch=LAUNCH, reason="busy"), moment())
    gone = step(refused.data, m.GroupGone(launch=LAUNCH), moment())

    assert refused.data.state is S.STOPPING
    assert effects(refused, e.EndEngine)
    assert not effects(refused, e.EvictionOver)
    assert gone.data.state is S.STOPPED
    assert [o.error_code for o in gone.operations] == ["park_refused"]


def test_an_operators_park_that_is_refused_serves_on():
    one = draining(park())
    one = step(one, m.GateEmpty(launch=LAUNCH), moment()).data

    refused = step(one, m.EngineNotParked(launch=LAUNCH, reason="busy"), moment())

    assert refused.data.state is S.READY
    assert effects(refused, e.ReopenGate)


def test_a_park_waits_for_room_before_it_drains():
    asked = step(instance(S.READY, operation=None), park(), moment())
    granted = step(asked.data, m.ParkRoom(ask=asked.data.ask), moment())

    assert [(x.ask, dict(x.parked)) for x in effects(asked, e.AskParkRoom)] == [
        (asked.data.ask, {"gpu0": GIB})
    ]
    assert not effects(asked, e.Drain)
    assert effects(granted, e.Drain)
    assert granted.data.ask is None


def test_an_operators_park_without_room_fails_and_serves_on():
    asked = step(instance(S.READY, operation=None), park(), moment()).data

    full = step(asked, no_room(asked), moment())

    assert full.data.state is S.READY
    assert effects(full, e.ReopenGate) == [e.ReopenGate("park")]
    assert [(o.state, o.error_code) for o in full.operations] == [
        (O.FAILED, "park_parked_capacity")
    ]
    assert str(full.data.failure).startswith("park_parked_capacity: ")
    assert kinds(full) == ["park_refused"]


def no_room(one) -> m.NoParkRoom:
    return m.NoParkRoom(ask=one.ask, reason="6.0 GiB are taken", full="no room to park")


def test_a_switchs_park_without_room_becomes_a_stop_that_says_so():
    asked = step(instance(S.READY, operation=None), evict(), moment()).data

    full = step(asked, no_room(asked), moment())
    ending = step(full.data, m.GateEmpty(launch=LAUNCH), moment())
    gone = step(ending.data, m.GroupGone(launch=LAUNCH), moment())

    assert full.data.state is S.STOP_DRAIN
    assert effects(full, e.Drain)
    assert gone.data.state is S.STOPPED
    assert gone.data.instead is None
    assert effects(gone, e.FreeMemory) == [e.FreeMemory("no room to park")]
    assert [o.error_code for o in gone.operations] == ["park_parked_capacity"]


@pytest.mark.parametrize("told", [park(), evict()], ids=["park", "evict"])
def test_a_drain_that_became_a_stop_never_cuts_an_answer(told):
    asked = step(instance(S.READY, operation=None), told, moment()).data
    grown = attrs.evolve(asked, instead="parked_growth", state=S.STOP_DRAIN, ask=None)

    late = step(grown, m.DrainTimedOut(launch=LAUNCH, open_count=1), moment())

    assert late.data.state is S.READY
    assert {x.reason for x in effects(late, e.ReopenGate)} == {"park", "stop"}


# -- what a park leaves ----------------------------------------------------------------------


def parked(one: Instance, residue_gib: float, *, limit="auto", attributed=True) -> Instance:
    """``one``, ready, parked with so much left."""
    one = step(attrs.evolve(one, operation=None), park(), moment()).data
    one = step(one, m.ParkRoom(ask=one.ask), moment()).data
    one = step(one, m.GateEmpty(launch=LAUNCH), moment()).data
    left = {"gpu0": round(residue_gib * GIB)}
    told = m.EngineParked(launch=LAUNCH, residue=left, growth_limit=limit, attributed=attributed)
    return step(one, told, moment()).data


def awake(one: Instance) -> Instance:
    one = step(one, start(K.RESTORE), moment()).data
    one = step(one, m.Reserved(ask=one.ask, candidate=making.CANDIDATE), moment()).data
    return step(one, m.EngineWoken(launch=LAUNCH), moment()).data


@pytest.mark.parametrize(
    ("residue_gib", "charged_gib"), [(0.25, 1.0), (1.0, 1.0), (3.5, 3.5), (10.0, 10.0), (12, 10.0)]
)
def test_what_is_left_is_charged_between_placeholder_and_ready(residue_gib, charged_gib):
    one = parked(instance(S.READY), residue_gib)

    assert one.held.charges["gpu0"] == charged_gib * GIB


def test_the_largest_residue_stays_charged_and_is_kept_for_later_launches():
    once = parked(instance(S.READY), 3)

    again = parked(awake(once), 2)

    assert again.held.charges["gpu0"] == 3 * GIB
    assert again.seen.residue == {"gpu0": 3 * GIB}


def test_a_figure_that_is_only_a_bound_is_charged_and_not_kept():
    one = parked(instance(S.READY), 8, attributed=False)

    assert one.held.charges["gpu0"] == 8 * GIB
    assert one.held.kept is None
    assert one.seen is None


def test_declared_charges_stay():
    candidate = attrs.evolve(making.CANDIDATE, declared=True)
    held = attrs.evolve(instance(S.READY).held, candidate=candidate)

    one = parked(instance(S.READY, held=held), 4)

    assert one.held.charges["gpu0"] == GIB


@pytest.mark.parametrize(
    ("limit", "first_gib", "then_gib", "grown"),
    [
        ("auto", 2, 4, False),
        ("auto", 2, 4.1, True),
        ("off", 1, 10, False),
        ("0%", 2, 2, False),
        ("0%", 2, 2.1, True),
        ("50%", 2, 3, False),
        ("50%", 2, 3.1, True),
        ("2GiB", 2, 4, False),
        ("2GiB", 2, 4.1, True),
        ("auto", 0.1, 1.9, False),
    ],
)
def test_what_grows_past_its_limit_is_stopped_at_the_next_park(limit, first_gib, then_gib, grown):
    """Counted from the first charge, which is at least the placeholder of 1 GiB."""
    one = parked(awake(parked(instance(S.READY), first_gib, limit=limit)), then_gib, limit=limit)

    again = step(awake(one), park(), moment())

    assert (one.held.grown is not None) is grown
    assert again.data.state is (S.STOP_DRAIN if grown else S.PARK_DRAIN)


def test_a_grown_model_ends_stopped_and_its_park_says_why():
    one = parked(awake(parked(instance(S.READY), 1)), 5)
    told = park()

    draining = step(awake(one), told, moment())
    ending = step(draining.data, m.GateEmpty(launch=LAUNCH), moment())
    gone = step(ending.data, m.GroupGone(launch=LAUNCH), moment())

    assert not effects(draining, e.AskParkRoom)
    assert gone.data.state is S.STOPPED
    (ended,) = gone.operations
    assert (ended.id, ended.state, ended.error_code) == (
        told.operation.id,
        O.FAILED,
        "parked_growth",
    )
    assert "grew from 1.0 GiB to 5.0 GiB" in ended.reason


# -- unknown stays booked --------------------------------------------------------------------

PROOFS = (m.GroupGone, m.LaunchDiscarded, m.LaunchNotPrepared)


@pytest.mark.parametrize("state", [s for s in S if s not in NO_LAUNCH], ids=lambda s: s.value)
def test_only_a_proof_frees_what_a_process_may_hold(state):
    """Whatever else is told of an instance with a process, its memory stays charged."""
    one = instance(state)
    freed = set()
    for message in samples(one):
        if type(message) in TABLE[state]:
            done = step(one, message, moment())
            if effects(done, e.FreeMemory) or done.data.held is None:
                freed.add(type(message))

    assert freed <= set(PROOFS)


def samples(one) -> list[object]:
    """One of every message that such an instance may be told."""
    about = {
        m.LaunchPrepared: {"record": record()},
        m.LaunchNotPrepared: {"code": "x", "detail": "x", "permanent": True},
        m.EngineAnswered: {"canary": None},
        m.EngineUnfit: {"code": "x", "detail": "x"},
        m.EngineExited: {"how": "exit code 0"},
        m.EngineParked: {"residue": {}},
        m.EngineNotParked: {"reason": "x"},
        m.EngineBroken: {"code": "x", "detail": "x"},
        m.EndUnproven: {"detail": "x"},
    }
    mine = [
        kind(**({} if kind is m.LaunchPrepared else {"launch": LAUNCH}), **about.get(kind, {}))
        for kind in ABOUT_A_LAUNCH
    ]
    deadline = m.DeadlineReached(operation=one.operation.id if one.operation else "other")
    asked = [
        m.ReserveWaits(ask=ASK, reason="full"),
        m.ReserveRefused(ask=ASK, code="x", reason="full"),
    ]
    hosts = [suspended(), lost(), back(), back(fresh=True), back(running=False)]
    return [*mine, *asked, *hosts, deadline, start(), stop(), park(), evict(), evict(stop=True)]


def test_an_end_that_is_not_proven_keeps_the_charge_until_it_is():
    one = instance(S.STOPPING)

    lost = step(one, m.EndUnproven(launch=LAUNCH, detail="killed, not seen gone"), moment())
    found = step(lost.data, m.GroupGone(launch=LAUNCH), moment())

    assert lost.data.state is S.UNCERTAIN
    assert lost.data.held == one.held
    assert effects(found, e.FreeMemory)
    assert found.data.held is None


@pytest.mark.parametrize("cause", [Cause.RETIRE, Cause.REPLACE, Cause.OPERATOR])
def test_a_stop_that_somebody_wants_is_not_given_up_with_a_switch(cause):
    """A switch never cuts answers; a retirement in the meantime does not serve on."""
    one = step(instance(S.READY, operation=None), evict(stop=True), moment()).data
    one = step(one, stop(cause), moment()).data

    late = step(one, m.DrainTimedOut(launch=LAUNCH, open_count=1), moment())

    assert late.data.state is S.STOPPING


@pytest.mark.parametrize("kind", [K.CLEANUP, K.UNARMED_STOP])
def test_stops_that_ride_along_succeed(kind):
    riding = stop(kind=kind)
    failing = instance(S.STOPPING, operation=making.operation(K.INITIALIZE), cause=Cause.REQUEST)
    one = step(failing, riding, moment()).data

    gone = step(one, m.GroupGone(launch=LAUNCH), moment())

    assert outcomes(gone)[riding.operation.id] is O.SUCCEEDED
    assert gone.data.state is S.STOPPED


def test_the_deadline_of_a_stop_that_rides_along_ends_nothing():
    riding = stop()
    one = step(instance(S.STOPPING), riding, moment()).data

    late = step(one, m.DeadlineReached(operation=riding.operation.id), moment())

    assert late.data == one


def test_a_pause_of_an_earlier_start_does_not_ask_twice():
    """Otherwise the first request would stay in line with nobody to take its memory."""
    one = instance(S.QUEUED, attempts_count=0)

    assert step(one, m.RetryDue(), moment()).data.ask == ASK


@pytest.mark.parametrize(
    ("count", "state", "pause_s"), [(0, S.QUEUED, 30.0), (1, S.QUEUED, 60.0), (2, S.FAILED, None)]
)
def test_attempts_pause_twice_as_long_each_time_and_end(count, state, pause_s):
    one = instance(S.STARTING, launch=None, attempts_count=count)
    failed = m.LaunchNotPrepared(launch=LAUNCH, code="port_conflict", detail="x", permanent=False)

    done = step(one, failed, moment())

    assert done.data.state is state
    assert [x.pause_s for x in effects(done, e.RetryAfter)] == (
        [] if pause_s is None else [pause_s]
    )
    assert done.data.operation.given_up is (state is S.FAILED)
    assert effects(done, e.FreeMemory)


def test_what_waiting_cannot_mend_is_given_up_at_once():
    one = instance(S.STARTING, launch=None)
    failed = m.LaunchNotPrepared(launch=LAUNCH, code="no_engine", detail="x", permanent=True)

    done = step(one, failed, moment())

    assert done.data.state is S.FAILED
    assert done.data.operation.open
    assert kinds(done) == ["initialize_given_up"]


@pytest.mark.parametrize("state", [S.READY, S.PARKED, S.PARK_DRAIN, S.STOP_DRAIN, S.WAKE_QUEUED])
def test_an_exit_closes_the_gate_and_sweeps(state):
    done = step(instance(state), m.EngineExited(launch=LAUNCH, how="signal 9"), moment())

    assert done.data.state is S.CLEANING
    assert effects(done, e.CloseGate)
    assert effects(done, e.EndEngine)
    assert not effects(done, e.FreeMemory), "not before it is proven gone"


def test_no_proof_no_release():
    one = instance(S.STOPPING)

    lost = step(one, m.EndUnproven(launch=LAUNCH, detail="still there"), moment())

    assert lost.data.state is S.UNCERTAIN
    assert lost.data.held == one.held
    assert lost.data.operation.open
    assert not effects(lost, e.FreeMemory)


def test_a_failed_start_shows_starting_until_it_is_over():
    """As long as its operation is open; then failed."""
    failing = step(instance(S.STARTING), m.EngineExited(launch=LAUNCH, how="exit code 1"), moment())
    gone = step(failing.data, m.GroupGone(launch=LAUNCH), moment())

    assert failing.events == ()
    assert [(x.payload["from"], x.payload["to"]) for x in gone.events] == [("starting", "failed")]
    assert gone.data.failure.code == "launch_failed"


def test_a_late_latch_is_discarded_and_then_nothing_is_left():
    stopping = step(instance(S.STARTING, launch=None), stop(), moment()).data
    late = step(stopping, m.LaunchPrepared(record=record()), moment())
    gone = step(late.data, m.LaunchDiscarded(launch=LAUNCH), moment())

    assert effects(late, e.Discard)
    assert gone.data.state is S.STOPPED
    assert effects(gone, e.FreeMemory)


def test_a_stopped_instance_forgets_its_failure():
    one = instance(S.FAILED, failure=Failure("launch_failed", "x"))

    done = step(one, stop(kind=K.UNARMED_STOP), moment())

    assert done.data.failure is None
    assert kinds(done) == ["ordinary_unarmed_stop_completed"]


def test_parked_charges_never_fall_below_the_placeholder_nor_rise_above_ready():
    one = instance(S.PARKING)
    card = next(iter(making.CANDIDATE.charges.ready))
    for residue, charged in ((0, 1), (3, 3), (99, 10)):
        done = step(one, m.EngineParked(launch=LAUNCH, residue={card: residue << 30}), moment())

        assert done.data.held.charges[card] == charged << 30


def test_marks_are_kept_in_every_state():
    for state in S:
        done = step(instance(state), m.Mark(operator_stopped=True), moment())

        assert done.data.operator_stopped
        assert done.data.state is state


# -- a start that fails --------------------------------------------------------------------


def unfit(code, **changes):
    """Its engine ran and was no good; it has been ended, and the proof is the next message."""
    one = instance(S.STARTING, **changes)
    return step(one, m.EngineUnfit(launch=LAUNCH, code=code, detail="x"), moment()).data


@pytest.mark.parametrize(("count", "state"), [(0, S.QUEUED), (1, S.QUEUED), (2, S.FAILED)])
def test_a_start_that_met_a_stranger_on_its_port_tries_another_at_once(count, state):
    ending = unfit("port_conflict", attempts_count=count)

    done = step(ending, m.GroupGone(launch=LAUNCH), moment())

    assert done.data.state is state
    assert [x.pause_s for x in effects(done, e.RetryAfter)] == ([0.0] if state is S.QUEUED else [])
    assert effects(done, e.FreeMemory)
    assert done.operations[0].open is (state is S.QUEUED)


def test_a_start_that_failed_otherwise_is_not_tried_again_by_itself():
    done = step(unfit("launch_failed"), m.GroupGone(launch=LAUNCH), moment())

    assert done.data.state is S.FAILED
    assert not effects(done, e.RetryAfter)


def test_a_stop_keeps_a_start_from_trying_another_port():
    ending = unfit("port_conflict")
    stopping = step(ending, stop(), moment()).data

    done = step(stopping, m.GroupGone(launch=LAUNCH), moment())

    assert done.data.state is S.STOPPED
    assert not effects(done, e.RetryAfter)


@pytest.mark.parametrize("event", [m.StepTimedOut(launch=LAUNCH), None])
def test_an_engine_that_did_not_come_up_in_time_is_asked_to_end_before_it_is_killed(event):
    """It may be in the middle of a copy to the card; only one that has exited is swept at once."""
    one = instance(S.STARTING)
    late = event or m.DeadlineReached(operation=one.operation.id)

    done = step(one, late, moment())
    exited = step(instance(S.STARTING), m.EngineExited(launch=LAUNCH, how="exit code 1"), moment())

    assert [x.grace_s for x in effects(done, e.EndEngine)] == [15.0]
    assert [x.grace_s for x in effects(exited, e.EndEngine)] == [0.0]
