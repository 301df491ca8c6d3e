"""What is shown of an instance and of a deployment."""

from __future__ import annotations

import attrs
import pytest

from capyctl.domain.operations import OperationKind as K
from capyctl.domain.specs import Phase
from capyctl.machines.instance import InstanceState as S
from capyctl.machines.observed import observed_deployment, observed_instance
from tests.machines.making import instance, pending


@pytest.mark.parametrize(
    ("state", "kind", "shown"),
    [
        (S.STOPPED, K.INITIALIZE, "queued"),
        (S.FAILED, K.INITIALIZE, "queued"),
        (S.PARKED, K.RESTORE, "waking"),
        (S.READY, K.PARK, "parking"),
        (S.READY, K.CLEANUP, "stopping"),
        (S.PARKED, K.CLEANUP, "stopping"),
        (S.WAKING, K.CLEANUP, "stopping"),
        (S.PARK_DRAIN, K.CLEANUP, "stopping"),
        (S.RECONCILING, K.CLEANUP, "stopping"),
        (S.QUEUED, K.UNARMED_STOP, "queued"),
        (S.STARTING, K.UNARMED_STOP, "stopping"),
        (S.UNCERTAIN, K.CLEANUP, "uncertain"),
        (S.CLEANING, K.CLEANUP, "reconciling"),
        (S.PARKING, K.RESTORE, "parking"),
        # A wake that was accepted during a park finds what became of that.
        (S.FAILED, K.RESTORE, "queued"),
        (S.STOPPED, K.RESTORE, "queued"),
        (S.PARKED, K.INITIALIZE, "waking"),
    ],
)
def test_accepted_work_shows_at_once(state, kind, shown):
    assert observed_instance(instance(state), [pending(kind)]) == shown


@pytest.mark.parametrize(
    ("kind", "shown"),
    [
        (K.INITIALIZE, "starting"),
        (K.RESTORE, "waking"),
        (K.PARK, "parking"),
        (K.CLEANUP, "stopping"),
        (None, "reconciling"),
    ],
)
def test_what_is_being_ended_shows_what_was_to_become_of_it(kind, shown):
    under_way = None if kind is None else pending(kind)
    ending = instance(S.STOPPING, operation=under_way)
    if kind is K.RESTORE:
        ending = attrs.evolve(ending, held=attrs.evolve(ending.held, phase=Phase.WAKE))

    assert observed_instance(ending) == shown
    assert observed_instance(ending, [pending(K.CLEANUP)]) == "stopping"


def test_a_wake_that_became_a_cold_start_is_a_start():
    """Its engine was gone by the time it began; the operation keeps the kind it was accepted as."""
    failing = instance(S.STOPPING, operation=pending(K.RESTORE))
    cold = attrs.evolve(failing, held=attrs.evolve(failing.held, phase=Phase.COLD))

    assert observed_instance(cold) == "starting"


def test_a_stop_shows_before_anything_else():
    assert observed_instance(instance(S.READY), [pending(K.PARK), pending(K.CLEANUP)]) == "stopping"


def test_a_given_up_start_and_work_of_others_do_not_show():
    operations = [pending(K.INITIALIZE, given_up=True), pending(K.INITIALIZE, 1)]

    assert observed_instance(instance(S.FAILED), operations) == "failed"


@pytest.mark.parametrize(
    ("shown", "observed"),
    [
        (("ready", "uncertain"), "ready"),
        (("stopping", "starting", "waking"), "waking"),
        (("uncertain", "waking"), "uncertain"),
        (("failed", "failed"), "failed"),
        (("failed", "stopped"), "stopped"),
        (("failed", "parked"), "parked"),
        ((), "stopped"),
    ],
)
def test_a_deployment_shows_the_first_that_matters(shown, observed):
    assert observed_deployment(shown) == observed
