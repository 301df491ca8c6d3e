"""An instance whose host is silent, away, and back: nothing is freed, nothing is believed."""

from __future__ import annotations

import pytest

from capyctl.domain.errors import Refused
from capyctl.domain.operations import OperationKind as K
from capyctl.domain.operations import OperationState as O
from capyctl.machines import instance as e
from capyctl.machines.actions import decide
from capyctl.machines.deployment import refusal
from capyctl.machines.instance import Failure, Instance
from capyctl.machines.instance import InstanceState as S
from capyctl.machines.instance_table import step
from capyctl.machines.observed import observed_instance
from capyctl.machines.progress import progress
from capyctl.machines.resume import resume
from capyctl.machines.table import Step
from capyctl.messages import instance as m
from capyctl.messages.deployment import ActionKind
from capyctl.messages.instance import Cause
from tests.machines.making import (
    ASK,
    HOST,
    LAUNCH,
    act,
    back,
    instance,
    lost,
    moment,
    park,
    picture,
    start,
    stop,
    suspended,
)

ON_A_HOST = [s for s in S if s not in (S.STOPPED, S.FAILED, S.QUEUED)]
NOT_BEGUN = (S.STOPPED, S.FAILED, S.QUEUED)


def effects(done, *types) -> list[object]:
    return [effect for effect in done.effects if isinstance(effect, types)]


def kinds(done) -> list[str]:
    return [event.kind for event in done.events]


def shown(done) -> list[tuple[object, object]]:
    return [(x.payload["from"], x.payload["to"]) for x in done.events]


def outcomes(done) -> dict[str, O]:
    return {operation.id: operation.state for operation in done.operations}


def gone(state: S, **changes) -> Instance:
    """An instance in ``state`` whose host was lost."""
    return step(instance(state, **changes), lost(), moment()).data


# -- silent ----------------------------------------------------------------------------------


@pytest.mark.parametrize("state", ON_A_HOST, ids=lambda s: s.value)
def test_a_silent_host_closes_the_gate_and_nothing_else(state):
    one = instance(state)

    done = step(one, suspended(), moment())

    assert done.data == one
    assert done.effects == (e.CloseGate("host_session"),)
    assert done.events == done.operations == ()


@pytest.mark.parametrize("state", ON_A_HOST, ids=lambda s: s.value)
def test_a_blip_opens_the_gate_again_and_nothing_else(state):
    one = instance(state)

    done = step(one, back(), moment())

    assert done.data == one
    assert done.effects == (e.ReopenGate("host_session"),)


def test_a_ready_engine_is_proven_where_its_hosts_process_is_another():
    done = step(instance(S.READY), back(fresh=True), moment())

    assert done.data.state is S.RECONCILING
    assert [type(x) for x in done.effects] == [e.CloseGate, e.ReopenGate, e.Prove]
    assert shown(done) == [("ready", "reconciling")]


@pytest.mark.parametrize("state", NOT_BEGUN, ids=lambda s: s.value)
def test_what_holds_nothing_hears_of_no_host(state):
    one = instance(state)

    for told in (suspended(), lost(), back(), back(fresh=True)):
        assert step(one, told, moment()) == Step(data=one)


# -- lost ------------------------------------------------------------------------------------


@pytest.mark.parametrize("state", ON_A_HOST, ids=lambda s: s.value)
def test_what_is_lost_is_uncertain_stays_charged_and_keeps_its_process(state):
    one = instance(state)

    done = step(one, lost(), moment())

    assert done.data.state is S.UNCERTAIN
    assert done.data.held == one.held
    assert done.data.launch == one.launch
    assert str(done.data.failure) == "host_lost: box was not heard of for 30 s"
    assert effects(done, e.DropTasks)
    assert not effects(done, e.FreeMemory, e.EndEngine, e.ChargePhase)
    if state is not S.UNCERTAIN:
        assert shown(done)[-1][1] == "uncertain"


