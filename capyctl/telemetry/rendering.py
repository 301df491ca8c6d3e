"""What the snapshot says of one deployment and of one operation. Pure: records in, JSON out."""

from __future__ import annotations

import datetime
import re
from collections.abc import Mapping
from typing import Any

import attrs

from capyctl import __version__
from capyctl.domain.checkpoints import SourceRecord
from capyctl.domain.ids import HostId
from capyctl.domain.operations import Operation, OperationState
from capyctl.domain.profiles import NEVER_PARK
from capyctl.domain.specs import Windows
from capyctl.ledger.windows import derive_windows
from capyctl.machines.checkpoint import source_of
from capyctl.machines.deployment import Deployment, Desired, Picture
from capyctl.machines.instance import Instance, InstanceState
from capyctl.machines.observed import observed_deployment, observed_instance
from capyctl.telemetry.choices import choices_of
from capyctl.telemetry.memory import memory_of, startup_of
from capyctl.telemetry.resolved import resolved_hosts

TEXT_BYTES_MAX = 16 * 1024
_TELLTALE = re.compile(
    r"bearer|authorization|api_key|password|secret|token=|key=|private key", re.IGNORECASE
)
WITHHELD = "withheld: the reason mentions a credential; see the log of the machine"

HINTS: Mapping[str, str] = {
    "insufficient_device_memory": (
        "Give the model less memory where it needs more than the limit; else stop or park another "
        "model on this GPU, or start with --evict."
    ),
    "insufficient_memory": (
        "Free host memory, stop another model, or lower the model's memory request."
    ),
    "port_conflict": (
        "Another program listens on the engine port range; change resource_policy."
        "endpoint_port_range or end that program."
    ),
    "oom_killed": (
        "Host memory ran out: give the model a smaller cache or context, stop another model, or "
        "raise the memory limit of capyctl's service or container."
    ),
    "launch_failed": "Read the engine's log: GET .../engine-log, or capyctl status deployment.",
    "effective_args_mismatch": (
        "The engine runs with other settings than ordered; look for a configuration file of its "
        "own, or for an argument that overrides them."
    ),
    "engine_argument_rejected": "Remove or correct the engine argument that the reason names.",
    "startup_requires_empty_host": (
        "Park or stop what runs on the machine, or start with --evict; once a start was measured "
        "its own figure counts."
    ),
    "profile_retiring": "Deploy it on another profile, or register this one again.",
    "parked_capacity": "Stop a parked model, or stop this one instead of parking it.",
    "parked_growth": "The next request starts it anew; see parked_growth_limit.",
    "installation_drift": (
        "Register the engine again with capyctl engine add, or restore its files."
    ),
    "checkpoint_unverified": "Make the model's files readable; the start is tried again.",
    "checkpoint_mismatch": "Restore the model's files, or deploy them as a new revision.",
    "wake_mismatch": "It answered differently after its wake; the next request starts it anew.",
    "no_host_fits": "No machine is large enough; give the model less memory or use a smaller one.",
}


@attrs.frozen(kw_only=True)
class OpenSwitch:
    """A switch under way, as its events tell."""

    id: str
    target: str
    host: str
    victims: tuple[str, ...]
    phase: str
    explicit: bool


@attrs.frozen(kw_only=True)
class Parts:
    """Everything that one deployment's entry is made of."""

    deployment: Deployment
    instances: Mapping[int, Instance]
    open_operations: tuple[Operation, ...]
    latest: Mapping[int | None, Operation]
    """The newest operation per instance, and of all of them under None."""
    switch: OpenSwitch | None
    fingerprint: str | None
    releases: Mapping[HostId, str] = attrs.field(factory=dict)
    """Versions of a server's machines."""


