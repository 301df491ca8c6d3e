"""How far a stop, a park or a preinitialization has come, as a snapshot tells.

The operation of a receipt is that of one instance: the others are known by their states.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TypeAlias

from capyctl.cli.client import Client
from capyctl.cli.failure import CommandFailed
from capyctl.cli.snapshot import OPEN, Row, active, deployment_of, only, operation_state
from capyctl.client.judging import Pending

AT_REST = frozenset({"stopped", "failed"})
Outcome: TypeAlias = Callable[[Row, str, object, int | None], Row | Pending]
"""Of a snapshot, a deployment's id, an operation's id and an instance's index (None: all of them):
the deployment (with that instance alone) once it is done.

Raises CommandFailed once it never will be."""


class HostsAway(Exception):
    """What is left runs on hosts that are not there: waiting for them has no end in sight."""

    def __init__(self, name: object, states: Mapping[str, str]) -> None:
        self.name = name
        self.state = next(iter(states.values()))
        self.why = ", ".join(f"host {name} is {state}" for name, state in states.items())


def check_hosts(client: Client, deployment: Row) -> None:
    """Raises HostsAway: all that is left of a deployment to stop is on hosts that are away."""
    away = client.away_hosts_of(deployment)
    if away is not None:
        raise HostsAway(deployment["name"], away)


def stopped(snapshot: Row, id: str, operation: object, index: int | None) -> Row | Pending:
    """Once nothing that was to stop runs, or is under way."""
    deployment, rows = _rows(snapshot, id, index, retiring=True)
    left = [row for row in rows if row.get("observed_state") not in AT_REST]
    again = (
        deployment.get("desired_state", "stopped") != "stopped"
        if index is None
        else not all(row.get("operator_stopped") for row in rows)
    )
    if left and again:
        raise CommandFailed(
            "operation_failed",
            f"{deployment['name']} was started again while its stop was awaited",
        )
    if left or _is_open(snapshot, operation):
        return Pending(f"{deployment['name']} stopping{_states(left)}")
    return deployment


def parked(snapshot: Row, id: str, operation: object, index: int | None) -> Row | Pending:
    """Once no park of it is under way. A request may have woken some of it again."""
    deployment, rows = _rows(snapshot, id, index)
    moving = [row for row in rows if row.get("observed_state") == "parking"]
    if moving or _is_open(snapshot, operation):
        return Pending(f"{deployment['name']} parking{_states(moving)}")
    _check_ended(snapshot, deployment, rows, operation, done="parked", kinds=("park",))
    return deployment


def preinitialized(snapshot: Row, id: str, operation: object, index: int | None) -> Row | Pending:
    """Once every instance was started, checked and parked."""
    deployment, rows = _rows(snapshot, id, index)
    if _is_open(snapshot, operation):
        moving = [row for row in rows if row.get("observed_state") != "parked"]
        return Pending(f"{deployment['name']} being preinitialized{_states(moving)}")
    _check_ended(snapshot, deployment, rows, operation, done="preinitialized")
    return deployment


def _rows(
    snapshot: Row, id: str, index: int | None, *, retiring: bool = False
) -> tuple[Row, list[Row]]:
    deployment = deployment_of(snapshot, id)
    if deployment is None:
        raise CommandFailed("not_found", "the deployment was deleted meanwhile")
    if index is not None:
        deployment = only(deployment, index)
    return deployment, list(deployment["instances"]) if retiring else active(deployment)


def _check_ended(
    snapshot: Row,
    deployment: Row,
    rows: list[Row],
    operation: object,
    *,
    done: str,
    kinds: tuple[str, ...] = (),
) -> None:
    """``kinds``: of the instances' operations that count; none: all.

    Raises:
        CommandFailed: ``operation_failed``: it, or an instance's part of it, did not succeed.
    """
    failed = [
        latest
        for latest in (row.get("latest_operation") or {} for row in (deployment, *rows))
        if latest.get("state") in ("failed", "cancelled")
        # Ids rise: an earlier failure is none of this one's.
        and str(latest.get("id")) >= str(operation)
        and (not kinds or latest.get("kind") in kinds)
    ]
    if failed or operation_state(snapshot, operation) in ("failed", "cancelled"):
        reason = next((one["reason"] for one in failed if one.get("reason")), None)
        why = _states(rows) if reason is None else f": {reason}"
        raise CommandFailed("operation_failed", f"{deployment['name']} was not {done}{why}")


def _is_open(snapshot: Row, operation: object) -> bool:
    return operation_state(snapshot, operation) in OPEN


def _states(rows: Iterable[Row]) -> str:
    listed = ", ".join(f"{row.get('index')} {row.get('observed_state')}" for row in rows)
    return f", instance {listed}" if listed else ""


OUTCOMES: Mapping[str, Outcome] = {
    "stop": stopped,
    "park": parked,
    "preinitialize": preinitialized,
}
