"""What starts, stops and parks consist of: an operation, an event and a message each."""

from __future__ import annotations

from typing import TypeAlias

import attrs

from capyctl.domain.events import NewEvent
from capyctl.domain.ids import DeploymentId, InstanceId, OperationId, SwitchId
from capyctl.domain.operations import Operation, OperationKind, OperationState
from capyctl.domain.specs import ResolvedSpec
from capyctl.machines.deployment import EMPTY, Deployment, Picture, candidates_of, files_of
from capyctl.machines.history import lifecycle_event
from capyctl.machines.instance import Instance, InstanceState
from capyctl.machines.observed import observed_instance
from capyctl.machines.table import Moment
from capyctl.messages.instance import Cause, InstanceMessage, Park, Start, StartOrder, Stop

STARTS = frozenset({OperationKind.INITIALIZE, OperationKind.RESTORE})
ToInstance: TypeAlias = tuple[int, InstanceMessage]


@attrs.frozen(kw_only=True)
class Accepted:
    """What is committed with the receipt, and told to instances after it."""

    deployment: Deployment
    operations: tuple[Operation, ...] = ()
    events: tuple[NewEvent, ...] = ()
    tell: tuple[ToInstance, ...] = ()
    answers: OperationId | None = None
    """The operation that the receipt names."""
    joined: bool = False
    deleted: bool = False
    removes: tuple[InstanceId, ...] = ()
    """Retired instances that are gone."""
    victims: tuple[InstanceId, ...] | None = None
    switch: SwitchId | None = None


def begins(picture: Picture, one: Instance) -> bool:
    """A start of it is accepted, and not begun yet."""
    return one.then is not None or any(o.kind in STARTS for o in picture.accepted(one))


def begin_starts(
    deployment: Deployment,
    resolved: ResolvedSpec,
    instances: tuple[Instance, ...],
    moment: Moment,
    *,
    cause: Cause,
    deadline_at_ms: int,
    may_evict: bool,
    switch: SwitchId | None = None,
) -> Accepted:
    """One operation, event and message per instance; wakes and cold starts alike."""
    operations: list[Operation] = []
    events: list[NewEvent] = []
    tell: list[ToInstance] = []
    generation = deployment.generation
    for one in instances:
        generation += 1
        cold = one.state in EMPTY
        kind = OperationKind.INITIALIZE if cold else OperationKind.RESTORE
        operation = attrs.evolve(
            new_operation(deployment.id, one.id.index, kind, moment, deadline_at_ms=deadline_at_ms),
            cause=cause.value,
            may_evict=may_evict,
        )
        order = order_of(
            attrs.evolve(deployment, generation=generation),
            resolved,
            cause=cause,
            may_evict=may_evict,
            switch=switch,
        )
        operations.append(operation)
        shown = observed_instance(one)
        after = shown
        if cold or one.state is InstanceState.PARKED:
            after = "queued" if cold else "waking"
        events.append(
            lifecycle_event(
                "initialize_accepted" if cold else "restore_accepted",
                before=shown,
                after=after,
                instance=attrs.evolve(one, operation=operation),
                operation=operation,
                moment=moment,
            )
        )
        tell.append((one.id.index, Start(operation=operation, order=order)))
    return Accepted(
        deployment=attrs.evolve(deployment, generation=generation),
        operations=tuple(operations),
        events=tuple(events),
        tell=tuple(tell),
        answers=operations[0].id,
    )


def order_of(
    deployment: Deployment,
    resolved: ResolvedSpec,
    *,
    cause: Cause,
    may_evict: bool,
    switch: SwitchId | None = None,
) -> StartOrder:
    """A start as things are now, of the deployment's latest generation."""
    return StartOrder(
        revision=deployment.revision,
        generation=deployment.generation,
        engine=resolved.engine,
        residency=resolved.residency,
        candidates=candidates_of(deployment, resolved),
        windows=resolved.windows,
        cause=cause,
        may_evict=may_evict,
        switch=switch,
        files=files_of(deployment),
        variants=deployment.variants,
    )


def new_operation(
    deployment: DeploymentId,
    index: int | None,
    kind: OperationKind,
    moment: Moment,
    *,
    deadline_at_ms: int | None,
    state: OperationState = OperationState.PENDING,
) -> Operation:
    return Operation(
        id=OperationId(moment.fresh()),
        deployment=deployment,
        instance=index,
        kind=kind,
        state=state,
        accepted_at_ms=moment.now_ms,
        deadline_at_ms=deadline_at_ms,
    )


def begin_stops(
    picture: Picture,
    deployment: Deployment,
    instances: tuple[Instance, ...],
    moment: Moment,
    cause: Cause,
    *,
    deadline_at_ms: int | None,
) -> Accepted:
    """One operation, event and message per instance that is not plainly stopped."""
    operations: list[Operation] = []
    events: list[NewEvent] = []
    tell: list[ToInstance] = []
    for one in instances:
        waiting = begins(picture, one) or one.state is InstanceState.QUEUED
        # What failed holds nothing, but once it is stopped it is to show as stopped.
        if one.state is InstanceState.STOPPED and not waiting:
            continue
        unarmed = one.state is InstanceState.QUEUED or one.state in EMPTY
        kind = OperationKind.UNARMED_STOP if unarmed else OperationKind.CLEANUP
        operation = new_operation(
            deployment.id, one.id.index, kind, moment, deadline_at_ms=deadline_at_ms
        )
        before = observed_instance(one, picture.accepted(one))
        after = before if unarmed or one.state is InstanceState.UNCERTAIN else "stopping"
        if one.state is InstanceState.CLEANING:
            after = before
        events.append(
            lifecycle_event(
                "ordinary_unarmed_stop_accepted" if unarmed else "ordinary_cleanup_accepted",
                before=before,
                after=after,
                instance=attrs.evolve(one, operation=operation),
                operation=operation,
                moment=moment,
            )
        )
        operations.append(operation)
        tell.append((one.id.index, Stop(operation=operation, cause=cause)))
    return Accepted(
        deployment=deployment,
        operations=tuple(operations),
        events=tuple(events),
        tell=tuple(tell),
        answers=operations[0].id if operations else None,
    )


def begin_parks(
    deployment: Deployment,
    instances: tuple[Instance, ...],
    moment: Moment,
    cause: Cause,
    *,
    deadline_at_ms: int | None,
) -> Accepted:
    operations: list[Operation] = []
    events: list[NewEvent] = []
    tell: list[ToInstance] = []
    for one in instances:
        operation = new_operation(
            deployment.id,
            one.id.index,
            OperationKind.PARK,
            moment,
            deadline_at_ms=deadline_at_ms,
        )
        events.append(
            lifecycle_event(
                "park_accepted",
                before=observed_instance(one),
                after="parking",
                instance=attrs.evolve(one, operation=operation),
                operation=operation,
                moment=moment,
            )
        )
        operations.append(operation)
        tell.append((one.id.index, Park(operation=operation, cause=cause)))
    return Accepted(
        deployment=deployment,
        operations=tuple(operations),
        events=tuple(events),
        tell=tuple(tell),
        answers=operations[0].id,
    )
