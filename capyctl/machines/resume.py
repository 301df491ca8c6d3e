"""What an instance's actor does first when it begins from the store: one way for all starts."""

from __future__ import annotations

import attrs

from capyctl.domain.launches import LaunchRecord
from capyctl.domain.operations import OperationState
from capyctl.domain.specs import Phase
from capyctl.machines.history import end_open, moved
from capyctl.machines.instance import (
    AskMemory,
    AskParkRoom,
    Begin,
    DeadlineAt,
    Drain,
    Effect,
    EndEngine,
    Failure,
    FreeMemory,
    Instance,
    InstanceState,
    OpenGate,
    Prove,
    RetryAfter,
    Run,
    Watch,
    WithdrawMemory,
)
from capyctl.machines.parking import parked_charges
from capyctl.machines.starting import RETRY_PAUSE_S, STOP_GRACE_S, launch_order, remaining_s
from capyctl.machines.stopping import INTERRUPTED, released
from capyctl.machines.table import Moment, Step
from capyctl.messages.instance import LaunchDiscarded

PROVE_S = 60.0


def resume(
    one: Instance, moment: Moment, *, same_daemon: bool, running: bool = True
) -> Step[Instance]:
    """The first step of an actor that begins with ``one`` as it was stored.

    ``running``: False when the launch's process is certainly gone.
    ``same_daemon``: only the actor began anew; gates and leases are as they were, so a
    ready engine need not be proven again.

    1. Settled: nothing, or the start that waited for it.
    2. In line for memory: in line again.
    3. Armed without a known process: nothing runs (its latch died with us); in line again.
    4. A process is known: it is watched, and goes on where it was. A start whose process is
       surely gone begins anew, once nothing of that launch is left.
    5. Between two states of the engine (park, wake): not provable, so it is ended.
    6. On its way down: ended once more.
    """
    if one.state is InstanceState.STARTING and one.launch is not None and not running:
        step = _begin_anew(one, one.launch)
    else:
        step = _resume(one, moment, same_daemon=same_daemon)
    deadlines = _deadlines(step.data)
    return attrs.evolve(step, effects=(*deadlines, *step.effects))


def _deadlines(one: Instance) -> tuple[Effect, ...]:
    then = None if one.then is None else one.then.operation
    return tuple(
        DeadlineAt(operation.id, operation.deadline_at_ms)
        for operation in (one.operation, *one.riders, then)
        if operation is not None and operation.open and operation.deadline_at_ms is not None
    )


def _resume(one: Instance, moment: Moment, *, same_daemon: bool) -> Step[Instance]:
    match one.state:
        case InstanceState.STOPPED | InstanceState.FAILED:
            return Step(data=one, effects=() if one.then is None else (Begin(one.then),))
        case InstanceState.QUEUED if one.ask is None and one.attempts_count > 0:
            pause_s = RETRY_PAUSE_S * 2 ** (one.attempts_count - 1)
            return Step(data=one, effects=(RetryAfter(pause_s),))
        case InstanceState.QUEUED:
            return _ask_again(one, Phase.COLD, moment)
        case InstanceState.WAKE_QUEUED:
            return _watching(one, _ask_again(one, Phase.WAKE, moment))
        case InstanceState.STARTING:
            return _resume_start(one, moment)
        case InstanceState.READY | InstanceState.PARK_DRAIN | InstanceState.RECONCILING:
            return _resume_serving(one, moment, same_daemon=same_daemon)
        case InstanceState.PARKED:
            begin = () if one.then is None else (Begin(one.then),)
            return _watching(one, Step(data=one, effects=begin))
        case InstanceState.PARKING | InstanceState.WAKING:
            return _resume_between(one, moment)
        case _:
            return _resume_down(one, moment)


def _watching(one: Instance, step: Step[Instance]) -> Step[Instance]:
    assert one.launch is not None
    return attrs.evolve(step, effects=(Watch(one.launch), *step.effects))


