"""What an operator's action comes to: refused, or accepted with what it sets off.

Numbered cases follow the management contract. Nothing here is committed or sent.
"""

from __future__ import annotations

from typing import TypeAlias

import attrs

from capyctl.domain.errors import Refused
from capyctl.domain.events import NewEvent
from capyctl.domain.operations import OperationKind, OperationState
from capyctl.domain.specs import Residency
from capyctl.machines.deployment import (
    EMPTY,
    PARKING,
    Deployment,
    Desired,
    Picture,
)
from capyctl.machines.instance import InstanceState
from capyctl.machines.setting_off import (
    Accepted,
    begin_parks,
    begin_stops,
    new_operation,
)
from capyctl.machines.start_action import (
    NeedFit,
    awaits_its_machine,
    check_startable,
    check_up,
    start,
    unmark,
)
from capyctl.machines.table import Moment
from capyctl.machines.wording import said
from capyctl.messages.deployment import Act, ActionKind, FitAnswered
from capyctl.messages.instance import Cause, Mark

Decision: TypeAlias = NeedFit | Accepted


def decide(
    picture: Picture, action: Act, moment: Moment, *, fit: FitAnswered | None = None
) -> Decision:
    """Rule on one action.

    ``fit``: placement's answer to an earlier `NeedFit` of this very action.

    Raises:
        Refused: with the contract's code; nothing changes.
    """
    check_revision(picture.deployment, action.expected_revision)
    _check_deadline(picture.deployment, action.deadline_at_ms, moment)
    if action.instance is not None:
        return _one_instance(picture, action, moment, fit)
    match action.action:
        case ActionKind.START:
            return start(picture, action, moment, fit, indexes=None)
        case ActionKind.STOP:
            return stop(picture, action, moment)
        case ActionKind.PARK:
            return _park(picture, action, moment)
        case ActionKind.PREINITIALIZE:
            return _preinitialize(picture, action, moment)
        case ActionKind.DELETE:
            return _delete(picture, moment)


def check_revision(deployment: Deployment, expected: int) -> None:
    if expected != deployment.revision:
        raise Refused("revision_conflict", "Expected revision does not match")


def _check_deadline(deployment: Deployment, deadline_at_ms: int, moment: Moment) -> None:
    furthest_ms = moment.now_ms + round(deployment.spec.request_deadline_s * 1000)
    if not moment.now_ms < deadline_at_ms <= furthest_ms:
        span_s = deployment.spec.request_deadline_s
        raise Refused(
            "invalid_request",
            f"deadline_ms must be in the future and at most {span_s:g} s ahead "
            f"(timeouts.request_deadline_ms)",
        )


def stop(picture: Picture, action: Act, moment: Moment) -> Accepted:
    """Always accepted. Requests are refused from the commit on."""
    halted = attrs.evolve(
        picture.deployment,
        operator_stopped=True,
        desired=Desired.STOPPED,
        restarts=(),
        moves=(),
        preinitialize=None,
    )
    everyone = (*picture.active, *picture.retiring)
    begun = begin_stops(
        picture, halted, everyone, moment, Cause.OPERATOR, deadline_at_ms=action.deadline_at_ms
    )
    operations = begun.operations
    if picture.deployment.preinitialize is not None:
        ended = attrs.evolve(
            picture.deployment.preinitialize,
            state=OperationState.CANCELLED,
            reason="the deployment was stopped",
        )
        operations = (*operations, ended)
    if begun.answers is not None:
        return attrs.evolve(begun, operations=operations)
    done = new_operation(
        halted.id,
        None,
        OperationKind.CLEANUP,
        moment,
        deadline_at_ms=None,
        state=OperationState.SUCCEEDED,
    )
    return attrs.evolve(begun, operations=(*operations, done), answers=done.id)


def check_parks(deployment: Deployment) -> None:
    resolved = deployment.resolved
    residency = deployment.spec.residency if resolved is None else resolved.residency
    if residency is Residency.RESTART_ONLY:
        raise Refused(
            "unsupported_capability",
            f"`{deployment.spec.name}` is restart_only: it can be stopped, not parked",
        )


