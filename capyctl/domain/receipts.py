"""The bodies that accepted changes are answered with, byte for byte."""

from __future__ import annotations

from collections.abc import Sequence

from capyctl.domain.canonical import canonical_json
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
