"""How operations end and how a step becomes an event: shared by the edges of an instance."""

from __future__ import annotations

from collections.abc import Mapping

import attrs

from capyctl.domain.events import NewEvent
from capyctl.domain.operations import Operation, OperationState
from capyctl.machines.instance import Effect, Failure, Instance, NoDeadline
from capyctl.machines.observed import STOPS, observed_instance, shown_alone
from capyctl.machines.table import Moment, Step

REASON_BYTES_MAX = 512

TRANSITIONS: Mapping[str, tuple[str, bool]] = {
    # event kind: (payload transition, whether it is committed with an epoch)
    "initialize_accepted": ("accepted", False),
    "initialize_queued": ("queued", False),
    "initialize_armed": ("armed", False),
    "owned_launch_associated": ("associated", False),
    "ready_committed": ("ready", True),
    "initialize_uncertain": ("uncertain", False),
    "initialize_expired_unarmed": ("expired_unarmed", False),
    "initialize_failed_released": ("launch_failed", True),
    "initialize_given_up": ("given_up", False),
    "reconcile_started": ("reconciling", False),
    "reconciled_committed": ("reconciled", True),
    "reconcile_uncertain": ("uncertain", False),
    "ordinary_cleanup_accepted": ("cleanup_accepted", False),
    "ordinary_cleanup_armed": ("cleanup_armed", False),
    "ordinary_cleanup_completed": ("cleanup_completed", True),
    "ordinary_cleanup_expired_unarmed": ("expired_unarmed", False),
    "ordinary_cleanup_uncertain": ("uncertain", False),
    "ordinary_unarmed_stop_accepted": ("unarmed_stop_accepted", False),
    "ordinary_unarmed_stop_completed": ("unarmed_stop_completed", False),
    "park_accepted": ("accepted", False),
    "park_armed": ("armed", False),
    "parked_committed": ("parked", True),
    "park_refused": ("refused", True),
    "park_uncertain": ("uncertain", False),
    "restore_accepted": ("accepted", False),
    "restore_armed": ("armed", False),
    "restored_committed": ("restored", True),
    "restore_refused": ("refused", True),
    "restore_uncertain": ("uncertain", False),
    "residency_cancelled": ("cancelled", False),
}


def lifecycle_event(
    kind: str,
    *,
    before: str,
    after: str,
    instance: Instance,
    operation: Operation | None,
    moment: Moment,
) -> NewEvent:
    """The event of one step. ``before`` and ``after``: observed states of the instance."""
    transition, committed = TRANSITIONS[kind]
    named = None if operation is None else operation.id
    payload = {
        "transition": transition,
        "operation_id": named,
        "deployment_id": instance.id.deployment,
        "instance": instance.id.index,
        "from": before,
        "to": after,
        "step_id": instance.step_id,
        "session_epoch": str(moment.session_epoch),
        "committed_epoch": str(moment.session_epoch) if committed else None,
    }
    return NewEvent(kind=kind, deployment=instance.id.deployment, operation=named, payload=payload)


def moved(
    before: Instance,
    after: Instance,
    moment: Moment,
    *kinds: str,
    operations: tuple[Operation, ...] = (),
    effects: tuple[Effect, ...] = (),
    about: Operation | None = None,
    accepted: Operation | None = None,
) -> Step[Instance]:
    """A step from ``before`` to ``after`` that is told as one event per kind.

    ``about``: the operation the events name; by default the one under way before or after.
    ``accepted``: the operation whose acceptance was told before, so that it showed already.
    """
    named = accepted or about or before.operation or after.operation
    shown = observed_instance(before, () if accepted is None else (accepted,))
    reached = shown_alone(after)
    events = []
    for kind in kinds:
        events.append(
            lifecycle_event(
                kind,
                before=shown,
                after=reached,
                instance=before if after.step_id is None else after,
                operation=named,
                moment=moment,
            )
        )
        shown = reached
    return Step(data=after, operations=operations, events=tuple(events), effects=effects)


def end_open(
    one: Instance,
    state: OperationState,
    *,
    failure: Failure | None = None,
    error_code: str | None = None,
) -> tuple[Instance, tuple[Operation, ...], tuple[Effect, ...]]:
    """``one`` without open operations, those operations ended, and what voids their timers.

    Stops that ride along succeed: whatever happened, the instance is down.
    """
    mine = () if one.operation is None else (one.operation,)
    stops = tuple(r for r in one.riders if r.kind in STOPS)
    others = tuple(r for r in one.riders if r.kind not in STOPS)
    ended = (
        *(end(o, state, failure=failure, error_code=error_code) for o in (*mine, *others)),
        *(end(o, OperationState.SUCCEEDED) for o in stops),
    )
    voided = tuple(NoDeadline(operation.id) for operation in ended)
    return attrs.evolve(one, operation=None, riders=()), ended, voided


def end(
    operation: Operation,
    state: OperationState,
    *,
    failure: Failure | None = None,
    error_code: str | None = None,
) -> Operation:
    """``operation``, ended. A success keeps no reason."""
    if state is OperationState.SUCCEEDED:
        return attrs.evolve(
            operation, state=state, reason=None, hint=None, error_code=None, given_up=False
        )
    code = error_code or (failure.code if failure else None)
    reason = operation.reason if failure is None else one_line(failure.detail)
    return attrs.evolve(operation, state=state, error_code=code, reason=reason)


def one_line(text: str) -> str:
    """The first line, cut to 512 bytes of UTF-8."""
    line = text.strip().splitlines()[0] if text.strip() else ""
    return line.encode()[:REASON_BYTES_MAX].decode(errors="ignore")
