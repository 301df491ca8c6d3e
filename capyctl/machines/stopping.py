"""The edges of an instance on its way down: drain, end, proof, and what follows it."""

from __future__ import annotations

import attrs

from capyctl.domain.operations import Operation, OperationKind, OperationState
from capyctl.machines.doubting import serving_again
from capyctl.machines.history import end, end_open, moved
from capyctl.machines.instance import (
    Begin,
    CancelTasks,
    ChargePhase,
    CloseGate,
    DeadlineAt,
    Discard,
    Drain,
    Effect,
    EndEngine,
    EvictionOver,
    Failure,
    FreeMemory,
    Instance,
    InstanceState,
    ReopenGate,
    WithdrawMemory,
)
from capyctl.machines.observed import STOPS, woke
from capyctl.machines.parking import PARK_GATE, STOP_GATE, evict_by_park, still_ran
from capyctl.machines.starting import ATTEMPTS_MAX, STOP_GRACE_S, attempt_failed
from capyctl.machines.table import Moment, Step
from capyctl.messages.instance import (
    Cause,
    DrainTimedOut,
    EndUnproven,
    EngineExited,
    Evict,
    GateEmpty,
    GroupGone,
    LaunchDiscarded,
    LaunchNotPrepared,
    LaunchPrepared,
    Mark,
    Stop,
)

IDLE_S = 30.0
"""How long a stop waits for the engine's own gauges to show nothing running."""
INTERRUPTED = "interrupted"
"""Failure of a step that a restart of the daemon cut short."""
_STARTS = frozenset({OperationKind.INITIALIZE, OperationKind.RESTORE})
_GENTLE = frozenset({Cause.SWITCH, Cause.IDLE})
"""Nobody asked for this model to end: answers are never cut."""


def mark(one: Instance, event: Mark, _: Moment) -> Step[Instance]:
    """An operator's stop of this one instance is set or lifted."""
    return Step(data=attrs.evolve(one, operator_stopped=event.operator_stopped))


def stop_nothing(one: Instance, event: Stop, moment: Moment) -> Step[Instance]:
    """Nothing runs: the stop is done. A start that was given up ends with it."""
    cleared, ended, voided = end_open(one, OperationState.FAILED, failure=one.failure)
    done = end(event.operation, OperationState.SUCCEEDED)
    stopped = attrs.evolve(cleared, state=InstanceState.STOPPED, failure=None, cause=event.cause)
    return moved(
        one,
        stopped,
        moment,
        _completed(event),
        operations=(*ended, done),
        effects=voided,
        accepted=event.operation,
    )


def _completed(event: Stop) -> str:
    unarmed = event.operation.kind is OperationKind.UNARMED_STOP
    return "ordinary_unarmed_stop_completed" if unarmed else "ordinary_cleanup_completed"


def stop_queued(one: Instance, event: Stop, moment: Moment) -> Step[Instance]:
    """The launch had not begun: it never will."""
    cleared, ended, voided = end_open(
        one, OperationState.FAILED, error_code="stopped_before_initialize_armed"
    )
    done = end(event.operation, OperationState.SUCCEEDED)
    stopped = attrs.evolve(
        cleared,
        state=InstanceState.STOPPED,
        cause=event.cause,
        ask=None,
        waiting=None,
        failure=None,
    )
    withdraw = () if one.ask is None else (WithdrawMemory(one.ask),)
    return moved(
        one,
        stopped,
        moment,
        _completed(event),
        operations=(*ended, done),
        effects=(*voided, *withdraw),
        accepted=event.operation,
    )


def stop_serving(one: Instance, event: Stop, moment: Moment) -> Step[Instance]:
    """Admission closes at once; the last requests finish, within the drain."""
    return _drain_to_stop(one, event, moment, kinds=())


