"""The deployment document: every field, closed and strict."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field, field_validator

from capyctl.config.engine_config import EngineConfig
from capyctl.config.fields import Closed, Count, Duration, Name, SchemaVersion, bad_value
from capyctl.config.model_source import Model, check_path
from capyctl.config.resources import Device, Resources

INSTANCES_MAX = 64
ROUTES_MAX = 64
REQUEST_DEADLINE_MIN_S = 30
REQUEST_DEADLINE_MAX_S = 3600
INITIALIZE_MIN_S = 30
WAKE_MIN_S = 10


class Placement(Closed):
    hosts: list[Name] | None = Field(default=None, min_length=1)
    selector: dict[str, str] = Field(default_factory=dict)
    strategy: Literal["spread", "pack"] = "spread"
    max_per_host: Count | None = None


class Topology(Closed):
    tensor_parallel: Count = 1
    pipeline_parallel: Count = 1


class Timeouts(Closed):
    initialize: Duration | None = None
    wake: Duration | None = None


class Lifecycle(Closed):
    warm: bool = False
    activation: Literal["on_demand", "explicit"] = "on_demand"


class DeploymentDocument(Closed):
    schema_version: SchemaVersion = 1
    kind: Literal["deployment"] = "deployment"
    name: Name
    engine: Name | None = None
    runtime_profile: Name | None = None
    runtime_profile_revision: Count | None = None
    model: Model
    routes: list[Name] | None = Field(default=None, min_length=1, max_length=ROUTES_MAX)
    recipe: Name = "standard"
    recovery: Literal["reconcile"] = "reconcile"
    residency: Literal["deep", "host_backed", "restart_only"] | None = None
    host: Name | None = None
    placement: Placement = Placement()
    instances: int = Field(default=1, ge=1, le=INSTANCES_MAX)
    topology: Topology = Topology()
    devices: list[Device] = Field(default_factory=list)
    engine_config: EngineConfig = EngineConfig()
    resources: Resources | None = None
    request_deadline: Duration | None = None
    timeouts: Timeouts = Timeouts()
    lifecycle: Lifecycle = Lifecycle()
    env: dict[str, Any] = Field(default_factory=dict)

    @field_validator("model", mode="before")
    @classmethod
    def _short_model(cls, value: object) -> object:
        """A text is a path: checked here, so that the problem is at `model`."""
        return {"path": check_path(value)} if isinstance(value, str) else value

    @field_validator("env")
    @classmethod
    def _no_env(cls, value: dict[str, Any]) -> dict[str, Any]:
        if value:
            raise bad_value("nothing is accepted here; use engine_config.env")
        return value