def _park(picture: Picture, action: Act, moment: Moment) -> Accepted:
    """1. restart_only: unsupported. 2. Ready ones park. 3. Parking already: joined. 4. None."""
    check_parks(picture.deployment)
    ready = [one for one in picture.active if one.state is InstanceState.READY]
    ready = [one for one in ready if not picture.accepted(one)]
    parked = attrs.evolve(picture.deployment, desired=Desired.PARKED)
    if ready:
        return begin_parks(
            parked, tuple(ready), moment, Cause.OPERATOR, deadline_at_ms=action.deadline_at_ms
        )
    for one in picture.active:
        if one.state in PARKING and one.operation is not None:
            return Accepted(deployment=parked, answers=one.operation.id, joined=True)
        for operation in picture.accepted(one):
            if operation.kind is OperationKind.PARK:
                return Accepted(deployment=parked, answers=operation.id, joined=True)
    raise Refused(
        "lifecycle_conflict", f"{said(picture, picture.active)} cannot be parked: none is ready"
    )


def _preinitialize(picture: Picture, action: Act, moment: Moment) -> Accepted:
    """Its own operation; each instance in turn is started, checked and parked."""
    check_parks(picture.deployment)
    check_startable(picture.deployment)
    if picture.deployment.preinitialize is not None:
        open_id = picture.deployment.preinitialize.id
        return Accepted(deployment=picture.deployment, answers=open_id, joined=True)
    lost = [one for one in picture.active if one.lost is not None]
    if lost:
        raise awaits_its_machine(picture, lost[0])
    check_up(picture, picture.active)
    operation = new_operation(
        picture.deployment.id,
        None,
        OperationKind.PREINITIALIZE,
        moment,
        deadline_at_ms=action.deadline_at_ms,
        state=OperationState.RUNNING,
    )
    begun = attrs.evolve(
        picture.deployment,
        operator_stopped=False,
        marked=(),
        desired=Desired.PARKED,
        preinitialize=operation,
    )
    return Accepted(
        deployment=begun,
        operations=(operation,),
        tell=unmark(picture.active),
        answers=operation.id,
    )


def _delete(picture: Picture, moment: Moment) -> Accepted:
    """Only once nothing of it runs, is held, or is under way."""
    everyone = (*picture.active, *picture.retiring)
    busy = [one for one in everyone if one.state not in EMPTY or one.held or one.launch]
    open_ones = list(picture.operations.values())
    if busy or open_ones:
        what = (
            said(picture, busy)
            if busy
            else f"`{picture.deployment.spec.name}`, whose operation {open_ones[0].id} is "
            f"{open_ones[0].state.value},"
        )
        raise Refused(
            "delete_requires_cleanup",
            f"{what} cannot be deleted yet: stop it and wait until it is stopped",
        )
    operation = new_operation(
        picture.deployment.id,
        None,
        OperationKind.DELETE,
        moment,
        deadline_at_ms=None,
        state=OperationState.SUCCEEDED,
    )
    told = NewEvent(
        kind="deployment_deleted",
        deployment=picture.deployment.id,
        operation=operation.id,
        payload={
            "operation_id": operation.id,
            "deployment_id": picture.deployment.id,
            "revision": str(picture.deployment.revision),
            "session_epoch": str(moment.session_epoch),
        },
    )
    return Accepted(
        deployment=picture.deployment,
        operations=(operation,),
        events=(told,),
        answers=operation.id,
        deleted=True,
    )


def _one_instance(
    picture: Picture, action: Act, moment: Moment, fit: FitAnswered | None
) -> Decision:
    index = action.instance
    assert index is not None
    if action.action not in (ActionKind.START, ActionKind.STOP):
        raise Refused("unsupported_capability", "One instance can only be started or stopped")
    if index >= picture.deployment.spec.instances:
        spec = picture.deployment.spec
        raise Refused(
            "not_found",
            f"`{spec.name}` has no instance {index}: it has {spec.instances}, counted from 0",
        )
    if action.action is ActionKind.START:
        return start(picture, action, moment, fit, indexes=frozenset({index}))
    one = picture.active[index]
    marked = tuple(sorted({*picture.deployment.marked, index}))
    begun = begin_stops(
        picture,
        attrs.evolve(picture.deployment, marked=marked),
        (one,),
        moment,
        Cause.OPERATOR,
        deadline_at_ms=action.deadline_at_ms,
    )
    return attrs.evolve(begun, tell=((index, Mark(operator_stopped=True)), *begun.tell))
