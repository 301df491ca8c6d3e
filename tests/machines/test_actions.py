"""What each action comes to: the contract's refusals, case by case, and what is set off."""

from __future__ import annotations

import attrs
import pytest

from capyctl.domain.checkpoints import CheckpointRecord, DigestState
from capyctl.domain.errors import Refused
from capyctl.domain.ids import SwitchId
from capyctl.domain.operations import OperationKind as K
from capyctl.domain.operations import OperationState as O
from capyctl.domain.specs import Phase, Residency
from capyctl.machines.actions import decide
from capyctl.machines.deployment import Desired
from capyctl.machines.instance import InstanceState as S
from capyctl.machines.start_action import NeedFit
from capyctl.messages.deployment import ActionKind as A
from capyctl.messages.deployment import FitAnswered
from capyctl.messages.instance import Mark, Park, Start, Stop
from tests.machines import making
from tests.machines.making import NOW_MS, act, instance, moment, pending, picture

RESTART_ONLY = attrs.evolve(making.RESOLVED, residency=Residency.RESTART_ONLY)


def fits(*indexes: int, **changes) -> FitAnswered:
    return FitAnswered(
        request="r", fitting=indexes, shortage=None if indexes else "needs 10.0 GiB", **changes
    )


def refused(seen, action, fit=None) -> str:
    with pytest.raises(Refused) as problem:
        decide(seen, action, moment(), fit=fit)
    return problem.value.code


def operations(seen) -> dict[str, object]:
    """Of a picture: the open operations by id."""
    return {o.id: o for o in seen}


# -- what every action is checked for --------------------------------------------------------


@pytest.mark.parametrize("action", list(A))
def test_another_revision_is_a_conflict(action):
    seen = picture(instance(S.READY))

    assert refused(seen, act(action, expected_revision=2)) == "revision_conflict"


@pytest.mark.parametrize(
    ("deadline_at_ms", "fine"),
    [(NOW_MS, False), (NOW_MS + 1, True), (NOW_MS + 1_800_000, True), (NOW_MS + 1_800_001, False)],
)
def test_the_deadline_lies_ahead_and_not_too_far(deadline_at_ms, fine):
    seen, action = picture(), act(A.STOP, deadline_at_ms=deadline_at_ms)

    if fine:
        assert decide(seen, action, moment()).answers
    else:
        assert refused(seen, action) == "invalid_request"


def digest(state):
    return {"checkpoint": CheckpointRecord(state=state), "resolved": None}


@pytest.mark.parametrize(
    ("seen", "action", "said"),
    [
        (picture(instance(S.READY)), act(A.START), "`m` (instance 0 ready) runs already"),
        (
            picture(instance(S.STOPPING), instance(S.READY, 1)),
            act(A.START),
            "`m` (instance 0 stopping) is not proven stopped yet",
        ),
        (
            picture(instance(S.UNCERTAIN)),
            act(A.PREINITIALIZE),
            "`m` (instance 0 uncertain) is not proven stopped yet",
        ),
        (
            picture(instance(S.STOPPED), instance(S.PARKED, 1)),
            act(A.PARK),
            "`m` (instance 0 stopped, 1 parked) cannot be parked: none is ready",
        ),
        (
            picture(*(instance(S.STOPPED, n) for n in range(6))),
            act(A.PARK),
            "`m` (instance 0 stopped, 1 stopped, 2 stopped, 3 stopped, …) cannot be parked",
        ),
        (
            picture(instance(S.READY)),
            act(A.DELETE),
            "`m` (instance 0 ready) cannot be deleted yet: stop it",
        ),
        (
            picture(instance(S.READY)),
            act(A.STOP, instance=1),
            "`m` has no instance 1: it has 1, counted from 0",
        ),
        (picture(**digest(DigestState.PENDING)), act(A.START), "The files of `m` are still"),
        (picture(**digest(DigestState.MISMATCH)), act(A.START), "`m` cannot be started: the "),
        (picture(**digest(DigestState.UNUSABLE)), act(A.START), "`m` cannot be started: the "),
    ],
)
def test_a_refusal_names_the_deployment_and_the_states(seen, action, said):
    with pytest.raises(Refused) as problem:
        decide(seen, action, moment())

    assert said in problem.value.message