def render_deployment(parts: Parts) -> dict[str, Any]:
    """One entry of `deployments`, in the contract's order."""
    deployment = parts.deployment
    picture = Picture(
        deployment=deployment,
        instances=parts.instances,
        operations={o.id: o for o in parts.open_operations},
    )
    live = [one for one in picture.retiring if one.state not in _EMPTY]
    shown = {
        one.id.index: observed_instance(one, picture.accepted(one))
        for one in (*picture.active, *live)
    }
    ready = [one for one in picture.active if one.state is InstanceState.READY]
    wanted = [one for one in picture.active if not one.operator_stopped]
    at_rest = "parked" if deployment.desired is Desired.PARKED else "stopped"
    if not any(state == "parked" for state in shown.values()):
        at_rest = "stopped"
    entry: dict[str, Any] = {
        "id": deployment.id,
        "name": deployment.spec.name,
        "kind": "model",
        "revision": str(deployment.revision),
        "generation": str(deployment.generation),
        "desired_state": deployment.desired.value,
        "observed_state": observed_deployment(tuple(shown.values()), at_rest=at_rest),
        "admission_enabled": not deployment.operator_stopped,
        "dispatch_enabled": bool(ready),
        "suspended": False,
        "effective_fingerprint": parts.fingerprint,
        "development_controls": _development_controls(deployment),
        "checkpoint_digest": _checkpoint(deployment, picture),
        **_sources(deployment, picture),
        "desired_instances": deployment.spec.instances,
        "ready_instances": len(ready),
        "conditions": ["degraded"] if 0 < len(ready) < len(wanted) else [],
        "instances": [
            _instance(one, shown[one.id.index], parts, retiring=one in live)
            for one in (*picture.active, *live)
        ],
        "hosts": resolved_hosts(deployment, parts.releases, __version__),
        "timeouts": _timeouts(deployment),
    }
    entry.update(memory_of(deployment, picture))
    entry.update(choices_of(deployment.resolved))
    if parts.switch is not None:
        entry["switch"] = _switch(parts.switch, deployment)
    if deployment.spec.warm:
        entry["warm"] = True
    if deployment.spec.explicit:
        entry["activation"] = "explicit"
    latest = parts.latest.get(None)
    if latest is not None:
        entry["latest_operation"] = _latest(latest)
    return entry


_EMPTY = (InstanceState.STOPPED, InstanceState.FAILED)


def _development_controls(deployment: Deployment) -> dict[str, Any]:
    parks = deployment.resolved is not None and deployment.resolved.engine.parks
    if not parks:
        return {"enabled": False}
    warning = (
        "The engine runs with its sleep endpoints mounted; they are reachable on loopback "
        "with the launch's admin key only."
    )
    return {"enabled": True, "warning": warning}


def _checkpoint(deployment: Deployment, picture: Picture) -> dict[str, Any]:
    record = deployment.checkpoint
    found: dict[str, Any] = {
        "state": record.state.value,
        "host_id": _host_id(deployment, picture),
    }
    if record.expected is not None:
        found["expected"] = record.expected
    if record.facts is not None:
        found["digest"] = record.facts.digest
        found["weights_bytes"] = record.facts.weights_bytes
    provisional = deployment.resolved.provisional if deployment.resolved else record.facts is None
    found["provisional"] = provisional
    if record.diagnostic is not None:
        found["diagnostic"] = record.diagnostic
    if record.detail is not None:
        found["detail"] = _safe(record.detail)
    if record.facts is not None:
        found["provenance"] = record.facts.provenance
    return found


def _sources(deployment: Deployment, picture: Picture) -> dict[str, Any]:
    source = deployment.spec.source
    if source is None:
        return {}
    several = deployment.checkpoint.hosts
    records = [f.source or SourceRecord(host=f.host) for f in several]
    if not several:
        only = source_of(deployment, host=_host_id(deployment, picture) or "")
        records = [] if only is None else [only]
    return {"model_sources": [_source(record, source.key) for record in records]}


def _source(record: SourceRecord, key: str) -> dict[str, Any]:
    row: dict[str, Any] = {
        "host_id": record.host,
        "source_key": key,
        "state": record.state.value,
        "bytes_done": record.bytes_done,
        "bytes_total": record.bytes_total,
    }
    if record.reason is not None:
        row["reason"] = _safe(record.reason)
    if record.terminal:
        row["terminal"] = True
    return row


def _host_id(deployment: Deployment, picture: Picture) -> str | None:
    """The machine whose files count: of several, the one that was measured first."""
    if deployment.checkpoint.hosts:
        return deployment.checkpoint.host
    if deployment.resolved is not None and deployment.resolved.candidates:
        return str(deployment.resolved.candidates[0].host)
    for one in picture.active:
        if one.last_host is not None:
            return one.last_host
    allowed = deployment.spec.allowed_hosts
    return allowed[0] if allowed else None


