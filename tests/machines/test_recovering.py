"""After a crash, accepted work that no record knows is told again."""

from __future__ import annotations

import attrs
import pytest

from capyctl.domain.operations import OperationKind as K
from capyctl.domain.operations import OperationState as O
from capyctl.machines.instance import InstanceState as S
from capyctl.machines.instance_table import step
from capyctl.machines.recovering import lost_messages
from capyctl.messages.instance import Abandon, Cause, Mark, Park, Start, Stop
from tests.machines.making import NOW_MS, instance, moment, pending, picture, start


def lost(*ones, operations=(), **changes):
    return lost_messages(picture(*ones, operations={o.id: o for o in operations}, **changes))


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        (K.INITIALIZE, Start),
        (K.RESTORE, Start),
        (K.PARK, Park),
        (K.CLEANUP, Stop),
        (K.UNARMED_STOP, Stop),
    ],
)
def test_open_work_is_told_to_its_instance(kind, message):
    operation = pending(kind)

    ((index, told),) = lost(instance(S.STOPPED), operations=[operation])

    assert (index, type(told), told.operation) == (0, message, operation)


def test_what_the_instance_has_taken_up_is_not_told_again():
    under_way, riding, waits = pending(K.CLEANUP), pending(K.CLEANUP), start()
    one = instance(S.STOPPING, operation=under_way, riders=(riding,), then=waits)

    assert lost(one, operations=[under_way, riding, waits.operation]) == ()


def test_work_comes_in_the_order_of_its_acceptance():
    second = pending(K.CLEANUP, accepted_at_ms=NOW_MS + 5)
    first = pending(K.INITIALIZE)

    found = lost(instance(S.STOPPED), operations=[second, first])

    assert [message.operation for _, message in found] == [first, second]


def test_a_start_is_as_urgent_as_it_was_and_as_gentle():
    """A request's may move others out of the way; an operator's may not, unless it said so."""
    asked = pending(K.INITIALIZE, cause="request", may_evict=True)
    plain = pending(K.INITIALIZE, cause="operator")

    ((_, urgent),) = lost(instance(S.STOPPED), operations=[asked])
    ((_, gentle),) = lost(instance(S.STOPPED), operations=[plain])

    assert (urgent.order.cause, urgent.order.may_evict) == (Cause.REQUEST, True)
    assert (gentle.order.cause, gentle.order.may_evict) == (Cause.OPERATOR, False)


def test_given_up_starts_and_work_of_the_whole_deployment_are_nobodys():
    given_up = pending(K.INITIALIZE, given_up=True)
    whole = pending(K.PREINITIALIZE, None)

    assert lost(instance(S.FAILED), operations=[given_up, whole]) == ()


@pytest.mark.parametrize(("marked", "known"), [((0,), False), ((), True)])
def test_a_mark_that_was_not_read_is_told_again(marked, known):
    one = attrs.evolve(instance(S.STOPPED), operator_stopped=known)

    assert lost(one, marked=marked) == ((0, Mark(operator_stopped=not known)),)


@pytest.mark.parametrize(
    ("kind", "state", "event"),
    [
        (K.RESTORE, S.PARKED, "residency_cancelled"),
        (K.INITIALIZE, S.FAILED, "initialize_expired_unarmed"),
    ],
)
def test_a_start_that_nothing_is_known_of_any_more_ends(kind, state, event):
    """A replace came between, so that there is no order to tell it with."""
    operation = pending(kind)
    one = instance(state)

    assert lost(one, operations=[operation], resolved=None) == ((0, Abandon(operation=operation)),)

    done = step(one, Abandon(operation=operation), moment())

    assert done.data == one
    assert [(o.id, o.state) for o in done.operations] == [(operation.id, O.CANCELLED)]
    assert [e.kind for e in done.events] == [event]


@pytest.mark.parametrize("state", [S.QUEUED, S.STARTING, S.STOPPING])
def test_a_start_that_was_taken_up_meanwhile_goes_on(state):
    """It was on its way, not lost: it came first, and its operation ends once."""
    told = start()
    taken = step(instance(S.STOPPED), told, moment()).data
    if state is S.STARTING:
        taken = instance(S.STARTING, operation=told.operation)
    if state is S.STOPPING:
        taken = step(instance(S.STOPPING), told, moment()).data

    done = step(taken, Abandon(operation=told.operation), moment())

    assert done.data == taken
    assert (done.operations, done.events, done.effects) == ((), (), ())


def test_a_stop_is_told_whatever_became_of_the_files():
    stop = pending(K.CLEANUP)

    told = lost(instance(S.READY), operations=[stop], resolved=None)

    assert [type(message) for _, message in told] == [Stop]
