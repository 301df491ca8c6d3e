"""The standalone document: one machine, its server side and its host side."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field, field_validator

from capyctl.config.blocks import (
    Amount,
    Checkpoints,
    EnginePorts,
    Growth,
    HostGroups,
    HostLifecycle,
    InferenceListener,
    LifecycleDefaults,
    ModelSources,
    ModelStore,
    Observability,
    Queue,
    ServerGroups,
    Shutdown,
    Switching,
    check_loopback,
)
from capyctl.config.fields import Closed, Name, SchemaVersion, Stated, bad_value
from capyctl.config.profiles import LocalEngine


class ManagementListener(Closed):
    bind: str = "127.0.0.1:7443"
    authentication: Literal["admin_token"] = "admin_token"

    _bind = field_validator("bind")(check_loopback)


class Listeners(Closed):
    management: ManagementListener = ManagementListener()
    inference: InferenceListener = InferenceListener()


class Server(Closed):
    name: Name | None = None
    state_dir: str | None = None
    listeners: Listeners = Listeners()
    switching: Switching = Switching()
    lifecycle_defaults: LifecycleDefaults = LifecycleDefaults()
    observability: Observability = Observability()
    groups: ServerGroups = ServerGroups()


class SystemMemory(Closed):
    managed_limit: Amount = "auto"
    free_reserve: Amount = "auto"
    parked_limit: Amount = "auto"


class Memory(Closed):
    accounting: Literal["auto"] = "auto"
    system: SystemMemory = SystemMemory()


class ResourcePolicy(Closed):
    allowed_devices: Literal["auto"] = "auto"
    memory: Memory = Memory()
    parked_growth_limit: Growth = "auto"
    endpoint_port_range: EnginePorts = EnginePorts()
    queue: Queue = Queue()
    groups: HostGroups = HostGroups()


class Host(Closed):
    name: Name | None = None
    state_dir: str | None = None
    connection: Literal["embedded"] = "embedded"
    model_store: ModelStore = ModelStore()
    model_sources: ModelSources = ModelSources()
    checkpoints: Checkpoints = Checkpoints()
    local_engine: LocalEngine = LocalEngine()
    runtime_dir: str | None = None
    lifecycle: HostLifecycle = HostLifecycle()
    runtime_profiles: dict[str, Any] = Field(default_factory=dict)
    resource_policy: ResourcePolicy = ResourcePolicy()

    @field_validator("runtime_profiles")
    @classmethod
    def _none(cls, value: dict[str, Any]) -> dict[str, Any]:
        if value:
            raise bad_value("must be empty; register engines with `capyctl engine add`")
        return value


class StandaloneDocument(Closed):
    schema_version: SchemaVersion
    kind: Literal["standalone"]
    state_dir: Stated | None = None
    server: Server = Server()
    host: Host = Host()
    shutdown: Shutdown = Shutdown()
