"""The bodies that the management API answers with, as schemas. For its description only: answers
are written where their facts are, and tests hold the two against each other.

A client has to expect further fields in all of them.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from capyctl.domain.errors import MANAGEMENT_ERRORS
from capyctl.domain.ids import INDEX_MAX
from capyctl.wire.paths import ULID_PATTERN

Ulid = Annotated[str, Field(pattern=f"^{ULID_PATTERN}$")]
Decimal = Annotated[str, Field(pattern="^(0|[1-9][0-9]*)$", description="A whole number, as text.")]
Count = Annotated[int, Field(ge=0)]
CURSOR_PATTERN = f"^{ULID_PATTERN}:(0|[1-9][0-9]*)$"
ObservedState = Literal[
    "ready",
    "parked",
    "queued",
    "starting",
    "waking",
    "parking",
    "stopping",
    "stopped",
    "failed",
    "uncertain",
    "reconciling",
]
OperationState = Literal["pending", "running", "succeeded", "failed", "cancelled"]
MAY_BE_ABSENT: Any = None
"""The default of a field that is left out rather than null."""


class _Shape(BaseModel):
    model_config = ConfigDict(extra="allow", defer_build=True)


class ErrorBody(_Shape):
    code: str = Field(json_schema_extra={"enum": [*sorted(MANAGEMENT_ERRORS)]})
    details: dict[str, Any] = Field(
        description="`path` for invalid_config, `profile` and `hosts` for profile_not_published, "
        "`resnapshot_required` for cursor_expired; else empty."
    )
    message: str
    operation_id: None
    retryable: bool = Field(description="Whether the same request can succeed later.")


class Error(_Shape):
    """Every refusal has this shape."""

    api_version: Literal["1"]
    error: ErrorBody


class ConfigurationReceipt(_Shape):
    """An accepted create or replace."""

    api_version: Literal["1"]
    checkpoint_digest: Literal["pending", "recorded", "mismatch", "unusable"]
    deployment_id: Ulid
    joined: Literal[False]
    operation_id: Ulid
    revision: Decimal


class ActionReceipt(_Shape):
    """An accepted action: accepted, not done."""

    api_version: Literal["1"]
    deployment_id: Ulid
    joined: bool = Field(description="It joined an operation that was under way already.")
    operation_id: Ulid | None
    revision: Decimal
    instance: Count = Field(default=MAY_BE_ABSENT, le=INDEX_MAX)
    victims: list[str] = Field(
        default=MAY_BE_ABSENT, description="Of a start with evict: `<deployment id>/<index>`."
    )
    switch_id: Ulid | None = Field(default=MAY_BE_ABSENT)


class LatestOperation(_Shape):
    id: Ulid
    kind: str
    state: OperationState
    error_code: str = MAY_BE_ABSENT
    reason: str = MAY_BE_ABSENT
    hint: str = MAY_BE_ABSENT
    given_up: Literal[True] = Field(
        default=MAY_BE_ABSENT, description="Nothing more is tried, though it is pending still."
    )


class Device(_Shape):
    id: str


class Instance(_Shape):
    index: Count = Field(le=INDEX_MAX)
    host_id: str | None
    devices: list[Device] | None
    generation: Decimal | None
    observed_state: ObservedState
    revision: Decimal = Field(default=MAY_BE_ABSENT, description="The one it runs.")
    last_error: str = MAY_BE_ABSENT
    lifecycle: Literal["active", "retiring"]
    operator_stopped: bool
    development_controls: dict[str, Any]
    latest_operation: LatestOperation = MAY_BE_ABSENT


class CheckpointDigest(_Shape):
    state: Literal["pending", "recorded", "mismatch", "unusable"]
    host_id: str | None
    expected: str = MAY_BE_ABSENT
    digest: str = Field(default=MAY_BE_ABSENT, pattern="^sha256:[0-9a-f]{64}$")
    weights_bytes: Count = MAY_BE_ABSENT
    provisional: bool
    diagnostic: str = MAY_BE_ABSENT
    detail: str = MAY_BE_ABSENT


class ResolvedHost(_Shape):
    host_id: str | None
    outcome: Literal["resolved", "refused"]
    diagnostic: str = MAY_BE_ABSENT
    binary_version: str = MAY_BE_ABSENT
    compatibility: str = MAY_BE_ABSENT
    compatibility_reason: str = MAY_BE_ABSENT


class Timeouts(_Shape):
    """Milliseconds: the windows that deadlines of actions are taken from."""

    request_deadline_ms: Count
    initialize_ms: Count
    wake_ms: Count = Field(default=MAY_BE_ABSENT, description="Absent where it never parks.")
    stop_ms: Count


class Deployment(_Shape):
    id: Ulid
    name: str
    kind: Literal["model"]
    revision: Decimal = Field(description="What the next change must name, as a number.")
    generation: Decimal
    desired_state: Literal["stopped", "ready", "parked"]
    observed_state: ObservedState
    admission_enabled: bool
    dispatch_enabled: bool
    suspended: bool
    effective_fingerprint: str | None
    development_controls: dict[str, Any]
    checkpoint_digest: CheckpointDigest = MAY_BE_ABSENT
    desired_instances: Count
    ready_instances: Count
    conditions: list[Literal["degraded"]]
    instances: list[Instance]
    hosts: list[ResolvedHost]
    timeouts: Timeouts
    warm: Literal[True] = MAY_BE_ABSENT
    activation: Literal["explicit"] = MAY_BE_ABSENT
    latest_operation: LatestOperation = MAY_BE_ABSENT


class Route(_Shape):
    deployment_id: Ulid
    route: str


class Operation(_Shape):
    id: Ulid
    deployment_id: Ulid | None
    action: str
    state: OperationState
    has_error: bool
    error_code: str = MAY_BE_ABSENT
    accepted_at: str = Field(pattern=r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z$")


class Snapshot(_Shape):
    """One consistent state, at `cursor`."""

    api_version: Literal["1"]
    cursor: str = Field(pattern=CURSOR_PATTERN)
    ledger_epoch: Decimal
    session_epoch: Decimal
    deployments: list[Deployment]
    routes: list[Route]
    operations: list[Operation]


class EffectiveHost(_Shape):
    host_id: str | None
    outcome: Literal["resolved", "refused"]
    effective: dict[str, Any] | None
    diagnostic: str | None


class EffectiveConfig(_Shape):
    """The resolved configuration; secrets are `[redacted]`."""

    api_version: Literal["1"]
    deployment_id: Ulid
    revision: int = Field(ge=1)
    effective: dict[str, Any]
    hosts: list[EffectiveHost]


class EngineLog(_Shape):
    api_version: Literal["1"]
    deployment_id: Ulid
    instance: Count
    host_id: str
    incarnation: str
    kib: int = Field(ge=1, le=256)
    truncated: bool
    text: str
    read_at_ms: Count


class RouterLoad(_Shape):
    in_flight: Count
    in_flight_limit: Count
    waiting: Count
    waiting_limit: Count


class MaxRunning(_Shape):
    count: Count = MAY_BE_ABSENT
    source: str


class EngineLoad(_Shape):
    running: int | None
    waiting: int | None
    kv_usage_ppm: int | None


class Sample(_Shape):
    sampled_at_ms: Count
    age_ms: Count
    fresh: bool
    ingress_in_flight: Count
    engine: EngineLoad | None


class InstanceLoad(_Shape):
    index: Count
    host_id: str | None
    generation: int | None
    observed_state: ObservedState
    router_in_flight: Count
    max_running: MaxRunning | None
    sample: Sample | None


class DeploymentLoad(_Shape):
    deployment_id: Ulid
    name: str
    router: RouterLoad
    max_running: MaxRunning | None
    instances: list[InstanceLoad]


class Load(_Shape):
    """Live load. All of it numbers."""

    observed_at_ms: Count
    stale_after_ms: Count
    deployments: list[DeploymentLoad]


class Latency(_Shape):
    api_version: Literal["1"]
    phases: list[dict[str, Any]]


class ModelSources(_Shape):
    api_version: Literal["1"]
    referenced: list[str]
