"""The edges of an instance on its way to ready: memory, launch, readiness, wake, proof."""

from __future__ import annotations

import attrs

from capyctl.domain.ids import LaunchId
from capyctl.domain.launches import LaunchOrder, LaunchRecord
from capyctl.domain.operations import Operation, OperationState
from capyctl.domain.specs import Phase
from capyctl.machines.fitting import order_on
from capyctl.machines.history import end, end_open, moved, one_line
from capyctl.machines.instance import (
    AskMemory,
    ChargePhase,
    DeadlineAt,
    Effect,
    Failure,
    FreeMemory,
    Held,
    Instance,
    InstanceState,
    OpenGate,
    Prepare,
    ReopenGate,
    RetryAfter,
    Run,
    WakeEngine,
)
from capyctl.machines.seeing import drift_flagged, with_peak
from capyctl.machines.table import Moment, Step
from capyctl.messages.instance import (
    EngineAnswered,
    EngineProved,
    EngineWoken,
    LaunchNotPrepared,
    LaunchPrepared,
    Reserved,
    ReserveRefused,
    ReserveWaits,
    RetryDue,
    Start,
)

ATTEMPTS_MAX = 3
RETRY_PAUSE_S = 30.0
"""Pause after the first failed attempt; doubles with each further one."""
STOP_GRACE_S = 15.0
HOST_GATE = "host_session"
"""Why the gate is closed while the instance's host is silent or away."""


def begin(one: Instance, event: Start, moment: Moment) -> Step[Instance]:
    """Settled and empty: get in line for memory. A start that waited for that says so."""
    cleared, ended, voided = end_open(one, OperationState.FAILED, failure=one.failure)
    kinds = ("initialize_queued",) if _waited(one, event) else ()
    ask = moment.fresh()
    queued = attrs.evolve(
        cleared,
        state=InstanceState.QUEUED,
        operation=event.operation,
        then=None,
        order=event.order,
        revision=event.order.revision,
        generation=event.order.generation,
        cause=event.order.cause,
        ask=ask,
        attempts_count=0,
        failure=None,
        waiting=None,
        instead=None,
        proof_due=False,
        # What another revision's launch took says nothing of this one's.
        seen=one.seen if one.revision == event.order.revision else None,
    )
    effects = (*voided, *deadline_of(event), AskMemory(ask, Phase.COLD))
    return moved(
        one,
        queued,
        moment,
        *kinds,
        operations=ended,
        effects=effects,
        about=event.operation,
    )


def _waited(one: Instance, event: Start) -> bool:
    return one.then is not None and one.then.operation.id == event.operation.id


def begin_wake(one: Instance, event: Start, moment: Moment) -> Step[Instance]:
    """Parked: get in line for the memory of a wake. One that waited for the park says so."""
    ask = moment.fresh()
    kinds = ("restore_accepted",) if _waited(one, event) else ()
    queued = attrs.evolve(
        one,
        state=InstanceState.WAKE_QUEUED,
        operation=event.operation,
        then=None,
        order=event.order if one.host is None else order_on(event.order, one.host),
        cause=event.order.cause,
        generation=event.order.generation,
        ask=ask,
        waiting=None,
    )
    effects = (*deadline_of(event), AskMemory(ask, Phase.WAKE))
    return moved(one, queued, moment, *kinds, effects=effects, about=event.operation)


def deadline_of(event: Start) -> tuple[Effect, ...]:
    at_ms = event.operation.deadline_at_ms
    return () if at_ms is None else (DeadlineAt(event.operation.id, at_ms),)


def join(one: Instance, event: Start, _: Moment) -> Step[Instance]:
    """On its way already: the operation ends together with the one under way."""
    riding = attrs.evolve(one, riders=(*one.riders, event.operation))
    return Step(data=riding, effects=deadline_of(event))


def already_ready(one: Instance, event: Start, _: Moment) -> Step[Instance]:
    """Nothing to do: the operation has succeeded."""
    return Step(data=one, operations=(end(event.operation, OperationState.SUCCEEDED),))


def start_later(one: Instance, event: Start, _: Moment) -> Step[Instance]:
    """On its way down: begin once that is settled. A later start replaces an earlier one."""
    ended: tuple[Operation, ...] = ()
    if _waited(one, event):
        return Step(data=one)
    if one.then is not None:
        ended = (end(one.then.operation, OperationState.FAILED, error_code="superseded"),)
    return Step(data=attrs.evolve(one, then=event), operations=ended, effects=deadline_of(event))