def evict_by_stop(one: Instance, event: Evict, moment: Moment) -> Step[Instance]:
    request = Stop(operation=event.operation, cause=Cause.SWITCH)
    return _drain_to_stop(one, request, moment, kinds=("ordinary_cleanup_accepted",))


def evict_ready(one: Instance, event: Evict, moment: Moment) -> Step[Instance]:
    """Make room: parked, or stopped where placement says so."""
    return evict_by_stop(one, event, moment) if event.stop else evict_by_park(one, event, moment)


def evict_parked(one: Instance, event: Evict, moment: Moment) -> Step[Instance]:
    """A parked victim can only make room by going altogether."""
    assert one.launch is not None
    ending = attrs.evolve(
        one,
        state=InstanceState.STOPPING,
        operation=attrs.evolve(event.operation, state=OperationState.RUNNING),
        cause=Cause.SWITCH,
    )
    assert ending.operation is not None
    return moved(
        one,
        ending,
        moment,
        "ordinary_cleanup_accepted",
        "ordinary_cleanup_armed",
        operations=(ending.operation,),
        effects=(EndEngine(one.launch, STOP_GRACE_S, idle_s=0.0),),
    )


def _drain_to_stop(
    one: Instance, event: Stop, moment: Moment, *, kinds: tuple[str, ...]
) -> Step[Instance]:
    cleared, ended, voided = end_open(
        one, OperationState.FAILED, error_code="resolved_by_owned_cleanup"
    )
    ended = (*ended, *dropped(one))
    draining = attrs.evolve(
        cleared,
        state=InstanceState.STOP_DRAIN,
        operation=event.operation,
        cause=event.cause,
        then=None,
        ask=None,
    )
    at_ms = event.operation.deadline_at_ms
    deadline = () if at_ms is None else (DeadlineAt(event.operation.id, at_ms),)
    return moved(
        one,
        draining,
        moment,
        *kinds,
        operations=(*ended, event.operation) if kinds else ended,
        effects=(*voided, *deadline, CancelTasks(), CloseGate(STOP_GATE), Drain()),
        about=event.operation,
    )


def stop_now(one: Instance, event: Stop, moment: Moment) -> Step[Instance]:
    """No request can be in it (starting, parked, waking …): end it without a drain."""
    cleared, ended, voided = end_open(
        one, OperationState.FAILED, error_code="resolved_by_owned_cleanup"
    )
    ended = (*ended, *dropped(one))
    running = attrs.evolve(event.operation, state=OperationState.RUNNING)
    ending = attrs.evolve(
        cleared,
        state=InstanceState.STOPPING,
        operation=running,
        cause=event.cause,
        then=None,
        ask=None,
        waiting=None,
        failure=None,
    )
    effects: tuple[Effect, ...] = (*voided, CancelTasks(), CloseGate(STOP_GATE))
    if one.ask is not None:
        effects = (*effects, WithdrawMemory(one.ask))
    if one.launch is not None:
        effects = (*effects, EndEngine(one.launch, STOP_GRACE_S, idle_s=0.0))
    return moved(
        one,
        ending,
        moment,
        "ordinary_cleanup_armed",
        operations=(*ended, running),
        effects=effects,
        accepted=event.operation,
    )


def stop_also(one: Instance, event: Stop, _: Moment) -> Step[Instance]:
    """On its way down already: the operation ends with the cleanup under way.

    A start that waited for the cleanup is dropped: the stop came after it.
    """
    riding = attrs.evolve(one, riders=(*one.riders, event.operation), then=None)
    if event.cause is Cause.OPERATOR or one.cause in _GENTLE:
        riding = attrs.evolve(riding, cause=event.cause)
    return Step(data=riding, operations=dropped(one))


def dropped(one: Instance) -> tuple[Operation, ...]:
    """A start that waited for the way down; the stop came after it."""
    if one.then is None:
        return ()
    code = "stopped_before_initialize_armed"
    return (end(one.then.operation, OperationState.FAILED, error_code=code),)


