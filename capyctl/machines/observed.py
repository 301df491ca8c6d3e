"""What the API shows of an instance and of a deployment: `observed_state`, derived."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from capyctl.domain.operations import Operation, OperationKind
from capyctl.domain.specs import Phase
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

_EMPTY = frozenset({InstanceState.STOPPED, InstanceState.FAILED})

# What is being ended still shows what was to become of it, until it is over or a stop came.
_ENDING: dict[OperationKind | None, str] = {
    OperationKind.INITIALIZE: "starting",
    OperationKind.RESTORE: "waking",
    OperationKind.PARK: "parking",
    None: "reconciling",
}

_STOPPABLE = (
    frozenset(InstanceState)
    - _EMPTY
    - {InstanceState.QUEUED, InstanceState.CLEANING, InstanceState.UNCERTAIN}
)

# What an accepted start shows where it finds its instance: a wake that was accepted during a park
# finds it empty when the park failed.
_COMING: dict[InstanceState, str] = {
    **dict.fromkeys(_EMPTY, "queued"),
    InstanceState.PARKED: "waking",
}
_GOING: dict[InstanceState, str] = dict.fromkeys(_STOPPABLE, "stopping")

# An accepted operation shows at once, before the instance's actor has read its message.
_ACCEPTED: dict[OperationKind, dict[InstanceState, str]] = {
    OperationKind.INITIALIZE: _COMING,
    OperationKind.RESTORE: _COMING,
    OperationKind.PARK: {InstanceState.READY: "parking"},
    OperationKind.CLEANUP: _GOING,
    # Accepted before anything began; it began all the same before the stop was read.
    OperationKind.UNARMED_STOP: _GOING,
}
STOPS = frozenset({OperationKind.CLEANUP, OperationKind.UNARMED_STOP})

_TRANSIENT = ("uncertain", "waking", "starting", "queued", "parking", "stopping", "reconciling")


def shown_alone(one: Instance) -> str:
    """What the record alone shows, without operations that it does not know yet."""
    if one.state is InstanceState.STOPPING and not _ends_as_stop(one):
        kind = None if one.operation is None else one.operation.kind
        if kind is OperationKind.RESTORE and not woke(one):
            kind = OperationKind.INITIALIZE
        return _ENDING.get(kind, "stopping")
    return SHOWN[one.state]


def woke(one: Instance) -> bool:
    """A wake was under way: one that was accepted as such may have become a cold start."""
    return one.held is not None and one.held.phase is Phase.WAKE


def _ends_as_stop(one: Instance) -> bool:
    """Somebody asked for a stop, or a park was turned into one before it was told."""
    return one.instead is not None or any(r.kind in STOPS for r in one.riders)


def observed_instance(one: Instance, open_operations: Iterable[Operation] = ()) -> str:
    """`observed_state` of one instance.

    ``open_operations``: accepted and not ended, of this instance; given-up ones do not count.
    A stop among them shows before anything else.
    """
    taken = {o.id for o in (one.operation, *one.riders) if o is not None}
    accepted: list[str] = []
    for operation in open_operations:
        if operation.given_up or operation.instance != one.id.index or operation.id in taken:
            continue
        shown = _ACCEPTED.get(operation.kind, {}).get(one.state)
        if shown is not None:
            accepted.append(shown)
    if "stopping" in accepted:
        return "stopping"
    return accepted[0] if accepted else shown_alone(one)


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
