"""The edges of an instance whose host is silent or away: its memory stays charged, it waits.

What was asked of it stays open until the host is back, or until its own deadline.
"""

from __future__ import annotations

import attrs

from capyctl.domain.operations import Operation, OperationKind, OperationState
from capyctl.machines.expiring import expire_other
from capyctl.machines.history import end, moved, one_line
from capyctl.machines.instance import (
    CloseGate,
    DeadlineAt,
    DropTasks,
    Effect,
    EvictionOver,
    Failure,
    Instance,
    InstanceState,
    Lost,
    NoDeadline,
    WithdrawMemory,
)
from capyctl.machines.observed import STOPS, woke
from capyctl.machines.starting import HOST_GATE, join, start_later
from capyctl.machines.stopping import dropped, never_cuts, stop_again, stop_also
from capyctl.machines.table import Moment, Step
from capyctl.messages.instance import (
    Cause,
    DeadlineReached,
    HostLost,
    HostSuspended,
    Start,
    Stop,
)

HOST_LOST = "host_lost"
"""Failure of an instance whose host is away."""

_S = InstanceState
_VICTIM = frozenset({_S.PARK_DRAIN, _S.PARKING, _S.STOP_DRAIN, _S.STOPPING})
_COMING_UP = frozenset({_S.STARTING, _S.WAKE_QUEUED, _S.WAKING})
_BEING_ENDED = frozenset({_S.STOP_DRAIN, _S.STOPPING, _S.CLEANING, _S.UNCERTAIN})
_AFTER_DEADLINE = {
    _S.STARTING: _S.STOPPING,
    _S.WAKING: _S.STOPPING,
    _S.WAKE_QUEUED: _S.PARKED,
    _S.PARK_DRAIN: _S.READY,
}
"""What it goes on as when nobody waits for its start, wake or park any more."""
_UNBEGUN = frozenset({_S.WAKE_QUEUED, _S.PARK_DRAIN})


def suspend(one: Instance, _: HostSuspended, __: Moment) -> Step[Instance]:
    """Its host is silent: nothing new goes to it, and nothing else changes."""
    return Step(data=one, effects=(CloseGate(HOST_GATE),))


def lose_host(one: Instance, event: HostLost, moment: Moment) -> Step[Instance]:
    """Its host is away: it stays charged, every task there is given up, and it waits."""
    if one.lost is not None:
        return Step(data=one)
    kept, ended, voided = _eviction_over(one)
    why = Failure(HOST_LOST, event.why)
    operation = kept.operation
    if operation is not None:
        operation = attrs.evolve(operation, reason=one_line(event.why))
    lost = attrs.evolve(
        kept,
        state=_S.UNCERTAIN,
        lost=Lost(state=kept.state, failure=one.failure),
        failure=why,
        operation=operation,
        ask=None,
        waiting=None,
    )
    effects: tuple[Effect, ...] = (*voided, DropTasks(), CloseGate(HOST_GATE))
    if one.ask is not None and one.state is _S.WAKE_QUEUED:
        effects = (*effects, WithdrawMemory(one.ask))
    if one.cause is Cause.SWITCH and one.state in _VICTIM:
        effects = (*effects, EvictionOver(event.why))
    changed = ended if operation is None else (*ended, operation)
    kind = _uncertain_kind(one)
    return moved(one, lost, moment, kind, operations=changed, effects=effects)


def _eviction_over(
    one: Instance,
) -> tuple[Instance, tuple[Operation, ...], tuple[Effect, ...]]:
    """A drain that never cuts answers is given up: once it is back it serves on."""
    if one.state is not _S.STOP_DRAIN or not never_cuts(one):
        return one, (), ()
    cleared, ended, voided = _end_work(one, OperationState.CANCELLED, error_code=HOST_LOST)
    return attrs.evolve(cleared, state=_S.READY, instead=None), ended, voided


