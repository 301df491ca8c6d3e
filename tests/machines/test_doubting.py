"""A model that was to give way on a machine whose process began anew is proven before it serves on.

The new process lets no request through to an engine that it has not seen answer.
"""

from __future__ import annotations

import attrs
import pytest

from capyctl.machines.doubting import PROVE_S, STARTING_GATE
from capyctl.machines.instance import CloseGate, OpenGate, Prove, ReopenGate
from capyctl.machines.instance import InstanceState as S
from capyctl.machines.instance_table import step
from capyctl.messages import instance as m
from capyctl.messages.instance import Cause
from tests.machines.making import ASK, LAUNCH, back, instance, moment, order, record, start

NO_END = {
    "drain of a park": (S.PARK_DRAIN, m.DrainTimedOut(launch=LAUNCH, within_s=30.0, open_count=1)),
    "no room": (S.PARK_DRAIN, m.NoParkRoom(ask=ASK, reason="full", full=True)),
    "engine": (S.PARKING, m.EngineNotParked(launch=LAUNCH, reason="busy")),
    "drain of a stop": (S.STOP_DRAIN, m.DrainTimedOut(launch=LAUNCH, within_s=30.0, open_count=1)),
}


def came_to_nothing(case: str, *, fresh: bool | None, then=None):
    """The step with which it is ready again. ``fresh``: its host was silent, None: it was not."""
    state, event = NO_END[case]
    cause = Cause.SWITCH if state is S.STOP_DRAIN else Cause.OPERATOR
    one = instance(state, ask=ASK, cause=cause, then=then)
    if fresh is not None:
        one = step(one, back(fresh=fresh), moment()).data
    return step(one, event, moment())


@pytest.mark.parametrize("fresh", [None, False])
@pytest.mark.parametrize("case", NO_END)
def test_where_the_machine_is_as_it_was_it_serves_on_at_once(case, fresh):
    done = came_to_nothing(case, fresh=fresh)

    assert done.data.state is S.READY
    assert not any(isinstance(effect, Prove) for effect in done.effects)


@pytest.mark.parametrize("case", NO_END)
def test_where_its_process_is_another_it_is_proven_first_behind_a_closed_gate(case):
    done = came_to_nothing(case, fresh=True)

    assert done.data.state is S.RECONCILING
    assert Prove(record(), PROVE_S) in done.effects
    closed = done.effects.index(CloseGate(STARTING_GATE))
    assert all(
        closed < at for at, effect in enumerate(done.effects) if isinstance(effect, ReopenGate)
    )

    proved = step(done.data, m.EngineProved(launch=LAUNCH), moment())

    assert proved.data.state is S.READY
    assert OpenGate(record(), proved.data.generation) in proved.effects
    assert not proved.data.proof_due


@pytest.mark.parametrize("case", NO_END)
def test_a_start_that_waited_has_what_it_wanted_once_it_is_proven(case):
    waited = start()
    done = came_to_nothing(case, fresh=True, then=waited)

    assert waited.operation.id not in {o.id for o in done.operations}

    proved = step(done.data, m.EngineProved(launch=LAUNCH), moment())

    assert {o.id: o.open for o in proved.operations}[waited.operation.id] is False
    assert proved.data.then is None


def test_what_is_parked_or_begins_anew_has_nothing_to_prove():
    parking = step(instance(S.PARKING), back(fresh=True), moment()).data
    assert parking.proof_due

    parked = step(parking, m.EngineParked(launch=LAUNCH, residue={}), moment()).data
    anew = step(attrs.evolve(instance(S.STOPPED), proof_due=True), start(), moment()).data

    assert not parked.proof_due
    assert not anew.proof_due
    assert anew.order == order()
