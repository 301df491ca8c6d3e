"""What a deployment does next by itself, from the same picture always the same."""

from __future__ import annotations

import attrs
import pytest

from capyctl.domain.checkpoints import CheckpointRecord
from capyctl.domain.operations import OperationKind as K
from capyctl.domain.operations import OperationState as O
from capyctl.machines.deployment import Restart
from capyctl.machines.instance import Failure
from capyctl.machines.instance import InstanceState as S
from capyctl.machines.progress import activation_refusal, preinitialize_refused, progress
from capyctl.messages.deployment import InstanceChanged
from capyctl.messages.instance import Cause, Park, Start, Stop
from tests.machines import making
from tests.machines.making import NOW_MS, instance, moment, pending, picture


def told(found) -> list[tuple[int, type]]:
    return [] if found is None else [(index, type(message)) for index, message in found.tell]


def test_nothing_to_do_is_nothing_done():
    assert progress(picture(instance(S.READY)), moment()) is None


# -- retiring --------------------------------------------------------------------------------


@pytest.mark.parametrize("state", [S.READY, S.PARKED, S.QUEUED, S.STARTING, S.WAKING])
def test_an_instance_beyond_the_count_is_stopped(state):
    found = progress(picture(instance(S.READY), instance(state, 1), count=1), moment())

    assert told(found) == [(1, Stop)]
    assert found.tell[0][1].cause is Cause.RETIRE


@pytest.mark.parametrize("state", [S.STOPPED, S.FAILED])
def test_once_empty_it_is_removed_with_its_mark(state):
    found = progress(picture(instance(S.READY), instance(state, 1), count=1, marked=(1,)), moment())

    assert found.removes == (making.InstanceId(making.DEPLOYMENT, 1),)
    assert found.deployment.marked == ()


def test_it_is_not_removed_under_accepted_work():
    """Two stops were accepted; the second one still has to be told done."""
    second = pending(K.CLEANUP, 1)
    seen = picture(
        instance(S.READY), instance(S.STOPPED, 1), count=1, operations={second.id: second}
    )

    assert progress(seen, moment()) is None


# -- replacing -------------------------------------------------------------------------------

NEW = {"revision": 2, "restarts": (Restart(index=0, was_ready=True),)}


def test_what_ran_before_a_replace_is_stopped_then_started():
    stopping = progress(picture(instance(S.READY), **NEW), moment())
    starting = progress(picture(instance(S.STOPPED), **NEW), moment())
    done = progress(picture(instance(S.READY, revision=2), **NEW), moment())

    assert told(stopping) == [(0, Stop)]
    assert told(starting) == [(0, Start)]
    assert starting.tell[0][1].order.revision == 2
    assert done.deployment.restarts == ()
    assert told(done) == []


def test_what_was_parked_before_a_replace_stays_stopped():
    changed = {**NEW, "restarts": (Restart(index=0, was_ready=False),)}

    found = progress(picture(instance(S.STOPPED), **changed), moment())

    assert (told(found), found.deployment.restarts) == ([], ())


@pytest.mark.parametrize("changes", [{"marked": (0,)}, {"operator_stopped": True}])
def test_what_an_operator_stopped_meanwhile_is_not_started(changes):
    found = progress(picture(instance(S.STOPPED), **NEW, **changes), moment())

    assert told(found) == []


def test_a_replace_waits_for_the_new_digest():
    seen = picture(instance(S.READY), **NEW, checkpoint=CheckpointRecord(), resolved=None)

    assert progress(seen, moment()) is None


def test_a_replace_takes_one_instance_after_the_other():
    restarts = tuple(Restart(index=i, was_ready=True) for i in (0, 1))
    seen = picture(
        instance(S.STARTING, revision=2), instance(S.READY, 1), revision=2, restarts=restarts
    )

    assert progress(seen, moment()) is None


# -- preinitialize ---------------------------------------------------------------------------


def preinitializing(*ones, deadline_at_ms=NOW_MS + 60_000, **changes):
    operation = pending(K.PREINITIALIZE, None, deadline_at_ms=deadline_at_ms)
    return picture(*ones, preinitialize=operation, **changes)


@pytest.mark.parametrize(
    ("state", "expected"),
    [(S.STOPPED, [(0, Start)]), (S.READY, [(0, Park)]), (S.STARTING, []), (S.PARKING, [])],
)
def test_each_instance_is_started_then_parked(state, expected):
    assert told(progress(preinitializing(instance(state)), moment())) == expected