# -- start -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("state", "code"),
    [
        (DigestState.PENDING, "checkpoint_digest_pending"),
        (DigestState.MISMATCH, "checkpoint_mismatch"),
        (DigestState.UNUSABLE, "checkpoint_unusable"),
    ],
)
@pytest.mark.parametrize("action", [A.START, A.PREINITIALIZE])
def test_files_that_are_not_known_good_start_nothing(state, code, action):
    seen = picture(checkpoint=CheckpointRecord(state=state), resolved=None)

    assert refused(seen, act(action)) == code


@pytest.mark.parametrize("state", [S.STOP_DRAIN, S.STOPPING, S.CLEANING, S.UNCERTAIN])
def test_a_stop_that_is_not_proven_comes_first(state):
    assert refused(picture(instance(state)), act(A.START)) == "still_stopping"


@pytest.mark.parametrize("kind", [K.CLEANUP, K.UNARMED_STOP])
@pytest.mark.parametrize("state", [S.READY, S.QUEUED, S.PARK_DRAIN, S.FAILED])
def test_a_stop_that_is_accepted_comes_first_too(state, kind):
    """Its instance has not read of it yet; a start would come after it."""
    seen = picture(instance(state), operations=operations([pending(kind)]))

    assert refused(seen, act(A.START)) == "still_stopping"


def test_what_runs_needs_no_start():
    seen = picture(instance(S.READY), instance(S.READY, 1))

    assert refused(seen, act(A.START)) == "runtime_retained"


@pytest.mark.parametrize("state", [S.QUEUED, S.STARTING, S.WAKE_QUEUED, S.WAKING])
def test_what_is_on_its_way_is_joined(state):
    one = instance(state)

    found = decide(picture(one), act(A.START), moment())

    assert found.joined
    assert found.answers == one.operation.id
    assert found.operations == ()


def test_an_accepted_start_is_joined_before_its_instance_knows():
    begun = pending(K.INITIALIZE)

    found = decide(picture(operations=operations([begun])), act(A.START), moment())

    assert (found.joined, found.answers) == (True, begun.id)


def test_placement_is_asked_before_anything_is_accepted():
    seen = picture(instance(S.STOPPED), instance(S.PARKED, 1), instance(S.READY, 2))

    found = decide(seen, act(A.START, evict=True), moment())

    assert isinstance(found, NeedFit)
    assert [(q.index, q.phase) for q in found.questions] == [(1, Phase.WAKE), (0, Phase.COLD)]
    assert found.evict


def test_a_wake_fits_only_where_it_is_parked():
    other = attrs.evolve(making.CANDIDATE, gpu="gpu1")
    resolved = attrs.evolve(making.RESOLVED, candidates=(other, making.CANDIDATE))

    found = decide(picture(instance(S.PARKED), resolved=resolved), act(A.START), moment())

    assert found.questions[0].candidates == (making.CANDIDATE,)


def test_no_room_for_any_is_refused_with_the_figures():
    seen = picture(instance(S.STOPPED), instance(S.STOPPED, 1))
    with pytest.raises(Refused, match=r"needs 10.0 GiB") as problem:
        decide(seen, act(A.START), moment(), fit=fits())

    assert problem.value.code == "capacity_blocked"


def test_room_for_some_starts_all_and_the_others_wait():
    seen = picture(instance(S.STOPPED), instance(S.STOPPED, 1))

    found = decide(seen, act(A.START), moment(), fit=fits(1))

    assert [index for index, _ in found.tell] == [0, 1]
    assert found.victims is None


def test_evicting_makes_room_for_all_or_for_none():
    seen = picture(instance(S.STOPPED), instance(S.STOPPED, 1))

    assert refused(seen, act(A.START, evict=True), fits(1)) == "capacity_blocked"


def test_no_room_does_not_matter_while_another_is_on_its_way():
    seen = picture(instance(S.STOPPED), instance(S.QUEUED, 1))

    found = decide(seen, act(A.START), moment(), fit=fits())

    assert [index for index, _ in found.tell] == [0]


def test_a_start_lifts_the_stop_and_every_mark():
    seen = picture(instance(S.STOPPED, operator_stopped=True), operator_stopped=True, marked=(0,))

    found = decide(seen, act(A.START), moment(), fit=fits(0))

    assert not found.deployment.operator_stopped
    assert found.deployment.marked == ()
    assert found.deployment.desired is Desired.READY
    assert [type(message) for _, message in found.tell] == [Mark, Start]
    assert found.events[0].payload["from"] == "stopped"
    assert found.events[0].payload["to"] == "queued"


