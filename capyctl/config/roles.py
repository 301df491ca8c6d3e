"""The documents of a host and of a server that serve several machines."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, field_validator

from capyctl.config.fields import Closed, Count, Duration, Name, Size, bad_value, text_default
from capyctl.config.profiles import LocalEngine, RuntimeProfile
from capyctl.config.standalone import (
    Checkpoints,
    EnginePorts,
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
)


class Domain(Closed):
    memory: Literal["unified", "distinct", "device"]
    device: str | None = None
    managed_limit: Size
    free_reserve: Size
    parked_limit: Size
    host_kv_limit: Size | None = None


class PolicyDevice(Closed):
    domain: Name
    sharing: Literal["shared", "exclusive"] = "shared"
    physical_gpu_uuid: Name | None = None


class HostPolicy(Closed):
    domains: dict[str, Domain] = Field(default_factory=dict)
    devices: dict[str, PolicyDevice] = Field(default_factory=dict)
    device_sharing: Literal["shared", "exclusive"] = "shared"
    max_parked: Count | None = None
    observation_ttl: Duration = text_default("2s")
    endpoint_port_range: EnginePorts = EnginePorts()
    planner_max_states: Count = 4096
    parked_growth_limit: Name = "auto"
    labels: dict[str, str] = Field(default_factory=dict)
    queue: Queue = Queue()
    groups: HostGroups = HostGroups()


class Ingress(Closed):
    transport: Literal["mutual_tls", "trusted_private_link"] = "mutual_tls"
    address: Name | None = None
    bind: Name | None = None


class HostListener(Closed):
    bind: Name
    authentication: Name | None = None


class HostDocument(Closed):
    schema_version: Literal[1]
    kind: Literal["host"]
    name: Name
    state_dir: str | None = None
    identity_dir: str | None = None
    runtime_dir: str | None = None
    local_engine: LocalEngine = LocalEngine()
    hardware_fingerprint: Name | None = None
    environment_fingerprint: Name | None = None
    device_inventory_digest: Name | None = None
    model_store: ModelStore = ModelStore()
    model_sources: ModelSources = ModelSources()
    checkpoints: Checkpoints = Checkpoints()
    lifecycle: HostLifecycle = HostLifecycle()
    ingress: Ingress = Ingress()
    load_report_interval: Duration = text_default("1s")
    shutdown: Shutdown = Shutdown()
    listeners: dict[str, HostListener] = Field(default_factory=dict)
    runtime_profiles: dict[str, RuntimeProfile] = Field(default_factory=dict)
    resource_policy: HostPolicy = HostPolicy()

    @field_validator("local_engine")
    @classmethod
    def _no_cache(cls, value: LocalEngine) -> LocalEngine:
        if value.kv_cache is not None:
            raise bad_value("kv_cache is a setting of standalone only")
        return value


class TlsListener(Closed):
    bind: Name
    authentication: Literal["server_tls", "mutual_tls"]


class ServerListener(Closed):
    bind: Name = "127.0.0.1:7443"
    authentication: Literal["token"] = "token"


class ServerListeners(Closed):
    management: ServerListener = ServerListener()
    inference: InferenceListener = InferenceListener()
    bootstrap: TlsListener = TlsListener(bind="127.0.0.1:7444", authentication="server_tls")
    control: TlsListener = TlsListener(bind="127.0.0.1:7445", authentication="mutual_tls")


class Enrollment(Closed):
    bootstrap_address: Annotated[str, Field(pattern="^https://")]
    control_address: Annotated[str, Field(pattern="^https://")]


class Control(Closed):
    heartbeat_suspend_after: Duration = text_default("5s")
    heartbeat_lost_after: Duration = text_default("30s")


class SchedulerQueue(Closed):
    max_buffered_bytes_total: Size | None = None


class Scheduler(Closed):
    queue: SchedulerQueue = SchedulerQueue()


class ServerDocument(Closed):
    schema_version: Literal[1]
    kind: Literal["server"]
    name: Name | None = None
    state_dir: str | None = None
    identity_dir: str | None = None
    listeners: ServerListeners = ServerListeners()
    enrollment: Enrollment | None = None
    lifecycle_defaults: LifecycleDefaults = LifecycleDefaults()
    control: Control = Control()
    switching: Switching = Switching()
    shutdown: Shutdown = Shutdown()
    observability: Observability = Observability()
    groups: ServerGroups = ServerGroups()
    scheduler: Scheduler = Scheduler()
