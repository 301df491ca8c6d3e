"""Accepted work whose message was lost with a crash, told again."""

from __future__ import annotations

from capyctl.domain.operations import Operation, OperationKind
from capyctl.machines.deployment import Picture, candidates_of, files_of
from capyctl.machines.instance import Instance
from capyctl.machines.setting_off import ToInstance
from capyctl.messages.instance import Cause, Mark, Park, Start, StartOrder, Stop

_STARTS = (OperationKind.INITIALIZE, OperationKind.RESTORE)
_STOPS = (OperationKind.CLEANUP, OperationKind.UNARMED_STOP)


def lost_messages(picture: Picture) -> tuple[ToInstance, ...]:
    """Messages for operations that are open and that no instance's record knows.

    They were accepted and committed; the crash came before the instance took them up. Marks
    come first, then work in order of acceptance, as it was first told.
    """
    known = picture.instances
    lost: list[tuple[int, str, ToInstance]] = []
    marks: list[ToInstance] = []
    for active in picture.active:
        stored = known.get(active.id.index)
        if active.operator_stopped is not (stored is not None and stored.operator_stopped):
            marks.append((active.id.index, Mark(operator_stopped=active.operator_stopped)))
    for operation in picture.operations.values():
        index = operation.instance
        if index is None or operation.given_up:
            continue
        one = known.get(index)
        if one is not None and _has(one, operation):
            continue
        message = _message(picture, operation)
        if message is not None:
            lost.append((operation.accepted_at_ms, operation.id, (index, message)))
    return (*marks, *(entry for _, _, entry in sorted(lost, key=lambda item: item[:2])))


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
