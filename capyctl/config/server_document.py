"""The document of a server: the endpoint, the management API and the deciding for all hosts."""

from __future__ import annotations

import re
from typing import Annotated, Literal, Self
from urllib.parse import urlsplit

from pydantic import Field, field_validator, model_validator

from capyctl.config.blocks import (
    InferenceListener,
    LifecycleDefaults,
    Observability,
    ServerGroups,
    Shutdown,
    Switching,
    check_loopback,
    check_public,
)
from capyctl.config.fields import (
    Closed,
    Duration,
    Name,
    SchemaVersion,
    Size,
    bad_value,
    text_default,
)

BOOTSTRAP = "127.0.0.1:7444"
CONTROL = "127.0.0.1:7445"
SUSPEND_S_MIN = 1.0
LOST_S_MAX = 3600.0
_LABEL = "[A-Za-z0-9]([A-Za-z0-9-]{0,61}[A-Za-z0-9])?"
_AUTHORITY = re.compile(rf"(\[[0-9A-Fa-f:.]+\]|{_LABEL}(\.{_LABEL})*\.?)(:[0-9]{{1,5}})?")
"""Names as they can be looked up: of others Python's own look-up raises UnicodeError."""


class ServerListener(Closed):
    bind: str = "127.0.0.1:7443"
    authentication: Literal["token"] = "token"

    _bind = field_validator("bind")(check_loopback)


class BootstrapListener(Closed):
    """Where hosts enrol."""

    bind: str = BOOTSTRAP
    authentication: Literal["server_tls"] = "server_tls"

    _bind = field_validator("bind")(check_public)


class ControlListener(Closed):
    """Where enrolled hosts keep their session."""

    bind: str = CONTROL
    authentication: Literal["mutual_tls"] = "mutual_tls"

    _bind = field_validator("bind")(check_public)


class ServerListeners(Closed):
    management: ServerListener = ServerListener()
    inference: InferenceListener = InferenceListener()
    bootstrap: BootstrapListener = BootstrapListener()
    control: ControlListener = ControlListener()


class Enrollment(Closed):
    """What hosts dial; it stands in every join file."""

    bootstrap_address: str | None = None
    control_address: str | None = None

    @field_validator("bootstrap_address", "control_address")
    @classmethod
    def _url(cls, value: str | None) -> str | None:
        if value is not None:
            split_url(value)
        return value

    @model_validator(mode="after")
    def _one_machine(self) -> Self:
        both = (self.bootstrap_address, self.control_address)
        stated = [one for one in both if one is not None]
        if len(stated) == 1:
            raise bad_value("state bootstrap_address and control_address, or neither")
        if len({split_url(one)[0] for one in stated}) > 1:
            raise bad_value(
                "bootstrap_address and control_address name different machines; one certificate "
                "stands for both"
            )
        return self


def split_url(value: str) -> tuple[str, int]:
    """Host and port of ``https://server.example:7444``; without a port it is 443.

    Raises:
        PydanticCustomError: anything else.
    """
    parts = urlsplit(value)
    plain = not (parts.path.strip("/") or parts.query or parts.fragment)
    if parts.scheme != "https" or not plain or not _AUTHORITY.fullmatch(parts.netloc):
        raise bad_value("expected https://<name or address>:<port>")
    try:
        port = parts.port
    except ValueError:
        port = 0
    if port == 0 or not parts.hostname:
        raise bad_value("expected https://<name or address>:<port>, with a port of 1 to 65535")
    return parts.hostname, 443 if port is None else port


class Control(Closed):
    heartbeat_suspend_after: Annotated[Duration, Field(ge=SUSPEND_S_MIN, le=LOST_S_MAX)] = (
        text_default("5s")
    )
    heartbeat_lost_after: Annotated[Duration, Field(ge=SUSPEND_S_MIN, le=LOST_S_MAX)] = (
        text_default("30s")
    )

    @model_validator(mode="after")
    def _in_order(self) -> Self:
        if self.heartbeat_lost_after <= self.heartbeat_suspend_after:
            raise bad_value("heartbeat_lost_after must be longer than heartbeat_suspend_after")
        return self


class SchedulerQueue(Closed):
    max_buffered_bytes_total: Size | None = None


class Scheduler(Closed):
    queue: SchedulerQueue = SchedulerQueue()


class ServerDocument(Closed):
    schema_version: SchemaVersion
    kind: Literal["server"]
    name: Name | None = None
    state_dir: str | None = None
    identity_dir: str | None = None
    listeners: ServerListeners = ServerListeners()
    enrollment: Enrollment = Enrollment()
    lifecycle_defaults: LifecycleDefaults = LifecycleDefaults()
    control: Control = Control()
    switching: Switching = Switching()
    shutdown: Shutdown = Shutdown()
    observability: Observability = Observability()
    groups: ServerGroups = ServerGroups()
    scheduler: Scheduler = Scheduler()