def end_now(one: Instance, event: GateEmpty | DrainTimedOut, moment: Moment) -> Step[Instance]:
    """Drained, or the drain is over: the end begins. A switch never cuts answers."""
    assert one.operation is not None
    assert one.launch is not None
    if isinstance(event, DrainTimedOut) and never_cuts(one):
        return _serve_on(one, event, moment)
    operation = attrs.evolve(one.operation, state=OperationState.RUNNING)
    ending = attrs.evolve(one, state=InstanceState.STOPPING, operation=operation)
    idle_s = IDLE_S if isinstance(event, GateEmpty) else 0.0
    return moved(
        one,
        ending,
        moment,
        "ordinary_cleanup_armed",
        operations=(operation,),
        effects=(EndEngine(one.launch, STOP_GRACE_S, idle_s=idle_s),),
    )


def never_cuts(one: Instance) -> bool:
    """Nobody asked for a stop: only for room, or for a park that became a stop."""
    became = one.instead is not None and not any(r.kind in STOPS for r in one.riders)
    return one.cause in _GENTLE or became


def _serve_on(one: Instance, event: DrainTimedOut, moment: Moment) -> Step[Instance]:
    why = still_ran(event)
    cleared, ended, voided = end_open(
        one, OperationState.CANCELLED, failure=Failure("drain_timed_out", why)
    )
    assert one.held is not None
    ready = attrs.evolve(cleared, state=InstanceState.READY, instead=None)
    ready, done, proof = serving_again(one, ready)
    reopened = (*proof, ReopenGate(STOP_GATE), ReopenGate(PARK_GATE))
    return moved(
        one,
        ready,
        moment,
        "ordinary_cleanup_expired_unarmed",
        operations=(*ended, *done),
        effects=(*voided, *reopened, ChargePhase(one.held), EvictionOver(why)),
    )


def discard(one: Instance, event: LaunchPrepared, _: Moment) -> Step[Instance]:
    """The latch came too late: nobody wants it any more."""
    return Step(data=attrs.evolve(one, launch=event.record), effects=(Discard(event.record),))


def clean(one: Instance, event: EngineExited, moment: Moment) -> Step[Instance]:
    """The engine ended unasked: nothing new goes to it, what is left of it is swept away."""
    assert one.launch is not None
    kept = one
    ended: tuple[Operation, ...] = ()
    voided: tuple[Effect, ...] = ()
    code = "oom_killed" if event.out_of_memory else "engine_exited"
    failure = Failure(code, f"the engine exited while {_doing(one)} ({event.how})")
    if one.operation is not None or one.riders:
        kept, ended, voided = end_open(one, OperationState.FAILED, failure=failure)
    cleaning = attrs.evolve(
        kept, state=InstanceState.CLEANING, failure=failure, ask=None, waiting=None
    )
    effects: tuple[Effect, ...] = (*voided, CancelTasks(), CloseGate("engine_exit"))
    if one.ask is not None:
        effects = (*effects, WithdrawMemory(one.ask))
    if one.cause is Cause.SWITCH and one.state in (
        InstanceState.PARK_DRAIN,
        InstanceState.PARKING,
        InstanceState.STOP_DRAIN,
    ):
        effects = (*effects, EvictionOver(failure.detail))
    effects = (*effects, EndEngine(one.launch, 0.0, idle_s=0.0))
    kinds = () if one.state is InstanceState.RECONCILING else ("reconcile_started",)
    return moved(one, cleaning, moment, *kinds, operations=ended, effects=effects)


def _doing(one: Instance) -> str:
    return {
        InstanceState.READY: "serving",
        InstanceState.PARKED: "parked",
        InstanceState.WAKE_QUEUED: "parked",
        InstanceState.RECONCILING: "being proven",
    }.get(one.state, "draining")


