"""One run of an engine's process: what is ordered, and what is remembered of it."""

from __future__ import annotations

import attrs

from capyctl.domain.identity import ProcessIdentity
from capyctl.domain.ids import DeploymentId, HostId, InstanceId, LaunchId
from capyctl.domain.specs import Charges, EngineSettings, ModelTask, PhaseCharges, Residency


@attrs.frozen(kw_only=True)
class ModelFiles:
    """The files that a launch must find as they were measured."""

    path: str
    """Absolute: the model's directory, or its one file."""
    digest: str
    """``sha256:`` and 64 hexadecimal digits."""
    draft: ModelFiles | None = None
    """Those of a draft model."""


@attrs.frozen(kw_only=True)
class Installation:
    """Digests of an engine's files: when its profile was first used, and at this launch."""

    registered: str
    observed: str
    flag: bool = False
    """They differ, and nobody was told of this difference yet."""


@attrs.frozen(kw_only=True)
class LaunchOrder:
    """Everything a host needs to start one engine. Complete: nothing is looked up later."""

    launch: LaunchId
    instance: InstanceId
    engine: EngineSettings
    residency: Residency
    device_uuids: tuple[str, ...] = ()
    """GPUs the engine may see; empty on a machine without one."""
    charges: PhaseCharges | None = None
    """What the launch is charged on its domains, phase by phase."""
    files: ModelFiles | None = None
    """None: nothing is known to compare with."""


@attrs.frozen(kw_only=True)
class LaunchRecord:
    """What makes a running engine ours again after any restart. Durable before the engine runs.

    The launch's keys are not in it: they are derived from an owner-only secret and the
    launch id, so nothing that opens an engine is ever stored.
    """

    launch: LaunchId
    deployment: DeploymentId
    index: int
    family: str
    profile: str
    process: ProcessIdentity
    port: int
    """Loopback port the engine listens on."""
    served_name: str
    residency: Residency
    model_path: str
    canary: str | None = None
    """What the fixed prompt answered at first readiness; a wake must answer the same."""
    device_uuids: tuple[str, ...] = ()
    """GPUs it may use."""
    ready: Charges = attrs.field(factory=dict)
    """What it is charged while it serves."""
    files: ModelFiles | None = None
    installation: Installation | None = None
    task: ModelTask = ModelTask.GENERATE
    kept_bytes: int = 0
    """Weights that a park leaves where they are."""


@attrs.frozen(kw_only=True)
class IngressPass:
    """What a request names to reach one engine through the ingress of the machine it runs on."""

    host: HostId
    """Whose certificate must be met at the address."""
    launch: LaunchId
    generation: int
    """Which opening of the launch this is, as its host counts them: the same number there."""
    secure: bool = True
    """Mutual TLS; false: plain HTTP over a private link that the host's document trusts."""


@attrs.frozen(kw_only=True)
class Endpoint:
    """Where and with what key requests reach one engine. Lives in memory only."""

    host: str
    port: int
    key: str | None = attrs.field(repr=False)
    """Inference key of the launch; None for engines that take none."""
    served_name: str
    ingress: IngressPass | None = None
    """Set where the address is a host's ingress: the key is then the host's to add."""