def wait_for_room(one: Instance, event: ReserveWaits, moment: Moment) -> Step[Instance]:
    """In line, and why: told once, kept in the operation."""
    assert one.operation is not None
    operation = attrs.evolve(one.operation, reason=one_line(event.reason))
    waiting = attrs.evolve(
        one,
        operation=operation,
        waiting=event.reason,
        failure=Failure("placement", _placement_token(event.reason)),
    )
    if one.state is InstanceState.WAKE_QUEUED:
        waiting = attrs.evolve(waiting, failure=one.failure)
        return Step(data=waiting, operations=(operation,))
    kinds = () if one.waiting else ("initialize_queued",)
    return moved(one, waiting, moment, *kinds, operations=(operation,))


def _placement_token(reason: str) -> str:
    """What the status says of one that waits; the reason has the figures."""
    token = reason.partition(":")[0]
    named = (
        "no_host_fits",
        "startup_requires_empty_host",
        "host_ineligible",
        "device_conflict",
    )
    return token if token in named else "insufficient_capacity"


def arm(one: Instance, event: Reserved, moment: Moment) -> Step[Instance]:
    """Memory is held. Durable from here on, so nothing is launched on uncharged bytes."""
    assert one.operation is not None
    assert one.order is not None
    launch = LaunchId(moment.fresh())
    operation = attrs.evolve(one.operation, state=OperationState.RUNNING, reason=None)
    candidate = event.candidate
    armed = attrs.evolve(
        one,
        state=InstanceState.STARTING,
        operation=operation,
        ask=None,
        waiting=None,
        failure=None,
        order=order_on(one.order, candidate.host),
        held=Held(candidate=candidate, phase=Phase.COLD),
        launch_id=launch,
        launch=None,
        last_host=candidate.host,
        last_gpu=candidate.gpu,
    )
    # What was said of an earlier host counts no more.
    effects = (ReopenGate(HOST_GATE), Prepare(launch_order(armed, launch)))
    return moved(one, armed, moment, "initialize_armed", operations=(operation,), effects=effects)


def launch_order(one: Instance, launch: LaunchId) -> LaunchOrder:
    """What the host is asked to launch for ``one``, on the place it holds."""
    assert one.order is not None
    assert one.held is not None
    uuid = one.held.candidate.gpu_uuid
    return LaunchOrder(
        launch=launch,
        instance=one.id,
        engine=one.order.engine,
        residency=one.order.residency,
        device_uuids=() if uuid is None else (uuid,),
        charges=one.held.candidate.charges,
        files=one.order.files,
    )


def associate(one: Instance, event: LaunchPrepared, moment: Moment) -> Step[Instance]:
    """A process exists and is ours; once this is durable it may become the engine."""
    assert one.launch_id is not None
    known = attrs.evolve(one, launch=event.record)
    run = Run(event.record, launch_order(one, one.launch_id), remaining_s(one, moment))
    done = moved(one, known, moment, "owned_launch_associated", effects=(run,))
    flagged = drift_flagged(known)
    return done if flagged is None else attrs.evolve(done, events=(*done.events, flagged))


def remaining_s(one: Instance, moment: Moment) -> float:
    """Seconds the step under way may still take: its window, within its deadline."""
    assert one.order is not None
    windows = one.order.windows
    wakes = one.state in (InstanceState.WAKE_QUEUED, InstanceState.WAKING)
    window_s = windows.wake_s if wakes and windows.wake_s is not None else windows.initialize_s
    if one.operation is None or one.operation.deadline_at_ms is None:
        return window_s
    left_s = (one.operation.deadline_at_ms - moment.now_ms) / 1000
    return max(0.0, min(window_s, left_s))


def not_prepared(one: Instance, event: LaunchNotPrepared, moment: Moment) -> Step[Instance]:
    """No latch: as `attempt_failed`, another attempt after a pause, or given up."""
    return attempt_failed(
        one, Failure(event.code, event.detail), permanent=event.permanent, moment=moment
    )


