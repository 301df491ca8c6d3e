"""Blocks that the documents of several roles have in common."""

from __future__ import annotations

import ipaddress
import re
from typing import Annotated, Literal, Self

from pydantic import BeforeValidator, Field, field_validator, model_validator

from capyctl.config.fields import (
    Closed,
    Count,
    Duration,
    Name,
    PositiveSize,
    Size,
    Stated,
    bad_kind,
    bad_value,
    text_default,
)
from capyctl.domain.units import parse_bytes

_ADDRESS = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[^:\[\]]+):([0-9]{1,5})")
_ORIGIN = re.compile(r"https?://(\[[0-9a-f:.]+\]|[a-z0-9.-]+)(:[0-9]{1,5})?")
_PERCENT = re.compile(r"(0|[1-9][0-9]{0,4})%")
_GROWTH_MAX_PERCENT = 10_000


def split_address(value: str) -> tuple[str, int]:
    """Host and port of ``127.0.0.1:7443`` or ``[::1]:7443``.

    Raises:
        ValueError: not an address with a port.
    """
    found = _ADDRESS.fullmatch(value)
    if found is None or int(found[2]) > 65535:
        raise ValueError("expected <address>:<port>")
    host = found[1].strip("[]")
    return str(ipaddress.ip_address("127.0.0.1" if host == "localhost" else host)), int(found[2])


def check_address(value: str) -> str:
    """The address as it is. Raises PydanticCustomError."""
    try:
        split_address(value)
    except ValueError:
        raise bad_value("expected an IP address and a port, for example 127.0.0.1:7443") from None
    return value


def check_loopback(value: str) -> str:
    """An address that only this machine reaches. Raises PydanticCustomError."""
    host, _ = split_address(check_address(value))
    if not ipaddress.ip_address(host).is_loopback:
        raise bad_value("management is served on loopback addresses only")
    return value


def check_public(value: str) -> str:
    """An address to listen on, anywhere. Raises PydanticCustomError."""
    host, port = split_address(check_address(value))
    if ipaddress.ip_address(host).is_multicast or port == 0:
        raise bad_value("expected an address to listen on and a port above 0")
    return value


def _amount(value: object) -> object:
    """``auto``, a size, or a whole percentage of the machine's memory."""
    if isinstance(value, str):
        percent = _PERCENT.fullmatch(value)
        if value == "auto" or (percent is not None and int(percent[1]) <= 100):
            return value
        try:
            parse_bytes(value)
        except ValueError:
            pass
        else:
            return value
    raise bad_kind("expected auto, a size such as 96GiB, or a whole percentage such as 50%")


def _growth(value: object) -> object:
    """``auto``, ``off``, ``0%`` to ``10000%``, or a size."""
    if isinstance(value, str):
        percent = _PERCENT.fullmatch(value)
        if value in ("auto", "off") or (percent and int(percent[1]) <= _GROWTH_MAX_PERCENT):
            return value
        try:
            parse_bytes(value)
        except ValueError:
            pass
        else:
            return value
    raise bad_kind("expected auto, off, a percentage up to 10000%, or a size")


def check_origins(origins: list[str]) -> list[str]:
    """As browsers send them, or ``*`` alone."""
    if origins != ["*"] and not all(_ORIGIN.fullmatch(origin) for origin in origins):
        raise bad_value("expected origins such as https://chat.example.org, or * alone")
    return origins


Amount = Annotated[str, BeforeValidator(_amount)]
Growth = Annotated[str, BeforeValidator(_growth)]
Drain = Annotated[Duration, Field(le=600)]


class InferenceListener(Closed):
    bind: str = "0.0.0.0:8443"
    authentication: Literal["api_key", "none"] = "api_key"
    allowed_origins: list[str] = Field(default_factory=list, max_length=100)

    _bind = field_validator("bind")(check_public)
    _origins = field_validator("allowed_origins")(check_origins)


class Switching(Closed):
    drain_timeout: Annotated[Duration, Field(ge=1, le=600)] = text_default("30s")


class LifecycleDefaults(Closed):
    ready_idle_timeout: Annotated[Duration, Field(gt=0)] | None = None
    parked_idle_timeout: Annotated[Duration, Field(gt=0)] | None = None


class Observability(Closed):
    timing_header: bool = False
    request_metrics: bool = False


class ServerGroups(Closed):
    stall_timeout: Annotated[Duration, Field(ge=1, le=3600)] = text_default("120s")


class ModelStore(Closed):
    path: str = "~/models"

    @field_validator("path")
    @classmethod
    def _path(cls, value: str) -> str:
        if not value.startswith(("/", "~/")) or "\0" in value:
            raise bad_value("expected an absolute path, or one that begins with ~/")
        return value


class ModelSources(Closed):
    huggingface: Literal["allowed", "disabled", "denied"] = "allowed"
    http: Literal["allowed", "disabled", "denied"] = "allowed"
    plain_http: Literal["allowed", "denied"] = "denied"
    max_bytes: PositiveSize = text_default("500GiB")
    path: Stated | None = None
    allowed_hosts: list[Name] | None = None
    huggingface_endpoint: str = "https://huggingface.co"
    huggingface_token_file: str | None = None

    @field_validator("huggingface_token_file")
    @classmethod
    def _token_file(cls, value: str | None) -> str | None:
        if value is not None and (not value.startswith("/") or "\0" in value):
            raise bad_value("expected an absolute path")
        return value

    @field_validator("huggingface_endpoint")
    @classmethod
    def _endpoint(cls, value: str) -> str:
        if not value.startswith(("https://", "http://127.", "http://localhost", "http://[::1]")):
            raise bad_value("expected an https:// address; http:// is for loopback only")
        return value


class Checkpoints(Closed):
    trust_declared_digest: bool = False


class HostLifecycle(Closed):
    activation: Literal["on_demand", "explicit"] = "on_demand"


Port = Annotated[int, Field(ge=1024, le=65535)]


class PortRange(Closed):
    start: Port
    end: Port

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        if self.start > self.end:
            raise bad_value("start is above end")
        return self


class EnginePorts(PortRange):
    start: Port = 8100
    end: Port = 8199


class RendezvousPorts(PortRange):
    start: Port = 25000
    end: Port = 25099


class Queue(Closed):
    max_running_per_deployment: Count = 32
    admission_window: Annotated[Duration, Field(ge=0.001, le=30)] = text_default("2s")
    max_pending_per_deployment: int = Field(default=64, ge=0, le=4096)
    max_pending_total: int = Field(default=256, ge=0, le=65536)
    max_buffered_bytes_total: Size = text_default("64MiB")
    request_deadline: Annotated[Duration, Field(ge=30, le=3600)] = text_default("1800s")
    stream_idle_timeout: Annotated[Duration, Field(ge=1, le=3600)] = text_default("120s")

    @model_validator(mode="after")
    def _window_within_deadline(self) -> Queue:
        if self.admission_window > self.request_deadline:
            raise bad_value("admission_window is longer than request_deadline")
        return self


class HostGroups(Closed):
    peer_address: str | None = None
    rendezvous_port_range: RendezvousPorts = RendezvousPorts()
    require_rdma: bool = False

    @field_validator("peer_address")
    @classmethod
    def _peer(cls, value: str | None) -> str | None:
        if value is None:
            return None
        try:
            address = ipaddress.ip_address(value)
        except ValueError:
            raise bad_value("expected an IP address without a port") from None
        if address.is_loopback or address.is_unspecified or address.is_multicast:
            raise bad_value("expected an address at which other machines reach this one")
        return value


class Shutdown(Closed):
    drain_timeout: Drain = text_default("30s")