def test_a_refused_start_lifts_nothing():
    seen = picture(instance(S.STOPPED), operator_stopped=True, marked=(0,))

    assert refused(seen, act(A.START), fits()) == "capacity_blocked"
    assert seen.deployment.operator_stopped


def test_the_receipt_names_the_first_cold_start():
    seen = picture(instance(S.PARKED), instance(S.STOPPED, 1))

    found = decide(seen, act(A.START), moment(), fit=fits(0, 1))

    named = next(o for o in found.operations if o.id == found.answers)
    assert (named.kind, named.instance) == (K.INITIALIZE, 1)


def test_each_start_takes_the_next_generation_and_remembers_who_wants_it():
    seen = picture(instance(S.STOPPED), instance(S.STOPPED, 1), generation=4)

    found = decide(seen, act(A.START, evict=True), moment(), fit=fits(0, 1))

    starts = [message for _, message in found.tell if isinstance(message, Start)]
    assert [message.order.generation for message in starts] == [5, 6]
    assert found.deployment.generation == 6
    assert {(o.cause, o.may_evict) for o in found.operations} == {("operator", True)}


def test_victims_and_their_switch_are_in_the_answer():
    victim = making.InstanceId(making.DeploymentId("V" * 26), 0)
    fit = fits(0, victims=(victim,), switch=SwitchId("W" * 26))

    found = decide(picture(instance(S.STOPPED)), act(A.START, evict=True), moment(), fit=fit)

    assert (found.victims, found.switch) == ((victim,), "W" * 26)


@pytest.mark.parametrize("state", [S.PARK_DRAIN, S.PARKING])
def test_what_is_parking_is_woken_once_parked(state):
    found = decide(picture(instance(state)), act(A.START), moment(), fit=fits(0))

    assert found.operations[0].kind is K.RESTORE
    assert found.events[0].payload["from"] == found.events[0].payload["to"] == "parking"


# -- stop ------------------------------------------------------------------------------------


@pytest.mark.parametrize("state", list(S))
def test_a_stop_is_always_accepted_and_marks_the_deployment(state):
    found = decide(picture(instance(state)), act(A.STOP), moment())

    assert found.deployment.operator_stopped
    assert found.deployment.desired is Desired.STOPPED
    assert found.answers is not None


def test_a_stop_of_nothing_is_done_at_once():
    found = decide(picture(instance(S.STOPPED)), act(A.STOP), moment())

    assert [(o.kind, o.state) for o in found.operations] == [(K.CLEANUP, O.SUCCEEDED)]
    assert found.tell == ()


@pytest.mark.parametrize(
    ("state", "kind", "after"),
    [
        (S.READY, K.CLEANUP, "stopping"),
        (S.PARKED, K.CLEANUP, "stopping"),
        (S.STARTING, K.CLEANUP, "stopping"),
        (S.QUEUED, K.UNARMED_STOP, "queued"),
        (S.UNCERTAIN, K.CLEANUP, "uncertain"),
        (S.CLEANING, K.CLEANUP, "reconciling"),
    ],
)
def test_a_stop_is_of_what_began_or_of_what_did_not(state, kind, after):
    found = decide(picture(instance(state)), act(A.STOP), moment())

    assert [o.kind for o in found.operations] == [kind]
    assert found.events[0].payload["to"] == after
    assert isinstance(found.tell[0][1], Stop)


def test_a_stop_cancels_what_else_was_under_way():
    preinitialize = pending(K.PREINITIALIZE, None)

    found = decide(picture(preinitialize=preinitialize), act(A.STOP), moment())

    states = {o.id: o.state for o in found.operations}
    assert states[preinitialize.id] is O.CANCELLED
    assert found.deployment.preinitialize is None
    assert found.deployment.restarts == ()


def test_a_stop_reaches_instances_that_retire():
    found = decide(
        picture(instance(S.STOPPED), instance(S.READY, 1), count=1), act(A.STOP), moment()
    )

    assert [index for index, _ in found.tell] == [1]


# -- park ------------------------------------------------------------------------------------


@pytest.mark.parametrize("action", [A.PARK, A.PREINITIALIZE])
def test_what_never_parks_is_not_parked(action):
    seen = picture(instance(S.READY), resolved=RESTART_ONLY)

    assert refused(seen, act(action)) == "unsupported_capability"