def _instance(one: Instance, shown: str, parts: Parts, *, retiring: bool) -> dict[str, Any]:
    held = one.held
    gpu = one.last_gpu if held is None else held.candidate.gpu
    entry: dict[str, Any] = {
        "index": one.id.index,
        "host_id": one.last_host if held is None else held.candidate.host,
        "devices": None if gpu is None else [{"id": gpu}],
        "generation": str(one.generation) if one.generation else None,
        "observed_state": shown,
    }
    if one.revision:
        entry["revision"] = str(one.revision)
    if one.failure is not None:
        entry["last_error"] = _safe(str(one.failure))
    entry["lifecycle"] = "retiring" if retiring else "active"
    entry["operator_stopped"] = one.operator_stopped
    if held is not None:
        entry["startup"] = startup_of(held.candidate)
    entry["development_controls"] = _development_controls(parts.deployment)
    latest = parts.latest.get(one.id.index)
    if latest is not None:
        entry["latest_operation"] = _latest(latest)
    return entry


def windows_of(deployment: Deployment) -> Windows:
    """The windows of the resolved configuration; before that, those of unknown weights."""
    if deployment.resolved is not None:
        return deployment.resolved.windows
    spec = deployment.spec
    residency = "" if spec.residency is None else spec.residency.value
    parks = spec.family not in NEVER_PARK and residency != "restart_only"
    return derive_windows(
        family=spec.family,
        weights_bytes=None,
        parks=parks,
        request_deadline_s=spec.request_deadline_s,
        initialize_s=spec.initialize_s,
        wake_s=spec.wake_s,
    )


def _timeouts(deployment: Deployment) -> dict[str, Any]:
    windows = windows_of(deployment)
    spec = deployment.spec
    provenance = {"initialize": "derived" if spec.initialize_s is None else "declared"}
    found: dict[str, Any] = {
        "request_deadline_ms": round(windows.request_deadline_s * 1000),
        "initialize_ms": round(windows.initialize_s * 1000),
    }
    if windows.wake_s is not None:
        found["wake_ms"] = round(windows.wake_s * 1000)
        provenance["wake"] = "derived" if spec.wake_s is None else "declared"
    found["stop_ms"] = round(windows.stop_s * 1000)
    found["provenance"] = provenance
    return found


def _switch(switch: OpenSwitch, deployment: Deployment) -> dict[str, Any]:
    return {
        "switch_id": switch.id,
        "role": "target" if switch.target == deployment.id else "victim",
        "target": switch.target,
        "host": switch.host,
        "victims": list(switch.victims),
        "phase": switch.phase,
        "explicit": switch.explicit,
    }


def _latest(operation: Operation) -> dict[str, Any]:
    found: dict[str, Any] = {
        "id": operation.id,
        "kind": operation.kind.value,
        "state": operation.state.value,
    }
    if operation.error_code is not None:
        found["error_code"] = operation.error_code
    if operation.state is OperationState.SUCCEEDED:
        return found
    if operation.reason:
        found["reason"] = _safe(operation.reason)
    hint = operation.hint or _hint(operation)
    if hint is not None:
        found["hint"] = hint
    if operation.given_up:
        found["given_up"] = True
    return found


def _hint(operation: Operation) -> str | None:
    for text in (operation.error_code or "", operation.reason or ""):
        for category, hint in HINTS.items():
            if category in text:
                return hint
    return None


def _safe(text: str) -> str:
    if _TELLTALE.search(text):
        return WITHHELD
    return text.encode()[:TEXT_BYTES_MAX].decode(errors="ignore")


def render_operation(operation: Operation) -> dict[str, Any]:
    """One row of `operations`."""
    failed = operation.state is OperationState.FAILED
    row: dict[str, Any] = {
        "id": operation.id,
        "deployment_id": operation.deployment,
        "action": operation.kind.value,
        "state": operation.state.value,
        "has_error": failed or operation.error_code is not None,
    }
    if operation.error_code is not None:
        row["error_code"] = operation.error_code
    row["accepted_at"] = iso_ms(operation.accepted_at_ms)
    return row


def iso_ms(at_ms: int) -> str:
    """``2026-10-21T01:20:15.888Z``."""
    seconds, ms = divmod(at_ms, 1000)
    at = datetime.datetime.fromtimestamp(seconds, tz=datetime.UTC)
    return at.strftime("%Y-%m-%dT%H:%M:%S") + f".{ms:03d}Z"
