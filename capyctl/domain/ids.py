"""Names of things: plain strings at run time, distinct types to the type checker."""

from __future__ import annotations

from typing import NewType

import attrs

DeploymentId = NewType("DeploymentId", str)
"""26-character ULID in canonical upper case."""
OperationId = NewType("OperationId", str)
"""26-character ULID of one piece of tracked work."""
LaunchId = NewType("LaunchId", str)
"""26-character ULID of one run of an engine's process (its incarnation)."""
SwitchId = NewType("SwitchId", str)
HostId = NewType("HostId", str)
DomainName = NewType("DomainName", str)
"""A memory domain: ``system``, ``unified`` or ``gpuN``."""
GpuId = NewType("GpuId", str)
"""``gpu0``, ``gpu1`` …: the index that the driver reports."""

INDEX_MAX = 63


@attrs.frozen(order=True)
class InstanceId:
    """One copy of a deployment. Its text form is ``<deployment id>/<index>``."""

    deployment: DeploymentId
    index: int

    def __str__(self) -> str:
        return f"{self.deployment}/{self.index}"
