"""What an instance does first after a restart of the daemon that cut its start short."""

from __future__ import annotations

from capyctl.domain.operations import OperationKind, OperationState
from capyctl.machines.instance import AskMemory, EndEngine, FreeMemory, InstanceState, Run
from capyctl.machines.instance_table import step
from capyctl.machines.resume import resume
from capyctl.messages.instance import GroupGone
from tests.machines.making import LAUNCH, instance, moment, stop

S = InstanceState


def cut_short(**changes):
    """A start whose daemon died between recording its latch and opening it."""
    return resume(instance(S.STARTING, **changes), moment(), same_daemon=False, running=False)


def test_a_start_whose_process_lives_goes_on():
    found = resume(instance(S.STARTING), moment(), same_daemon=False, running=True)

    assert found.data.state is S.STARTING
    assert any(isinstance(effect, Run) for effect in found.effects)


def test_a_start_whose_process_is_gone_sweeps_first_and_keeps_its_memory():
    found = cut_short()

    assert found.data.state is S.STOPPING
    assert found.data.held is not None
    assert any(isinstance(effect, EndEngine) for effect in found.effects)
    assert not any(isinstance(effect, FreeMemory) for effect in found.effects)


def test_an_accepted_start_is_not_lost_with_the_daemon():
    """Once nothing is left of the launch, the same operation is in line again."""
    before = cut_short().data

    done = step(before, GroupGone(launch=LAUNCH), moment())

    assert done.data.state is S.QUEUED
    assert done.data.operation is not None
    assert done.data.operation.id == before.operation.id
    assert done.data.operation.open
    assert done.data.held is None


def test_it_asks_for_memory_again_at_once():
    done = step(cut_short().data, GroupGone(launch=LAUNCH), moment())

    pauses = [effect.pause_s for effect in done.effects if hasattr(effect, "pause_s")]
    assert pauses == [0.0] or any(isinstance(effect, AskMemory) for effect in done.effects)


def test_a_stop_that_came_meanwhile_wins():
    stopping = step(cut_short().data, stop(), moment()).data

    done = step(stopping, GroupGone(launch=LAUNCH), moment())

    assert done.data.state is S.STOPPED
    ended = {o.kind: o.state for o in done.operations}
    assert ended[OperationKind.INITIALIZE] is OperationState.FAILED
    assert ended[OperationKind.CLEANUP] is OperationState.SUCCEEDED


def test_it_does_not_begin_anew_past_its_deadline():
    before = cut_short().data
    late = moment(before.operation.deadline_at_ms)

    done = step(before, GroupGone(launch=LAUNCH), late)

    assert done.data.state is S.FAILED
    assert [o.state for o in done.operations] == [OperationState.FAILED]


def test_it_does_not_go_on_for_ever():
    done = step(cut_short(attempts_count=2).data, GroupGone(launch=LAUNCH), moment())

    assert done.data.state is S.FAILED
