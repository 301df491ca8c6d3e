"""Instances leave a drained host, and go on elsewhere."""

from __future__ import annotations

import attrs
import pytest

from capyctl.domain.operations import OperationKind as K
from capyctl.machines.actions import decide
from capyctl.machines.deployment import refusal
from capyctl.machines.instance import InstanceState as S
from capyctl.machines.progress import progress
from capyctl.messages.deployment import ActionKind
from capyctl.messages.instance import Cause, Start, Stop
from tests.machines.making import HOST, act, instance, moment, pending, picture


def drained(*ones, **changes):
    return attrs.evolve(picture(*ones, **changes), draining=frozenset({HOST}))


@pytest.mark.parametrize("state", [S.READY, S.WAKE_QUEUED])
def test_what_runs_there_is_stopped_and_noted(state):
    found = progress(drained(instance(state)), moment())

    ((index, message),) = found.tell
    assert (index, type(message), message.cause) == (0, Stop, Cause.DRAIN)
    assert found.deployment.moves == (0,)


def test_what_is_parked_there_is_stopped_and_stays_down():
    found = progress(drained(instance(S.PARKED)), moment())

    assert type(found.tell[0][1]) is Stop
    assert found.deployment.moves == ()


def test_one_that_retires_does_not_come_back():
    found = progress(drained(instance(S.READY), instance(S.READY, 1), count=1), moment())

    assert found.tell[0][0] == 1
    assert found.deployment.moves == ()


@pytest.mark.parametrize("state", [S.STARTING, S.PARKING, S.STOPPING, S.UNCERTAIN, S.STOPPED])
def test_what_is_on_its_way_or_in_doubt_is_left_alone(state):
    assert progress(drained(instance(state)), moment()) is None


def test_a_stop_is_accepted_once():
    stopping = pending(K.CLEANUP)
    seen = drained(instance(S.READY), operations={stopping.id: stopping}, moves=(0,))

    assert progress(seen, moment()) is None


def test_elsewhere_nothing_is_stopped():
    assert progress(picture(instance(S.READY)), moment()) is None


def test_once_it_is_down_it_is_started_without_moving_others():
    found = progress(picture(instance(S.STOPPED), moves=(0,)), moment())

    ((index, message),) = found.tell
    assert (index, type(message), message.order.cause) == (0, Start, Cause.DRAIN)
    assert not message.order.may_evict
    assert found.deployment.moves == ()


def test_it_waits_while_every_machine_that_could_take_it_is_drained():
    assert progress(drained(instance(S.STOPPED), moves=(0,)), moment()) is None


@pytest.mark.parametrize("state", [S.QUEUED, S.STARTING])
def test_one_that_somebody_started_already_is_not_started_again(state):
    found = progress(picture(instance(state), moves=(0,)), moment())

    assert (found.tell, found.deployment.moves) == ((), ())


def test_one_that_an_operator_stopped_meanwhile_stays_down():
    found = progress(picture(instance(S.STOPPED), moves=(0,), marked=(0,)), moment())

    assert (found.tell, found.deployment.moves) == ((), ())


def test_a_stop_of_the_deployment_ends_its_moves():
    found = decide(picture(instance(S.STOPPING), moves=(0,)), act(ActionKind.STOP), moment())

    assert found.deployment.moves == ()


def test_requests_wait_while_it_moves_also_for_a_model_that_only_operators_start():
    explicit = attrs.evolve(picture().deployment.spec, explicit=True)
    moving = picture(instance(S.STOPPED), moves=(0,), spec=explicit)

    assert refusal(moving) is None
    assert refusal(picture(instance(S.STOPPED), spec=explicit)).code == "deployment_inactive"