@pytest.mark.parametrize("state", ON_A_HOST, ids=lambda s: s.value)
def test_told_twice_it_is_lost_once(state):
    once = gone(state)

    again = step(once, lost(why="another text"), moment())

    assert again.data == once
    assert again.effects == ()


@pytest.mark.parametrize(
    "state", [S.STARTING, S.PARK_DRAIN, S.PARKING, S.WAKE_QUEUED, S.WAKING, S.STOPPING]
)
def test_open_work_stays_open_and_says_why_it_waits(state):
    one = instance(state)

    done = step(one, lost(), moment())

    assert done.data.operation.id == one.operation.id
    assert done.data.operation.open
    assert "box" in done.data.operation.reason


def test_a_wake_leaves_the_line_while_it_cannot_be():
    done = step(instance(S.WAKE_QUEUED), lost(), moment())

    assert effects(done, e.WithdrawMemory) == [e.WithdrawMemory(ASK)]
    assert done.data.ask is None


@pytest.mark.parametrize("state", [S.PARK_DRAIN, S.PARKING, S.STOP_DRAIN, S.STOPPING])
def test_a_victim_that_is_lost_gives_no_room(state):
    done = step(instance(state, cause=Cause.SWITCH), lost(), moment())

    assert [x.reason for x in effects(done, e.EvictionOver)] == ["box was not heard of for 30 s"]


def test_a_victims_drain_that_is_lost_serves_on_when_it_is_back():
    """A switch never cuts answers, nor ends a model for room that is not needed any more."""
    done = step(instance(S.STOP_DRAIN, cause=Cause.SWITCH), lost(), moment())
    returned = step(done.data, back(), moment())

    assert list(outcomes(done).values()) == [O.CANCELLED]
    assert returned.data.state is S.RECONCILING


# -- asked meanwhile -------------------------------------------------------------------------


@pytest.mark.parametrize("state", [S.STARTING, S.READY, S.PARKED, S.WAKING, S.PARKING])
def test_a_stop_is_pending_until_the_host_is_back(state):
    told = stop()
    waiting = step(gone(state), told, moment())
    returned = step(waiting.data, back(), moment())
    ended = step(returned.data, m.GroupGone(launch=LAUNCH), moment())

    assert waiting.data.state is S.UNCERTAIN
    assert outcomes(waiting)[told.operation.id] is O.PENDING
    assert not effects(waiting, e.EndEngine, e.FreeMemory)
    assert returned.data.state is S.STOPPING
    assert kinds(returned) == ["ordinary_cleanup_armed"]
    assert shown(returned) == [("uncertain", "stopping")]
    assert effects(returned, e.EndEngine)
    assert ended.data.state is S.STOPPED
    assert outcomes(ended) == {told.operation.id: O.SUCCEEDED}


def test_a_stop_ends_the_start_that_was_under_way():
    one = gone(S.STARTING)

    done = step(one, stop(), moment())

    assert outcomes(done)[one.operation.id] is O.FAILED


def test_a_stop_of_a_launch_that_had_no_process_needs_nothing_ended():
    one = step(gone(S.STARTING, launch=None), stop(), moment()).data

    done = step(one, back(), moment())

    assert done.data.state is S.STOPPED
    assert effects(done, e.FreeMemory)


def test_a_second_stop_rides_along():
    first, second = stop(), stop()
    one = step(step(gone(S.READY), first, moment()).data, second, moment()).data
    one = step(one, back(), moment()).data

    done = step(one, m.GroupGone(launch=LAUNCH), moment())

    assert set(outcomes(done).values()) == {O.SUCCEEDED}
    assert set(outcomes(done)) == {first.operation.id, second.operation.id}


def test_the_deadline_of_a_stop_ends_nothing():
    told = stop()
    one = step(gone(S.READY), told, moment()).data

    assert step(one, m.DeadlineReached(operation=told.operation.id), moment()).data == one