def _uncertain_kind(one: Instance) -> str:
    kind = None if one.operation is None else one.operation.kind
    match kind:
        case None:
            return "reconcile_uncertain"
        case OperationKind.INITIALIZE:
            return "initialize_uncertain"
        case OperationKind.RESTORE:
            cold = not woke(one) and _state(one) is not _S.WAKE_QUEUED
            return "initialize_uncertain" if cold else "restore_uncertain"
        case OperationKind.PARK:
            return "park_uncertain"
        case _:
            return "ordinary_cleanup_uncertain"


def _state(one: Instance) -> InstanceState:
    return one.state if one.lost is None else one.lost.state


def _end_work(
    one: Instance,
    outcome: OperationState,
    *,
    failure: Failure | None = None,
    error_code: str | None = None,
) -> tuple[Instance, tuple[Operation, ...], tuple[Effect, ...]]:
    """As `history.end_open`, but stops that ride along stay: the instance is not down."""
    mine = () if one.operation is None else (one.operation,)
    others = tuple(r for r in one.riders if r.kind not in STOPS)
    stops = tuple(r for r in one.riders if r.kind in STOPS)
    ended = tuple(end(o, outcome, failure=failure, error_code=error_code) for o in (*mine, *others))
    voided = tuple(NoDeadline(operation.id) for operation in ended)
    return attrs.evolve(one, operation=None, riders=stops), ended, voided


def stop_uncertain(one: Instance, event: Stop, moment: Moment) -> Step[Instance]:
    """Its end is tried once more; while its host is away the stop is pending until that is back."""
    if one.lost is None:
        return stop_again(one, event, moment)
    stops = one.operation is not None and one.operation.kind in STOPS
    if stops or one.lost.state in _BEING_ENDED:
        return stop_also(one, event, moment)
    cleared, ended, voided = _end_work(
        one, OperationState.FAILED, error_code="resolved_by_owned_cleanup"
    )
    why = "" if one.failure is None else one.failure.detail
    waits = attrs.evolve(event.operation, reason=one_line(f"waits until its host is back: {why}"))
    pending = attrs.evolve(
        cleared,
        operation=waits,
        cause=event.cause,
        then=None,
        lost=attrs.evolve(one.lost, state=_S.STOP_DRAIN, failure=None),
    )
    at_ms = waits.deadline_at_ms
    deadline = () if at_ms is None else (DeadlineAt(waits.id, at_ms),)
    return Step(
        data=pending,
        operations=(*ended, *dropped(one), waits),
        effects=(*voided, *deadline),
    )


def start_uncertain(one: Instance, event: Start, moment: Moment) -> Step[Instance]:
    """Begun once that is settled; where its host took a start along, together with that one."""
    if one.lost is not None and one.lost.state in _COMING_UP and one.operation is not None:
        return join(one, event, moment)
    return start_later(one, event, moment)


def expire_uncertain(one: Instance, event: DeadlineReached, moment: Moment) -> Step[Instance]:
    """A start, wake or park whose time is over while its host is away ends; a stop never does."""
    mine = one.operation
    if one.lost is None or mine is None or mine.id != event.operation or mine.kind in STOPS:
        return expire_other(one, event, moment)
    before = one.lost.state
    why = "" if one.failure is None else f": {one.failure.detail}"
    failure = Failure("deadline", f"the deadline came while its host was away{why}")
    outcome = OperationState.CANCELLED if before in _UNBEGUN else OperationState.FAILED
    cleared, ended, voided = _end_work(one, outcome, failure=failure)
    unbegun = before in _UNBEGUN
    shown = one.lost.failure if unbegun else one.lost.failure or failure
    lost = Lost(state=_AFTER_DEADLINE.get(before, before), failure=shown)
    kind = "residency_cancelled" if unbegun else _uncertain_kind(one)
    expired = attrs.evolve(cleared, lost=lost)
    return moved(one, expired, moment, kind, operations=ended, effects=voided)
