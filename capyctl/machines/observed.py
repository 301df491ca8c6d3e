"""What the API shows of an instance and of a deployment: `observed_state`, derived."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from capyctl.domain.operations import Operation, OperationKind
from capyctl.machines.instance import Instance, InstanceState

SHOWN: dict[InstanceState, str] = {
    InstanceState.STOPPED: "stopped",
    InstanceState.FAILED: "failed",
    InstanceState.QUEUED: "queued",
    InstanceState.STARTING: "starting",
    InstanceState.READY: "ready",
    InstanceState.PARK_DRAIN: "parking",
    InstanceState.PARKING: "parking",
    InstanceState.PARKED: "parked",
    InstanceState.WAKE_QUEUED: "waking",
    InstanceState.WAKING: "waking",
    InstanceState.STOP_DRAIN: "stopping",
    InstanceState.STOPPING: "stopping",
    InstanceState.RECONCILING: "reconciling",
    InstanceState.CLEANING: "reconciling",
    InstanceState.UNCERTAIN: "uncertain",
}

# An accepted operation shows at once, before the instance's actor has read its message.
_ACCEPTED: dict[OperationKind, tuple[frozenset[InstanceState], str]] = {
    OperationKind.INITIALIZE: (
        frozenset({InstanceState.STOPPED, InstanceState.FAILED}),
        "queued",
    ),
    OperationKind.RESTORE: (frozenset({InstanceState.PARKED}), "waking"),
    OperationKind.PARK: (frozenset({InstanceState.READY}), "parking"),
    OperationKind.CLEANUP: (
        frozenset({InstanceState.READY, InstanceState.PARKED, InstanceState.STARTING}),
        "stopping",
    ),
}

_TRANSIENT = ("uncertain", "waking", "starting", "queued", "parking", "stopping", "reconciling")


def observed_instance(one: Instance, open_operations: Iterable[Operation] = ()) -> str:
    """`observed_state` of one instance.

    ``open_operations``: accepted and not ended, of this instance; given-up ones do not count.
    """
    for operation in open_operations:
        if operation.given_up or operation.instance != one.id.index:
            continue
        states, shown = _ACCEPTED.get(operation.kind, (frozenset(), ""))
        if one.state in states and one.operation != operation:
            return shown
    return SHOWN[one.state]


def observed_deployment(shown: Collection[str], *, at_rest: str = "stopped") -> str:
    """`observed_state` of a deployment from those of its instances.

    ``shown``: of active instances, and of retiring ones that are not yet stopped.
    ``at_rest``: what it is when every instance is settled and none is ready.
    """
    if "ready" in shown:
        return "ready"
    for state in _TRANSIENT:
        if state in shown:
            return state
    if shown and all(state == "failed" for state in shown):
        return "failed"
    if "parked" in shown:
        return "parked"
    return at_rest
