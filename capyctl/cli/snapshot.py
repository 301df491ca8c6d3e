"""Reads a snapshot: which deployment is meant, and how far an action on it has come. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import attrs

from capyctl.cli.failure import CommandFailed
from capyctl.client.judging import Pending

Row = Mapping[str, Any]

MOVING = frozenset(
    {"queued", "starting", "waking", "parking", "stopping", "reconciling", "uncertain"}
)
OPEN = frozenset({"pending", "running"})
NEVER_MEASURED = {
    "invalid_root": "its path does not exist, cannot be read or holds no files (a relative one "
    "is looked for in the models directory of the machine, ~/models or --models-root)",
    "unsafe_file": "a file of the model leads out of its directory or is not a plain file",
    "too_large": "the model's files are larger than what is allowed",
    "unauthorized": "the model's source refused the credentials",
    "not_materializable": "the model's source cannot be fetched by this release",
}
"""Diagnostics of a checkpoint that waiting does not clear."""
NAMES_SHOWN_MAX = 10
INDEX_MAX = 63
_MEMORY = ("placement:", "insufficient_memory", "insufficient_device_memory")


def find_deployment(snapshot: Row, wanted: str) -> Row:
    """The deployment with this id, else with this name.

    Raises:
        CommandFailed: ``not_found``, naming what there is.
    """
    rows: list[Row] = snapshot.get("deployments", [])
    for field in ("id", "name"):
        for row in rows:
            if row.get(field) == wanted:
                return row
    names = [str(row.get("name")) for row in rows]
    raise CommandFailed(
        "not_found", f"there is no deployment {wanted}; deployments: {some_of(names)}"
    )


def some_of(names: Sequence[str]) -> str:
    """The first few names, for a sentence; ``none`` where there are none."""
    more = ", …" if len(names) > NAMES_SHOWN_MAX else ""
    return ", ".join(names[:NAMES_SHOWN_MAX]) + more if names else "none"


def split_instance(text: str) -> tuple[str, int]:
    """Deployment and index of ``my-model/0``.

    Raises:
        CommandFailed: ``invalid_request``.
    """
    name, slash, index = text.rpartition("/")
    is_index = index.isascii() and index.isdecimal() and str(int(index)) == index
    if not slash or not name or not is_index or int(index) > INDEX_MAX:
        raise CommandFailed(
            "invalid_request", f"{text}: expected <deployment>/<index>, index 0 to {INDEX_MAX}"
        )
    return name, int(index)


def deployment_of(snapshot: Row, id: str) -> Row | None:
    """The deployment with this id; None once it is deleted."""
    return next((row for row in snapshot.get("deployments", []) if row.get("id") == id), None)


def only(deployment: Row, index: int) -> Row:
    """The deployment as if it had this one instance.

    Raises:
        CommandFailed: ``not_found``.
    """
    name = f"{deployment.get('name')}/{index}"
    for row in deployment.get("instances", []):
        if row.get("index") == index:
            latest = row.get("latest_operation")
            return {**deployment, "name": name, "instances": [row], "latest_operation": latest}
    raise CommandFailed("not_found", f"{name} is not there")


def operation_state(snapshot: Row, operation_id: object) -> str | None:
    """State of an operation; None where the snapshot no longer lists it."""
    rows: Iterable[Row] = snapshot.get("operations", [])
    return next((str(row.get("state")) for row in rows if row.get("id") == operation_id), None)


def window_ms(deployment: Row, name: str) -> int:
    """One of the deployment's ``timeouts``, in milliseconds.

    Raises:
        CommandFailed: ``internal``: the snapshot does not state it.
    """
    held = deployment.get("timeouts", {}).get(name)
    if isinstance(held, int):
        return held
    raise CommandFailed(
        "internal", f"the snapshot states no timeouts.{name} of {deployment.get('name')}"
    )


def inputs_pending(deployment: Row) -> Pending | None:
    """What a start has to wait for before it can be asked for; None: nothing.

    Raises:
        CommandFailed: ``model_source_failed`` or ``checkpoint_unusable``: waiting will not
            help.
    """
    name = deployment.get("name")
    digest: Row = deployment.get("checkpoint_digest") or {}
    diagnostic = digest.get("diagnostic")
    sources: list[Row] = deployment.get("model_sources") or []
    if sources and all(row.get("terminal") for row in sources):
        reasons = "; ".join(str(row.get("reason")) for row in sources)
        raise CommandFailed(
            "model_source_failed",
            f"the files of {name} cannot be fetched: {reasons}; nothing was started",
        )
    if digest.get("state") == "pending" and _has_lost_its_machine(deployment, diagnostic):
        return None  # The start is refused, with each machine and why.
    if digest.get("state") == "pending" and diagnostic in NEVER_MEASURED:
        raise CommandFailed(
            "checkpoint_unusable",
            f"the checkpoint of {name} cannot be measured: {diagnostic}: "
            f"{digest.get('detail') or NEVER_MEASURED[diagnostic]}; nothing was started",
        )
    coming = [row for row in sources if row.get("state") != "verified"]
    if coming and not any(row.get("state") == "verified" for row in sources):
        done = sum(int(row.get("bytes_done", 0)) for row in coming)
        total = sum(int(row.get("bytes_total", 0)) for row in coming)
        reason = next((row["reason"] for row in coming if row.get("reason")), None)
        why = f" ({reason})" if reason else ""
        size = f"{done} of {total} bytes" if total else f"{done} bytes so far"
        return Pending(f"model source of {name} being downloaded and verified, {size}{why}")
    if digest.get("state") == "pending":
        also = f", {diagnostic}" if diagnostic else ""
        return Pending(f"checkpoint digest of {name} being measured{also}")
    if any(row.get("observed_state") == "stopping" for row in deployment.get("instances", [])):
        return Pending(f"an earlier stop of {name} finishing")
    return None


def _has_lost_its_machine(deployment: Row, diagnostic: object) -> bool:
    """A machine that could run it was revoked, and no other one may turn out to have the files."""
    rows: list[Row] = deployment.get("hosts") or []
    if not any(row.get("diagnostic") == "revoked" for row in rows):
        return False
    left = [row for row in rows if row.get("outcome") == "resolved"]
    return not left or diagnostic in NEVER_MEASURED


def started(deployment: Row | None, operation: str | None) -> Row | Pending:
    """How far a start has come: the deployment once every instance serves.

    ``operation`` is the state of the operation that the start was answered with. It may fail
    while another one, which took its place, goes on.

    Raises:
        CommandFailed: ``operation_failed`` or ``insufficient_resources``, with the reason;
            ``not_found`` when the deployment was deleted meanwhile.
    """
    if deployment is None:
        raise CommandFailed("not_found", "the deployment was deleted while its start was awaited")
    wanted = [row for row in active(deployment) if not row.get("operator_stopped")]
    missing = [row for row in wanted if row.get("observed_state") != "ready"]
    if wanted and not missing:
        return deployment
    latest: Row = deployment.get("latest_operation") or {}
    moving = [row for row in missing if row.get("observed_state") in MOVING]
    gave_up = latest.get("given_up") is True or latest.get("state") in ("failed", "cancelled")
    is_open = operation in OPEN or latest.get("state") in OPEN
    if gave_up or (not moving and not is_open):
        raise start_failure(deployment)
    states = ", ".join(
        f"{row.get('index')} {row.get('observed_state')}" for row in (moving or missing)
    )
    reason = f": {latest['reason']}" if latest.get("reason") else ""
    ready = len(wanted) - len(missing)
    return Pending(f"{deployment['name']} {ready}/{len(wanted)} ready, instance {states}{reason}")


def start_failure(deployment: Row) -> CommandFailed:
    """Why a start did not succeed, in one code and sentence."""
    latest: Row = deployment.get("latest_operation") or {}
    errors = [str(row["last_error"]) for row in active(deployment) if row.get("last_error")]
    reason = str(latest.get("reason") or (errors[0] if errors else "no reason was recorded"))
    hint = f". {latest['hint']}" if latest.get("hint") else ""
    message = f"{deployment['name']} was not started: {reason}{hint}"
    if is_about_memory([*errors, str(latest.get("reason") or "")]):
        return CommandFailed("insufficient_resources", message)
    return CommandFailed("operation_failed", message)


def is_about_memory(texts: Iterable[str]) -> bool:
    """Whether an instance has no place for want of memory."""
    return any(text.startswith(_MEMORY) for text in texts)


def active(deployment: Row) -> list[Row]:
    """The instances that the configuration asks for."""
    rows: list[Row] = deployment.get("instances", [])
    return [row for row in rows if row.get("lifecycle", "active") == "active"]


@attrs.frozen(kw_only=True)
class Cleanup:
    """What is still open of a deployment before it can be deleted."""

    instances: tuple[str, ...]
    operations: tuple[str, ...]

    @property
    def done(self) -> bool:
        return not self.instances and not self.operations


def cleanup_of(snapshot: Row, deployment: Row) -> Cleanup:
    """Instances that are not stopped, and operations that have not ended."""
    return Cleanup(
        instances=tuple(
            f"{row.get('index')} {row.get('observed_state')}"
            for row in deployment.get("instances", [])
            if row.get("observed_state") not in ("stopped", "failed")
        ),
        operations=tuple(
            str(row["id"])
            for row in snapshot.get("operations", [])
            if row.get("deployment_id") == deployment["id"] and row.get("state") in OPEN
        ),
    )
