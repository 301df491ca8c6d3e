"""The document of a host: a machine that runs engines for a server elsewhere."""

from __future__ import annotations

import ipaddress
import re
from typing import Annotated, Literal, Self

from pydantic import Field, field_validator, model_validator

from capyctl.config.blocks import (
    Checkpoints,
    EnginePorts,
    Growth,
    HostGroups,
    HostLifecycle,
    ModelSources,
    ModelStore,
    Queue,
    Shutdown,
    check_public,
    split_address,
)
from capyctl.config.fields import (
    Closed,
    Count,
    Duration,
    Name,
    PositiveSize,
    SchemaVersion,
    Size,
    bad_topology,
    bad_value,
    text_default,
)
from capyctl.config.profiles import RESERVED_PREFIX, LocalEngine, RuntimeProfile, refused_name
from capyctl.domain.hosts import is_host_name

_GPU = re.compile(r"gpu(0|[1-9][0-9]{0,2})")
_LABEL = re.compile(r"[A-Za-z0-9]([A-Za-z0-9-]{0,61}[A-Za-z0-9])?")
_PRIVATE = tuple(
    map(
        ipaddress.ip_network,
        (
            *("127.0.0.0/8", "10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "169.254.0.0/16"),
            *("100.64.0.0/10", "::1/128", "fc00::/7", "fe80::/10"),
        ),
    )
)
"""Loopback, private, link-local, overlay. Not what `ipaddress` calls private, which has more, and
takes an IPv4 address written as IPv6 for it."""
REPORT_S_MIN = 0.2
REPORT_S_MAX = 2.0
"""Samples of a host's load count for 3 s."""


class Domain(Closed):
    """Limits on one pool of a machine's memory."""

    memory: Literal["unified", "distinct", "device"]
    device: str | None = None
    managed_limit: PositiveSize
    free_reserve: Size
    parked_limit: Size
    host_kv_limit: Size | None = None

    @model_validator(mode="after")
    def _fits(self) -> Self:
        if self.parked_limit > self.managed_limit:
            raise bad_value("parked_limit is above managed_limit", at="parked_limit")
        if self.memory == "device" and self.host_kv_limit is not None:
            detail = "host_kv_limit is for host memory, not for a device"
            raise bad_value(detail, at="host_kv_limit")
        if (self.memory == "device") != (self.device is not None):
            detail = "a device domain names its device, and no other domain does"
            raise bad_value(detail, at="device")
        return self


class PolicyDevice(Closed):
    """What a host says of one of its GPUs."""

    domain: Name
    sharing: Literal["shared"] = "shared"
    physical_gpu_uuid: Name | None = None


class HostQueue(Queue):
    request_deadline: Annotated[Duration, Field(ge=30, le=3600)] = text_default("600s")


class HostPolicy(Closed):
    domains: dict[str, Domain] = Field(default_factory=dict)
    devices: dict[str, PolicyDevice] = Field(default_factory=dict)
    device_sharing: Literal["shared"] = "shared"
    max_parked: Count | None = None
    observation_ttl: Duration = text_default("2s")
    endpoint_port_range: EnginePorts = EnginePorts()
    planner_max_states: Count = 4096
    parked_growth_limit: Growth = "auto"
    labels: dict[str, str] = Field(default_factory=dict)
    queue: HostQueue = HostQueue()
    groups: HostGroups = HostGroups()

    @model_validator(mode="after")
    def _domains_fit(self) -> Self:
        if not self.domains:
            if self.devices:
                raise bad_value("devices are stated and domains are not; state both or neither")
            return self
        kinds = [domain.memory for domain in self.domains.values()]
        if "unified" in kinds and "device" in kinds:
            raise bad_topology("unified memory and cards with memory of their own in one machine")
        if kinds.count("unified") + kinds.count("distinct") != 1:
            raise bad_value("domains has exactly one of unified (named unified) or system")
        for name, domain in self.domains.items():
            if name != _proper_name(domain):
                detail = "a domain is named unified, system or, of a device, as its gpuN"
                raise bad_value(detail, at=f"domains.{name}")
        self._check_devices()
        return self

    def _check_devices(self) -> None:
        unified = "unified" in self.domains
        for name, device in self.devices.items():
            if _GPU.fullmatch(name) is None:
                raise bad_value("devices are named gpu0, gpu1 and so on", at=f"devices.{name}")
            if device.domain != ("unified" if unified else name):
                detail = "a device names the domain of its own memory"
                raise bad_value(detail, at=f"devices.{name}.domain")
            if device.domain not in self.domains:
                detail = "a device names a domain that is not stated"
                raise bad_value(detail, at=f"devices.{name}.domain")
        for name, domain in self.domains.items():
            if domain.device is not None and self.devices and domain.device not in self.devices:
                detail = "a domain names a device that devices does not have"
                raise bad_value(detail, at=f"domains.{name}.device")


def _proper_name(domain: Domain) -> str | None:
    if domain.memory == "device":
        device = domain.device or ""
        return device if _GPU.fullmatch(device) else None
    return "unified" if domain.memory == "unified" else "system"


class Ingress(Closed):
    """Where the server reaches this machine's engines."""

    transport: Literal["mutual_tls", "trusted_private_link"] = "mutual_tls"
    address: str | None = None
    bind: str = "0.0.0.0:8444"

    _bind = field_validator("bind")(check_public)

    @field_validator("address")
    @classmethod
    def _address(cls, value: str | None) -> str | None:
        if value is not None:
            split_named(value)
        return value

    @model_validator(mode="after")
    def _plain_only_where_private(self) -> Self:
        if self.transport == "mutual_tls":
            return self
        for stated in (self.bind, self.address):
            if stated is not None and not is_private(stated):
                raise bad_value(
                    "trusted_private_link is plain HTTP: bind and address are IP addresses of "
                    "loopback, a private network or an overlay (100.64.0.0/10); use mutual_tls "
                    "elsewhere"
                )
        return self


def split_named(value: str) -> tuple[str, int]:
    """Host and port of ``gpu-box:8444``, ``10.0.0.5:8444`` or ``[fd00::5]:8444``.

    Raises:
        PydanticCustomError: not a name or an address with a port above 0.
    """
    host, _, port = value.rpartition(":")
    is_port = port.isascii() and port.isdecimal() and 0 < int(port) <= 65535
    if is_port and not host.startswith("[") and all(map(_LABEL.fullmatch, host.split("."))):
        return host, int(port)
    try:
        address, number = split_address(value)
        if number == 0 or ipaddress.ip_address(address).is_multicast:
            raise ValueError
    except ValueError:
        raise bad_value("expected <name or address>:<port>, as gpu-box:8444") from None
    return address, number


def is_private(value: str) -> bool:
    """Whether an address with its port is one that plain HTTP may be spoken on."""
    try:
        host = ipaddress.ip_address(split_named(value)[0])
    except ValueError:
        return False
    return any(host in network for network in _PRIVATE)


class HostListener(Closed):
    bind: Name
    authentication: Name | None = None


class HostDocument(Closed):
    schema_version: SchemaVersion
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
    load_report_interval: Annotated[Duration, Field(ge=REPORT_S_MIN, le=REPORT_S_MAX)] = (
        text_default("1s")
    )
    shutdown: Shutdown = Shutdown()
    listeners: dict[str, HostListener] = Field(default_factory=dict)
    runtime_profiles: dict[str, RuntimeProfile] = Field(default_factory=dict)
    resource_policy: HostPolicy = HostPolicy()

    @field_validator("name")
    @classmethod
    def _plain(cls, value: str) -> str:
        if not is_host_name(value):
            raise bad_value("a host's name has 1 to 128 letters and digits, and . _ - inside")
        return value

    @field_validator("local_engine")
    @classmethod
    def _no_cache(cls, value: LocalEngine) -> LocalEngine:
        if value.kv_cache is not None:
            raise bad_value("kv_cache is a setting of standalone only", at="kv_cache")
        return value

    @field_validator("runtime_profiles")
    @classmethod
    def _own_names(cls, value: dict[str, RuntimeProfile]) -> dict[str, RuntimeProfile]:
        if any(name.startswith(RESERVED_PREFIX) for name in value):
            raise bad_value("names that begin with local are those of local_engine")
        for name in value:
            why = refused_name(name)
            if why is not None:
                raise bad_value(why, at=name)
        return value
