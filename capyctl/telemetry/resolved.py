"""On which machines a deployment may run, as the snapshot has it, with each machine's release."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from capyctl.domain.checkpoints import DigestState
from capyctl.domain.hosts import compatibility
from capyctl.domain.ids import HostId
from capyctl.machines.deployment import Deployment
from capyctl.telemetry.hosts import COMPATIBILITY_TEXT


def resolved_hosts(
    deployment: Deployment, releases: Mapping[HostId, str], own_release: str
) -> list[dict[str, Any]]:
    """One machine, or each of several that may run it and what it comes to there.

    ``releases``: versions of machines that have connected; ``own_release``: this server's.
    """
    files = deployment.checkpoint.hosts
    if not files and not deployment.refused:
        return [_only_host(deployment)]
    rows: dict[HostId, dict[str, Any]] = {}
    for f in files:
        is_refused = f.state in (DigestState.MISMATCH, DigestState.UNUSABLE)
        row = {"host_id": f.host, "outcome": "refused" if is_refused else "resolved"}
        if f.diagnostic is not None:
            row["diagnostic"] = f.diagnostic
        rows[HostId(f.host)] = row
    for one in deployment.refused:
        rows[one.host] = {
            "host_id": one.host,
            "outcome": "refused",
            "diagnostic": one.diagnostic,
        }
    for host, row in rows.items():
        if host in releases:
            row.update(_release(releases[host], own_release))
    return [rows[host] for host in sorted(rows)]


def _release(version: str, own_release: str) -> dict[str, str]:
    found = compatibility(version, own_release)
    told = {"binary_version": version, "compatibility": found.value}
    if found in COMPATIBILITY_TEXT:
        told["compatibility_reason"] = COMPATIBILITY_TEXT[found]
    return told


def _only_host(deployment: Deployment) -> dict[str, Any]:
    resolved = deployment.resolved
    if resolved is None or not resolved.candidates:
        allowed = deployment.spec.allowed_hosts
        pending = {"host_id": allowed[0] if allowed else None, "outcome": "resolved"}
        if deployment.checkpoint.diagnostic == "checkpoint_unusable":
            pending = {**pending, "outcome": "refused", "diagnostic": "checkpoint_unusable"}
        return pending
    return {"host_id": str(resolved.candidates[0].host), "outcome": "resolved"}
