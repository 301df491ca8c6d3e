"""Accepted work whose message was lost with a crash, told again."""

from __future__ import annotations

from capyctl.domain.operations import Operation, OperationKind
from capyctl.machines.deployment import Picture
from capyctl.machines.instance import Instance
from capyctl.machines.setting_off import ToInstance
from capyctl.messages.instance import Cause, Park, Start, StartOrder, Stop

_STARTS = (OperationKind.INITIALIZE, OperationKind.RESTORE)
_STOPS = (OperationKind.CLEANUP, OperationKind.UNARMED_STOP)


def lost_messages(picture: Picture) -> tuple[ToInstance, ...]:
    """Messages for operations that are open and that no instance's record knows.

    They were accepted and committed; the crash came before the instance took them up. In
    order of acceptance, as they were first told.
    """
    known = picture.instances
    lost: list[tuple[int, str, ToInstance]] = []
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
    return tuple(entry for _, _, entry in sorted(lost, key=lambda item: item[:2]))


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
            candidates=resolved.candidates,
            windows=resolved.windows,
            cause=Cause.OPERATOR,
            may_evict=False,
        )
        return Start(operation=operation, order=order)
    return None