@pytest.mark.parametrize(
    ("state", "outcome", "goes_on_as"),
    [
        (S.STARTING, O.FAILED, S.STOPPING),
        (S.WAKING, O.FAILED, S.STOPPING),
        (S.WAKE_QUEUED, O.CANCELLED, S.PARKED),
        (S.PARK_DRAIN, O.CANCELLED, S.RECONCILING),
        (S.PARKING, O.FAILED, S.STOPPING),
    ],
)
def test_what_is_past_its_deadline_ends_and_the_rest_waits(state, outcome, goes_on_as):
    one = gone(state)

    late = step(one, m.DeadlineReached(operation=one.operation.id), moment())
    returned = step(late.data, back(), moment())

    assert outcomes(late) == {one.operation.id: outcome}
    assert late.data.state is S.UNCERTAIN
    assert late.data.held == one.held
    assert "box was not heard of" in late.operations[0].reason
    assert returned.data.state is goes_on_as


def test_a_park_is_refused_and_a_start_waits():
    one = gone(S.READY)
    told, waits = park(), start()

    refused = step(one, told, moment())
    later = step(one, waits, moment())

    assert outcomes(refused) == {told.operation.id: O.FAILED}
    assert later.data.then == waits


def test_a_start_rides_with_the_one_that_was_lost():
    rides = start()
    one = step(gone(S.STARTING), rides, moment()).data

    done = step(one, m.DeadlineReached(operation=one.operation.id), moment())

    assert outcomes(done)[rides.operation.id] is O.FAILED


# -- back ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("state", "running", "comes_back_as", "does"),
    [
        (S.READY, True, S.RECONCILING, (e.Watch, e.Prove)),
        (S.RECONCILING, True, S.RECONCILING, (e.Watch, e.Prove)),
        (S.PARK_DRAIN, True, S.RECONCILING, (e.Watch, e.Prove)),
        (S.PARKED, True, S.PARKED, (e.Watch,)),
        (S.PARKED, False, S.PARKED, (e.Watch,)),
        (S.WAKE_QUEUED, True, S.WAKE_QUEUED, (e.Watch, e.AskMemory)),
        (S.STARTING, True, S.STARTING, (e.Run,)),
        (S.STARTING, False, S.STOPPING, (e.EndEngine,)),
        (S.PARKING, True, S.STOPPING, (e.EndEngine,)),
        (S.WAKING, True, S.STOPPING, (e.EndEngine,)),
        (S.STOP_DRAIN, True, S.STOPPING, (e.EndEngine,)),
        (S.STOPPING, True, S.STOPPING, (e.EndEngine,)),
        (S.CLEANING, True, S.CLEANING, (e.EndEngine,)),
        (S.UNCERTAIN, True, S.UNCERTAIN, (e.EndEngine,)),
    ],
)
def test_it_goes_on_as_after_a_restart(state, running, comes_back_as, does):
    before = instance(state)
    told = back(running=running)

    done = step(gone(state), told, moment())

    assert done.data.state is comes_back_as
    assert done.data.lost is None
    assert done.data.held is not None
    for kind in does:
        assert effects(done, kind), kind
    assert e.ReopenGate("host_session") in done.effects
    assert not effects(done, e.OpenGate)
    as_restarted = resume(before, moment(), same_daemon=False, running=running)
    if state not in (S.STOP_DRAIN,):
        assert as_restarted.data.state is done.data.state
    if done.data.state is not S.UNCERTAIN:
        assert shown(done)[0][0] == "uncertain"
        assert shown(done)[-1][1] == observed_instance(done.data)


def test_the_gate_is_closed_until_the_proof():
    done = step(gone(S.READY), back(), moment())
    proved = step(done.data, m.EngineProved(launch=LAUNCH), moment())

    assert done.effects[:2] == (e.CloseGate("starting"), e.ReopenGate("host_session"))
    assert effects(proved, e.OpenGate)
    assert shown(proved) == [("reconciling", "ready")]


def test_a_start_without_a_process_is_in_line_again_once_its_host_has_swept():
    one = gone(S.STARTING, launch=None)

    done = step(one, back(), moment())

    assert done.data.state is S.QUEUED
    assert done.data.operation.id == one.operation.id
    assert effects(done, e.FreeMemory)