def _ask_again(one: Instance, phase: Phase, moment: Moment) -> Step[Instance]:
    ask = moment.fresh()
    withdraw = () if one.ask is None else (WithdrawMemory(one.ask),)
    effects = (*withdraw, AskMemory(ask, phase))
    return Step(data=attrs.evolve(one, ask=ask), effects=effects)


def _resume_start(one: Instance, moment: Moment) -> Step[Instance]:
    if one.launch is not None and one.launch_id is not None:
        order = launch_order(one, one.launch_id)
        run = Run(one.launch, order, remaining_s(one, moment))
        return Step(data=one, effects=(run,))
    assert one.operation is not None
    ask = moment.fresh()
    operation = attrs.evolve(one.operation, state=OperationState.PENDING)
    queued = attrs.evolve(
        one,
        state=InstanceState.QUEUED,
        operation=operation,
        held=None,
        launch_id=None,
        ask=ask,
    )
    return moved(
        one,
        queued,
        moment,
        "initialize_queued",
        operations=(operation,),
        effects=(FreeMemory(), AskMemory(ask, Phase.COLD)),
    )


def _begin_anew(one: Instance, launch: LaunchRecord) -> Step[Instance]:
    """The daemon went down as the engine was to begin: the accepted start is not lost."""
    failure = Failure(INTERRUPTED, "the daemon restarted before the engine ran")
    ending = attrs.evolve(one, state=InstanceState.STOPPING, failure=failure)
    return Step(data=ending, effects=(EndEngine(launch, 0.0, idle_s=0.0),))


def _resume_serving(one: Instance, moment: Moment, *, same_daemon: bool) -> Step[Instance]:
    assert one.launch is not None
    if same_daemon and one.state is InstanceState.READY:
        gate = OpenGate(one.launch, one.generation)
        return Step(data=one, effects=(Watch(one.launch), gate))
    if same_daemon and one.state is InstanceState.PARK_DRAIN:
        ask = moment.fresh()
        room = AskParkRoom(ask, parked_charges(one, {}))
        return Step(data=attrs.evolve(one, ask=ask), effects=(Watch(one.launch), room))
    failure = Failure("interrupted", "the daemon restarted before the park began")
    cleared, ended, _ = end_open(one, OperationState.CANCELLED, failure=failure)
    doubted = attrs.evolve(cleared, state=InstanceState.RECONCILING, ask=None)
    effects = (Watch(one.launch), Prove(one.launch, PROVE_S))
    if one.state is InstanceState.RECONCILING:
        return Step(data=doubted, operations=ended, effects=effects)
    return moved(one, doubted, moment, "reconcile_started", operations=ended, effects=effects)


def _resume_between(one: Instance, moment: Moment) -> Step[Instance]:
    assert one.launch is not None
    verb = "park" if one.state is InstanceState.PARKING else "wake"
    failure = Failure("interrupted", f"the daemon restarted in the middle of a {verb}")
    ending = attrs.evolve(one, state=InstanceState.STOPPING, failure=failure)
    kind = "park_uncertain" if verb == "park" else "restore_uncertain"
    effects = (EndEngine(one.launch, STOP_GRACE_S, idle_s=0.0),)
    return moved(one, ending, moment, kind, effects=effects)


def _resume_down(one: Instance, moment: Moment) -> Step[Instance]:
    """STOP_DRAIN, STOPPING, CLEANING, UNCERTAIN: whatever may be left is ended."""
    if one.state is InstanceState.STOP_DRAIN:
        assert one.launch is not None
        return Step(data=one, effects=(Watch(one.launch), Drain(0.0)))
    if one.launch is None:
        assert one.launch_id is not None
        return released(one, LaunchDiscarded(launch=one.launch_id), moment)
    return Step(data=one, effects=(EndEngine(one.launch, STOP_GRACE_S, idle_s=0.0),))
