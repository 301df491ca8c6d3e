"""The bodies that accepted changes are answered with, byte for byte."""

from __future__ import annotations

from collections.abc import Sequence

from capyctl.domain.canonical import canonical_json
from capyctl.domain.hosts import HostRecord, Invitation
from capyctl.domain.ids import DeploymentId, InstanceId, OperationId, SwitchId


def configuration_receipt(
    deployment: DeploymentId, operation: OperationId, *, revision: int, checkpoint_digest: str
) -> str:
    """The answer to a create or replace: JSON, compact, keys sorted."""
    return canonical_json(
        {
            "api_version": "1",
            "checkpoint_digest": checkpoint_digest,
            "deployment_id": deployment,
            "joined": False,
            "operation_id": operation,
            "revision": str(revision),
        }
    )


def action_receipt(
    deployment: DeploymentId,
    operation: OperationId | None,
    *,
    revision: int,
    joined: bool,
    instance: int | None = None,
    victims: Sequence[InstanceId] | None = None,
    switch: SwitchId | None = None,
) -> str:
    """The answer to an action; ``victims`` and ``switch`` only for an evicting start."""
    body: dict[str, object] = {
        "api_version": "1",
        "deployment_id": deployment,
        "joined": joined,
        "operation_id": operation,
        "revision": str(revision),
    }
    if instance is not None:
        body["instance"] = instance
    if victims is not None:
        body["victims"] = [str(victim) for victim in victims]
        body["switch_id"] = switch
    return canonical_json(body)


def host_receipt(record: HostRecord, *, action: str, joined: bool) -> str:
    """The answer to a change of a host; ``joined``: it was so before."""
    return canonical_json(
        {
            "action": action,
            "api_version": "1",
            "host_id": record.id,
            "host_name": record.name,
            "joined": joined,
        }
    )


def invitation_receipt(invitation: Invitation) -> str:
    """The answer to an invitation, without its text: that is shown once and not stored."""
    return canonical_json(
        {
            "api_version": "1",
            "expires_at_ms": str(invitation.expires_at_ms),
            "host_id": invitation.recover,
            "host_name": invitation.host_name,
            "invitation_id": invitation.id,
        }
    )