def test_what_had_gone_wrong_before_is_told_again():
    why = Failure("launch_failed", "x")
    one = step(gone(S.STOPPING, failure=why), back(), moment()).data

    assert one.failure == why


def test_what_was_interrupted_names_the_host():
    one = step(gone(S.WAKING), back(), moment()).data

    assert str(one.failure) == "interrupted: box was away in the middle of a wake"


def test_a_proof_that_the_launch_is_gone_frees_even_what_is_lost():
    """It was told before the loss was read."""
    done = step(gone(S.STOPPING), m.GroupGone(launch=LAUNCH), moment())

    assert done.data.state is S.STOPPED
    assert done.data.lost is None
    assert effects(done, e.FreeMemory)


def test_a_new_place_hears_nothing_of_the_old_host():
    queued = instance(S.QUEUED)
    told = m.Reserved(ask=ASK, candidate=instance(S.READY).held.candidate)

    assert effects(step(queued, told, moment()), e.ReopenGate) == [e.ReopenGate("host_session")]


# -- a daemon that begins while the host is away ---------------------------------------------


@pytest.mark.parametrize("state", ON_A_HOST, ids=lambda s: s.value)
def test_a_daemon_that_begins_without_the_host_waits_for_it(state):
    one = instance(state)

    began = resume(one, moment(), same_daemon=False, away=lost())
    again = resume(began.data, moment(), same_daemon=False, away=lost())
    here = resume(began.data, moment(), same_daemon=False)

    assert began.data.state is S.UNCERTAIN
    assert began.data.held == one.held
    assert not effects(began, e.Run, e.Watch, e.Prove, e.EndEngine, e.FreeMemory)
    assert again.data == began.data
    assert here.data.lost is None


def test_deadlines_are_set_while_the_host_is_away():
    one = instance(S.STARTING)

    began = resume(one, moment(), same_daemon=False, away=lost())

    assert [x.operation for x in effects(began, e.DeadlineAt)] == [one.operation.id]


# -- what its deployment makes of it ---------------------------------------------------------


def test_a_start_of_what_is_lost_is_told_which_machine_it_awaits():
    with pytest.raises(
        Refused, match=r"`m` \(instance 0 uncertain\) waits: box was not heard"
    ) as caught:
        decide(picture(gone(S.READY)), act(ActionKind.START), moment())

    assert caught.value.code == "reconciliation_required"


def test_other_instances_are_started_all_the_same():
    both = picture(gone(S.READY), instance(S.STOPPED, 1))

    needs = decide(both, act(ActionKind.START), moment())

    assert [q.index for q in needs.questions] == [1]


def test_a_request_starts_another_instance_elsewhere():
    both = picture(gone(S.READY), instance(S.STOPPED, 1, operation=None, ask=None), waiting_count=1)

    begun = progress(both, moment())

    assert [index for index, _ in begun.tell] == [1]


def test_requests_are_refused_with_the_machines_name():
    one = gone(S.STARTING)
    mine = {one.operation.id: one.operation}

    answer = refusal(picture(one, operations=mine))

    assert answer.code == "unavailable"
    assert "box was not heard of" in answer.message


def test_the_last_error_shows_until_it_is_proven():
    assert gone(S.READY).host == HOST
    assert gone(S.READY).failure.code == "host_lost"
    assert step(gone(S.READY), back(), moment()).data.failure is None


def test_a_cleanup_kind_is_told_for_each_step():
    told = {
        S.READY: "reconcile_uncertain",
        S.STARTING: "initialize_uncertain",
        S.WAKING: "restore_uncertain",
        S.WAKE_QUEUED: "restore_uncertain",
        S.PARKING: "park_uncertain",
        S.STOPPING: "ordinary_cleanup_uncertain",
    }

    assert {s: kinds(step(instance(s), lost(), moment()))[0] for s in told} == told
    assert instance(S.STOPPING).operation.kind is K.CLEANUP
