"""Accepted work whose message was lost with a crash, told again."""

from __future__ import annotations

from capyctl.domain.events import NewEvent
from capyctl.domain.ids import InstanceId
from capyctl.domain.operations import Operation, OperationKind, OperationState
from capyctl.machines.deployment import Picture, candidates_of, files_of
from capyctl.machines.history import end, lifecycle_event
from capyctl.machines.instance import Failure, Instance
from capyctl.machines.observed import observed_instance, shown_alone
from capyctl.machines.setting_off import Accepted, ToInstance
from capyctl.machines.table import Moment
from capyctl.messages.instance import Cause, Mark, Park, Start, StartOrder, Stop

_STARTS = (OperationKind.INITIALIZE, OperationKind.RESTORE)
_STOPS = (OperationKind.CLEANUP, OperationKind.UNARMED_STOP)


def lost_messages(picture: Picture) -> tuple[ToInstance, ...]:
    """Messages for operations that are open and that no instance's record knows.

    They were accepted and committed; the crash came before the instance took them up. Marks
    come first, then work in order of acceptance, as it was first told.
    """
    known = picture.instances
    marks: list[ToInstance] = []
    for active in picture.active:
        stored = known.get(active.id.index)
        if active.operator_stopped is not (stored is not None and stored.operator_stopped):
            marks.append((active.id.index, Mark(operator_stopped=active.operator_stopped)))
    work = []
    for one, operation in _lost(picture):
        message = _message(picture, operation)
        if message is not None:
            work.append((one.id.index, message))
    return (*marks, *work)


def untellable(picture: Picture, moment: Moment) -> Accepted | None:
    """The end of lost starts that cannot be told again: the files of a new document are not
    known yet, and what they were accepted for is gone.

    What a replace finds on its way is started anew on the new revision, so nobody waits for them.
    """
    ended: list[Operation] = []
    events: list[NewEvent] = []
    for one, operation in _lost(picture):
        if _message(picture, operation) is not None:
            continue
        reason = "it had not begun when a part of capyctl failed and its files became unknown"
        failure = Failure("files_unknown", reason)
        ended.append(end(operation, OperationState.CANCELLED, failure=failure))
        shown = observed_instance(one, picture.accepted(one))
        wakes = operation.kind is OperationKind.RESTORE
        events.append(
            lifecycle_event(
                "residency_cancelled" if wakes else "initialize_expired_unarmed",
                before=shown,
                after=shown_alone(one),
                instance=one,
                operation=operation,
                moment=moment,
            )
        )
    if not ended:
        return None
    return Accepted(deployment=picture.deployment, operations=tuple(ended), events=tuple(events))


def _lost(picture: Picture) -> list[tuple[Instance, Operation]]:
    """Open operations that no instance's record knows, in the order of their acceptance."""
    found = []
    for operation in picture.operations.values():
        if operation.instance is None or operation.given_up:
            continue
        id = InstanceId(picture.deployment.id, operation.instance)
        one = picture.instances.get(operation.instance) or Instance(id=id)
        if not _has(one, operation):
            found.append((one, operation))
    return sorted(found, key=lambda item: (item[1].accepted_at_ms, item[1].id))


def _has(one: Instance, operation: Operation) -> bool:
    held = {o.id for o in (one.operation, *one.riders) if o is not None}
    if one.then is not None:
        held.add(one.then.operation.id)
    return operation.id in held


def _message(picture: Picture, operation: Operation) -> Start | Park | Stop | None:
    deployment = picture.deployment
    if operation.kind in _STOPS:
        return Stop(operation=operation, cause=Cause.OPERATOR)
    if operation.kind is OperationKind.PARK:
        return Park(operation=operation, cause=Cause.OPERATOR)
    if operation.kind in _STARTS and deployment.resolved is not None:
        resolved = deployment.resolved
        order = StartOrder(
            revision=deployment.revision,
            generation=deployment.generation,
            engine=resolved.engine,
            residency=resolved.residency,
            candidates=candidates_of(deployment, resolved),
            windows=resolved.windows,
            cause=Cause.OPERATOR if operation.cause is None else Cause(operation.cause),
            may_evict=operation.may_evict,
            files=files_of(deployment),
            variants=deployment.variants,
        )
        return Start(operation=operation, order=order)
    return None