def test_all_parked_is_success():
    found = progress(preinitializing(instance(S.PARKED), instance(S.PARKED, 1)), moment())

    assert [o.state for o in found.operations] == [O.SUCCEEDED]
    assert found.deployment.preinitialize is None


def test_marked_instances_are_passed_over():
    found = progress(preinitializing(instance(S.STOPPED), marked=(0,)), moment())

    assert [o.state for o in found.operations] == [O.SUCCEEDED]


def test_the_deadline_ends_it():
    found = progress(preinitializing(instance(S.UNCERTAIN), deadline_at_ms=NOW_MS), moment())

    assert [(o.state, o.reason) for o in found.operations] == [
        (O.FAILED, "the deadline came first")
    ]


def test_its_own_failed_start_ends_it():
    failed = instance(
        S.FAILED, cause=Cause.PREINITIALIZE, failure=Failure("launch_failed", "exit code 1")
    )

    found = progress(preinitializing(failed), moment())

    assert [o.reason for o in found.operations] == ["launch_failed: exit code 1"]


def test_an_engine_that_refuses_to_park_ends_it():
    """Else it would be asked again at once, until the deadline."""
    seen = preinitializing(instance(S.READY, cause=Cause.PREINITIALIZE))
    changed = InstanceChanged(
        instance=making.ONE, cause=Cause.PREINITIALIZE, park_failed="nothing came free"
    )

    found = preinitialize_refused(seen, changed)

    assert found.deployment.preinitialize is None
    assert "nothing came free" in found.operations[0].reason


def test_a_park_of_somebody_else_does_not_end_it():
    changed = InstanceChanged(instance=making.ONE, cause=Cause.SWITCH, park_failed="x")

    assert preinitialize_refused(preinitializing(instance(S.READY)), changed) is None


# -- demand ----------------------------------------------------------------------------------


def test_a_parked_instance_is_woken_before_an_empty_one_is_started():
    found = progress(picture(instance(S.STOPPED), instance(S.PARKED, 1), waiting_count=3), moment())

    assert told(found) == [(1, Start)]
    assert found.operations[0].kind is K.RESTORE
    assert found.operations[0].may_evict
    assert found.operations[0].cause == "request"


def test_the_lowest_usable_instance_is_started():
    found = progress(
        picture(instance(S.STOPPED), instance(S.FAILED, 1), waiting_count=1, marked=(0,)),
        moment(),
    )

    assert told(found) == [(1, Start)]


@pytest.mark.parametrize(
    "changes",
    [
        {"waiting_count": 0},
        {"waiting_count": 1, "operator_stopped": True},
        {"waiting_count": 1, "marked": (0,)},
        {"waiting_count": 1, "checkpoint": CheckpointRecord(), "resolved": None},
        {"waiting_count": 1, "spec": attrs.evolve(making.SPEC, explicit=True)},
        {"waiting_count": 1, "restarts": (Restart(index=0, was_ready=False),), "resolved": None},
    ],
)
def test_demand_starts_nothing_where_it_must_not(changes):
    assert progress(picture(instance(S.STOPPED), **changes), moment()) is None


@pytest.mark.parametrize(
    "state", sorted(set(S) - {S.STOPPED, S.FAILED, S.PARKED, S.UNCERTAIN}, key=lambda s: s.value)
)
def test_one_that_serves_or_moves_is_waited_for(state):
    seen = picture(instance(state), instance(S.STOPPED, 1), waiting_count=1)

    assert progress(seen, moment()) is None


def test_an_instance_in_doubt_is_not_waited_for():
    seen = picture(instance(S.UNCERTAIN), instance(S.STOPPED, 1), waiting_count=1)

    assert told(progress(seen, moment())) == [(1, Start)]


def test_an_accepted_start_is_not_accepted_twice():
    begun = pending(K.INITIALIZE)
    seen = picture(operations={begun.id: begun}, waiting_count=1)

    assert progress(seen, moment()) is None


@pytest.mark.parametrize(
    ("code", "answer"),
    [
        ("insufficient_resources", "insufficient_resources"),
        ("switch_failed", "unavailable"),
        ("launch_failed", "activation_failed"),
        ("wake_failed", "activation_failed"),
    ],
)
def test_who_waited_for_a_failed_start_is_told_whose_fault_it_was(code, answer):
    assert activation_refusal("m", Failure(code, "x")).code == answer