def released(
    one: Instance, _: GroupGone | LaunchDiscarded | LaunchNotPrepared, moment: Moment
) -> Step[Instance]:
    """Nothing is left of the launch: the memory is free, and every operation ends.

    1. A stop that somebody asked for ends stopped.
    2. A start that failed ends failed, its operation too.
    3. One that was stopped because it could not be parked ends stopped, its park failed.
    4. Anything else that brought the engine down (an exit, a broken park) ends failed.
    5. A start that waited for this begins.
    6. A start whose port a stranger had taken, or that a restart of the daemon cut short before
       the engine ran, is tried again at once.
    """
    if _begins_anew(one, moment):
        assert one.failure is not None
        return attempt_failed(one, one.failure, permanent=False, moment=moment, pause_s=0.0)
    kind = None if one.operation is None else one.operation.kind
    if kind in STOPS:
        state, outcome, failure = InstanceState.STOPPED, OperationState.SUCCEEDED, None
        told = "ordinary_cleanup_completed"
    elif kind in _STARTS:
        state, outcome, failure = InstanceState.FAILED, OperationState.FAILED, one.failure
        told = "restore_refused" if woke(one) else "initialize_failed_released"
    else:
        state, outcome, failure = InstanceState.FAILED, OperationState.FAILED, one.failure
        told = "ordinary_cleanup_completed"
        if kind is OperationKind.PARK and one.instead is not None:
            state = InstanceState.STOPPED
    cleared, ended, voided = end_open(one, outcome, failure=failure)
    if any(rider.kind in STOPS for rider in one.riders):
        state, failure = InstanceState.STOPPED, None
    empty = attrs.evolve(
        cleared,
        state=state,
        failure=failure,
        held=None,
        launch=None,
        launch_id=None,
        ask=None,
        waiting=None,
        instead=None,
        lost=None,
    )
    begin = () if one.then is None else (Begin(one.then),)
    effects = (*voided, FreeMemory(one.instead), *begin)
    return moved(one, empty, moment, told, operations=ended, effects=effects)


def _begins_anew(one: Instance, moment: Moment) -> bool:
    """A start that failed for nothing of its own, is still wanted, and has attempts and time."""
    if one.operation is None or one.operation.kind is not OperationKind.INITIALIZE:
        return False
    at_ms = one.operation.deadline_at_ms
    if at_ms is not None and moment.now_ms >= at_ms:
        return False
    stopped = one.then is not None or any(rider.kind in STOPS for rider in one.riders)
    blameless = one.failure is not None and one.failure.code in ("port_conflict", INTERRUPTED)
    return blameless and not stopped and one.attempts_count + 1 < ATTEMPTS_MAX


def lose_track(one: Instance, event: EndUnproven, moment: Moment) -> Step[Instance]:
    """No proof, no release: the memory stays charged until the processes are seen gone."""
    failure = Failure("uncertain", event.detail)
    operation = one.operation
    operations: tuple[Operation, ...] = ()
    if operation is not None:
        operation = attrs.evolve(operation, reason=event.detail[:500])
        operations = (operation,)
    lost = attrs.evolve(one, state=InstanceState.UNCERTAIN, failure=failure, operation=operation)
    kind = "reconcile_uncertain" if operation is None else "ordinary_cleanup_uncertain"
    if operation is not None and operation.kind in _STARTS:
        kind = "restore_uncertain" if woke(one) else "initialize_uncertain"
    return moved(one, lost, moment, kind, operations=operations)


def stop_again(one: Instance, event: Stop, moment: Moment) -> Step[Instance]:
    """Uncertain, and an operator asks once more: try to end what may be left."""
    assert one.launch is not None
    riding = stop_also(one, event, moment)
    ending = attrs.evolve(riding.data, state=InstanceState.STOPPING)
    return moved(
        one,
        ending,
        moment,
        "ordinary_cleanup_armed",
        operations=riding.operations,
        effects=(EndEngine(one.launch, STOP_GRACE_S, idle_s=0.0),),
        accepted=event.operation,
    )