def test_all_ready_ones_are_parked():
    seen = picture(instance(S.READY), instance(S.STOPPED, 1), instance(S.READY, 2))

    found = decide(seen, act(A.PARK), moment())

    assert [(index, type(message)) for index, message in found.tell] == [(0, Park), (2, Park)]
    assert found.deployment.desired is Desired.PARKED


def test_a_park_under_way_is_joined():
    one = instance(S.PARKING)

    found = decide(picture(one), act(A.PARK), moment())

    assert (found.joined, found.answers) == (True, one.operation.id)


def test_a_park_that_is_accepted_is_joined():
    begun = pending(K.PARK)

    found = decide(
        picture(instance(S.READY), operations=operations([begun])), act(A.PARK), moment()
    )

    assert (found.joined, found.answers) == (True, begun.id)


@pytest.mark.parametrize("state", [S.STOPPED, S.PARKED, S.STARTING, S.FAILED])
def test_without_a_ready_instance_there_is_nothing_to_park(state):
    assert refused(picture(instance(state)), act(A.PARK)) == "lifecycle_conflict"


# -- preinitialize ---------------------------------------------------------------------------


def test_preinitialize_is_one_operation_and_joined_by_the_next():
    found = decide(picture(marked=(0,)), act(A.PREINITIALIZE), moment())
    again = decide(
        picture(preinitialize=found.deployment.preinitialize), act(A.PREINITIALIZE), moment()
    )

    assert found.operations == (found.deployment.preinitialize,)
    assert found.deployment.marked == ()
    assert (again.joined, again.answers) == (True, found.answers)


def test_preinitialize_waits_for_stops():
    assert refused(picture(instance(S.STOPPING)), act(A.PREINITIALIZE)) == "still_stopping"


# -- delete ----------------------------------------------------------------------------------


@pytest.mark.parametrize("state", sorted(set(S) - {S.STOPPED, S.FAILED}, key=lambda s: s.value))
def test_nothing_that_holds_anything_is_deleted(state):
    assert refused(picture(instance(state)), act(A.DELETE)) == "delete_requires_cleanup"


def test_an_open_operation_keeps_its_deployment():
    """A start that was given up is open until its deadline; a stop ends it at once."""
    given_up = pending(K.INITIALIZE, given_up=True)
    seen = picture(instance(S.FAILED, operation=given_up), operations=operations([given_up]))

    assert refused(seen, act(A.DELETE)) == "delete_requires_cleanup"


def test_a_deletion_is_done_when_it_is_accepted():
    found = decide(picture(instance(S.FAILED)), act(A.DELETE), moment())

    assert found.deleted
    assert [(o.kind, o.state) for o in found.operations] == [(K.DELETE, O.SUCCEEDED)]
    assert [event.kind for event in found.events] == ["deployment_deleted"]


# -- one instance ----------------------------------------------------------------------------


@pytest.mark.parametrize("action", [A.PARK, A.PREINITIALIZE, A.DELETE])
def test_one_instance_only_starts_and_stops(action):
    seen = picture(instance(S.READY))

    assert refused(seen, act(action, instance=0)) == "unsupported_capability"


@pytest.mark.parametrize("action", [A.START, A.STOP])
def test_an_instance_that_is_not_configured_is_not_found(action):
    """Nor one that retires."""
    seen = picture(instance(S.READY), instance(S.READY, 1), count=1)

    assert refused(seen, act(action, instance=1)) == "not_found"


def test_a_stop_of_one_instance_marks_it_from_the_acceptance_on():
    seen = picture(instance(S.READY), instance(S.READY, 1))

    found = decide(seen, act(A.STOP, instance=1), moment())

    assert found.deployment.marked == (1,)
    assert not found.deployment.operator_stopped
    assert [(index, type(message)) for index, message in found.tell] == [(1, Mark), (1, Stop)]
    after = attrs.evolve(seen, deployment=found.deployment)
    assert [one.operator_stopped for one in after.active] == [False, True]


def test_a_stop_of_an_instance_that_holds_nothing_names_no_operation():
    found = decide(picture(instance(S.STOPPED)), act(A.STOP, instance=0), moment())

    assert found.answers is None
    assert found.operations == ()


def test_a_start_of_one_instance_leaves_the_marks_of_others():
    seen = picture(instance(S.STOPPED), instance(S.STOPPED, 1), marked=(0, 1))

    found = decide(seen, act(A.START, instance=1), moment(), fit=fits(1))

    assert found.deployment.marked == (0,)
    assert {index for index, _ in found.tell} == {1}
