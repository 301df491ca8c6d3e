"""The edges of an instance whose operation is over before it could begin."""

from __future__ import annotations

import attrs

from capyctl.domain.operations import OperationKind, OperationState
from capyctl.machines.history import end, end_open, moved
from capyctl.machines.instance import Failure, Instance, InstanceState, WithdrawMemory
from capyctl.machines.observed import STOPS
from capyctl.machines.table import Moment, Step
from capyctl.messages.instance import Abandon, DeadlineReached


def expire_queued(one: Instance, event: DeadlineReached, moment: Moment) -> Step[Instance]:
    """The deadline came before anything was launched."""
    if one.operation is None or event.operation != one.operation.id:
        return expire_other(one, event, moment)
    assert one.operation is not None
    last = one.operation.reason or "no room was found"
    failure = Failure(
        one.failure.code if one.failure else "deadline",
        f"deadline reached before the budget was spent: {last}",
    )
    cleared, ended, voided = end_open(one, OperationState.FAILED, failure=failure)
    tried = one.attempts_count > 0
    after = attrs.evolve(
        cleared,
        state=InstanceState.FAILED if tried else InstanceState.STOPPED,
        ask=None,
        waiting=None,
        failure=one.failure or failure,
    )
    withdraw = () if one.ask is None else (WithdrawMemory(one.ask),)
    return moved(
        one,
        after,
        moment,
        "initialize_expired_unarmed",
        operations=ended,
        effects=(*voided, *withdraw),
    )


def expire_given_up(one: Instance, event: DeadlineReached, moment: Moment) -> Step[Instance]:
    """A start that was given up ends as failed when its deadline comes."""
    if one.operation is None or event.operation != one.operation.id:
        return expire_other(one, event, moment)
    operation = attrs.evolve(one.operation, state=OperationState.FAILED)
    cleared = attrs.evolve(one, operation=None, riders=())
    riders = tuple(end(r, OperationState.FAILED, failure=one.failure) for r in one.riders)
    return moved(
        one, cleared, moment, "initialize_expired_unarmed", operations=(operation, *riders)
    )


def expire_wake(one: Instance, event: DeadlineReached, moment: Moment) -> Step[Instance]:
    """The deadline came before the wake began: parked it stays."""
    if one.operation is None or event.operation != one.operation.id:
        return expire_other(one, event, moment)
    failure = Failure("deadline", one.waiting or "no room was found before the deadline")
    cleared, ended, voided = end_open(one, OperationState.CANCELLED, failure=failure)
    after = attrs.evolve(cleared, state=InstanceState.PARKED, ask=None, waiting=None)
    withdraw = () if one.ask is None else (WithdrawMemory(one.ask),)
    return moved(
        one,
        after,
        moment,
        "residency_cancelled",
        operations=ended,
        effects=(*voided, *withdraw),
    )


def expire_other(one: Instance, event: DeadlineReached, _: Moment) -> Step[Instance]:
    """The deadline of a start that rides along or waits: that one alone ends.

    A stop is never given up: it ends when nothing is left.
    """
    failure = Failure("deadline", "the deadline came before the instance could start")
    if one.then is not None and one.then.operation.id == event.operation:
        ended = end(one.then.operation, OperationState.FAILED, failure=failure)
        return Step(data=attrs.evolve(one, then=None), operations=(ended,))
    late = tuple(r for r in one.riders if r.id == event.operation and r.kind not in STOPS)
    kept = tuple(r for r in one.riders if r not in late)
    ended_riders = tuple(end(r, OperationState.FAILED, failure=failure) for r in late)
    return Step(data=attrs.evolve(one, riders=kept), operations=ended_riders)


def abandon(one: Instance, event: Abandon, moment: Moment) -> Step[Instance]:
    """A start that was accepted and never told ends, unless it was told after all."""
    lost = event.operation
    if lost.id in one.taken:
        return Step(data=one)
    reason = "it had not begun when a part of capyctl failed and its files became unknown"
    failure = Failure("files_unknown", reason)
    wakes = lost.kind is OperationKind.RESTORE
    return moved(
        one,
        one,
        moment,
        "residency_cancelled" if wakes else "initialize_expired_unarmed",
        operations=(end(lost, OperationState.CANCELLED, failure=failure),),
        accepted=lost,
    )