def attempt_failed(
    one: Instance,
    failure: Failure,
    *,
    permanent: bool,
    moment: Moment,
    pause_s: float = RETRY_PAUSE_S,
) -> Step[Instance]:
    """Nothing runs. Give the memory back; try again after a pause, or give up.

    Three attempts with pauses of ``pause_s``, doubling, within the deadline; a failure that
    waiting cannot mend gives up at once. The operation of a start that was given up
    stays open until its deadline.
    """
    assert one.operation is not None
    count = one.attempts_count + 1
    empty = attrs.evolve(
        one,
        held=None,
        launch=None,
        launch_id=None,
        ask=None,
        attempts_count=count,
        failure=failure,
    )
    if permanent or count >= ATTEMPTS_MAX:
        operation = attrs.evolve(
            one.operation,
            state=OperationState.PENDING,
            given_up=True,
            error_code=failure.code,
            reason=one_line(f"gave up: {failure}"),
        )
        failed = attrs.evolve(empty, state=InstanceState.FAILED, operation=operation)
        return moved(
            one,
            failed,
            moment,
            "initialize_given_up",
            operations=(operation,),
            effects=(FreeMemory(),),
        )
    operation = attrs.evolve(
        one.operation,
        state=OperationState.PENDING,
        reason=one_line(f"attempt failed: {failure}"),
    )
    again = attrs.evolve(empty, state=InstanceState.QUEUED, operation=operation)
    pause = RetryAfter(pause_s * 2 ** (count - 1))
    return moved(
        one,
        again,
        moment,
        "initialize_queued",
        operations=(operation,),
        effects=(FreeMemory(), pause),
    )


def try_again(one: Instance, _: RetryDue, moment: Moment) -> Step[Instance]:
    """The pause is over; unless a later start is in line already."""
    if one.ask is not None:
        return Step(data=one)
    ask = moment.fresh()
    return Step(data=attrs.evolve(one, ask=ask), effects=(AskMemory(ask, Phase.COLD),))


def no_room(one: Instance, event: ReserveRefused, moment: Moment) -> Step[Instance]:
    """No room will come: a start ends as stopped, a wake as parked."""
    failure = Failure(event.code, event.reason)
    cleared, ended, voided = end_open(one, OperationState.FAILED, failure=failure)
    wakes = one.state is InstanceState.WAKE_QUEUED
    after = attrs.evolve(
        cleared,
        state=InstanceState.PARKED if wakes else InstanceState.STOPPED,
        ask=None,
        waiting=None,
        failure=failure,
    )
    kind = "restore_refused" if wakes else "initialize_expired_unarmed"
    return moved(one, after, moment, kind, operations=ended, effects=voided)


def become_ready(one: Instance, event: EngineAnswered, moment: Moment) -> Step[Instance]:
    """It answered its probe: the gate opens."""
    assert one.launch is not None
    seen = attrs.evolve(one, seen=with_peak(one, event.peak))
    return _serve(seen, attrs.evolve(one.launch, canary=event.canary), "ready_committed", moment)


def become_awake(one: Instance, _: EngineWoken, moment: Moment) -> Step[Instance]:
    """It answered as before the park: the gate opens."""
    assert one.launch is not None
    return _serve(one, one.launch, "restored_committed", moment)


def become_proved(one: Instance, _: EngineProved, moment: Moment) -> Step[Instance]:
    """The engine that was found again answers: the gate opens."""
    assert one.launch is not None
    return _serve(one, one.launch, "reconciled_committed", moment)


def _serve(one: Instance, launch: LaunchRecord, kind: str, moment: Moment) -> Step[Instance]:
    assert one.held is not None
    held = attrs.evolve(one.held, phase=Phase.READY)
    cleared, ended, voided = end_open(one, OperationState.SUCCEEDED)
    done = then_done(one)
    ready = attrs.evolve(
        cleared,
        state=InstanceState.READY,
        then=None,
        launch=launch,
        held=held,
        failure=None,
        waiting=None,
        attempts_count=0,
    )
    assert ready.launch is not None
    effects = (*voided, ChargePhase(held), OpenGate(ready.launch, ready.generation))
    return moved(one, ready, moment, kind, operations=(*ended, *done), effects=effects)


def then_done(one: Instance) -> tuple[Operation, ...]:
    """Ready after all: the start that waited for the way down has what it wanted."""
    return () if one.then is None else (end(one.then.operation, OperationState.SUCCEEDED),)


def wake_now(one: Instance, _: Reserved, moment: Moment) -> Step[Instance]:
    """The memory of the wake is held: the engine is told."""
    assert one.operation is not None
    assert one.held is not None
    assert one.launch is not None
    operation = attrs.evolve(one.operation, state=OperationState.RUNNING, reason=None)
    waking = attrs.evolve(
        one,
        state=InstanceState.WAKING,
        operation=operation,
        ask=None,
        waiting=None,
        held=attrs.evolve(one.held, phase=Phase.WAKE),
    )
    effects = (WakeEngine(one.launch, remaining_s(one, moment)),)
    return moved(one, waking, moment, "restore_armed", operations=(operation,), effects=effects)
