"""Accepted work whose message was lost with a crash, told again."""

from __future__ import annotations

from capyctl.domain.ids import InstanceId
from capyctl.domain.operations import Operation, OperationKind
from capyctl.machines.deployment import Picture
from capyctl.machines.instance import Instance
from capyctl.machines.observed import STOPS
from capyctl.machines.setting_off import ToInstance, order_of
from capyctl.messages.instance import Abandon, Cause, Mark, Park, Start, Stop

_TOLD = STOPS | {OperationKind.INITIALIZE, OperationKind.RESTORE, OperationKind.PARK}


def lost_messages(picture: Picture) -> tuple[ToInstance, ...]:
    """Messages for operations that are open and that no instance's record knows.

    They were accepted and committed; the crash came before the instance took them up. Marks
    come first, then work in order of acceptance, as it was first told. It may just be taken up:
    a message that came before is handled before, and this one then changes nothing.
    """
    known = picture.instances
    marks: list[ToInstance] = []
    for active in picture.active:
        stored = known.get(active.id.index)
        if active.operator_stopped is not (stored is not None and stored.operator_stopped):
            marks.append((active.id.index, Mark(operator_stopped=active.operator_stopped)))
    work = [(one.id.index, _message(picture, operation)) for one, operation in _lost(picture)]
    return (*marks, *work)


def _lost(picture: Picture) -> list[tuple[Instance, Operation]]:
    """Open operations that no instance's record knows, in the order of their acceptance."""
    found = []
    for operation in picture.operations.values():
        if operation.instance is None or operation.given_up or operation.kind not in _TOLD:
            continue
        id = InstanceId(picture.deployment.id, operation.instance)
        one = picture.instances.get(operation.instance) or Instance(id=id)
        if operation.id not in one.taken:
            found.append((one, operation))
    return sorted(found, key=lambda item: (item[1].accepted_at_ms, item[1].id))


def _message(picture: Picture, operation: Operation) -> Start | Park | Stop | Abandon:
    deployment = picture.deployment
    if operation.kind in STOPS:
        return Stop(operation=operation, cause=Cause.OPERATOR)
    if operation.kind is OperationKind.PARK:
        return Park(operation=operation, cause=Cause.OPERATOR)
    resolved = deployment.resolved
    if resolved is None:
        # A replace came between, and its files are not known yet. What a replace finds on its
        # way is started anew on the new revision, so nobody waits for this one.
        return Abandon(operation=operation)
    cause = Cause.OPERATOR if operation.cause is None else Cause(operation.cause)
    order = order_of(deployment, resolved, cause=cause, may_evict=operation.may_evict)
    return Start(operation=operation, order=order)
