"""What a server role runs with."""

from __future__ import annotations

from pathlib import Path

import attrs

from capyctl.config.blocks import split_address
from capyctl.config.named_settings import SERVER_SETTINGS
from capyctl.config.role_document import (
    Given,
    Laid,
    Role,
    check_folder,
    read_role,
    unsupported_at,
)
from capyctl.config.role_settings import Address, ServingSettings, address_of, needs_key
from capyctl.config.server_document import Enrollment, ServerDocument, ServerListeners, split_url
from capyctl.config.settings import hostname

SERVER = Role(
    kind="server",
    model=ServerDocument,
    named=SERVER_SETTINGS,
    generated="""\
# Server role of capyctl. Every setting has a default; what is stated here wins over it.
schema_version: 1
kind: server
""",
)


@attrs.frozen(kw_only=True)
class ServerSettings(ServingSettings):
    """Everything a server role is told, checked."""

    name: str
    bootstrap: Address
    control: Address
    bootstrap_dialled: Address
    """What hosts dial to enrol; a name, or an address."""
    control_dialled: Address
    suspend_s: float
    """Silence after which nothing more is dispatched to a host."""
    lost_s: float
    """Silence after which what runs there is not known."""
    buffered_bytes_max: int | None
    """None: what the hosts say."""


def load_server(state_root: Path, given: Given) -> ServerSettings:
    """As `read_role`, of a server.

    Raises:
        InvalidDocument: also a directory that cannot be chosen, and listeners on every address
            while `enrollment` does not say what hosts dial.
    """
    laid = read_role(SERVER, state_root, given)
    parsed = laid.parsed
    check_folder("state_dir", parsed.state_dir, state_root, SERVER.kind)
    check_folder("identity_dir", parsed.identity_dir, state_root / "identity", SERVER.kind)
    _check_ports(parsed.listeners)
    return _settings(laid, state_root)


def _settings(laid: Laid[ServerDocument], state_root: Path) -> ServerSettings:
    parsed, listeners = laid.parsed, laid.parsed.listeners
    enrollment = parsed.enrollment
    return ServerSettings(
        state_root=state_root,
        document_path=laid.path,
        shutdown_drain_s=parsed.shutdown.drain_timeout,
        settings=laid.settings,
        inference=address_of(listeners.inference.bind),
        inference_key_required=needs_key(listeners.inference),
        allowed_origins=tuple(listeners.inference.allowed_origins),
        management=address_of(listeners.management.bind),
        switching_drain_s=parsed.switching.drain_timeout,
        ready_idle_s=parsed.lifecycle_defaults.ready_idle_timeout,
        parked_idle_s=parsed.lifecycle_defaults.parked_idle_timeout,
        stall_s=parsed.groups.stall_timeout,
        timing_header=parsed.observability.timing_header,
        request_metrics=parsed.observability.request_metrics,
        name=parsed.name or hostname(),
        bootstrap=address_of(listeners.bootstrap.bind),
        control=address_of(listeners.control.bind),
        bootstrap_dialled=_dialled(enrollment, "bootstrap", listeners.bootstrap.bind),
        control_dialled=_dialled(enrollment, "control", listeners.control.bind),
        suspend_s=parsed.control.heartbeat_suspend_after,
        lost_s=parsed.control.heartbeat_lost_after,
        buffered_bytes_max=parsed.scheduler.queue.max_buffered_bytes_total,
    )


def _dialled(enrollment: Enrollment, which: str, bind: str) -> Address:
    stated: str | None = getattr(enrollment, f"{which}_address")
    if stated is not None:
        host, port = split_url(stated)
        return Address(host=host, port=port)
    host, port = split_address(bind)
    if host in ("0.0.0.0", "::"):
        detail = (
            f"state the address that hosts dial, as https://server.example:{port}: "
            f"listeners.{which}.bind is on every address"
        )
        raise unsupported_at(f"enrollment.{which}_address", detail, SERVER.kind)
    return Address(host=host, port=port)


def _check_ports(listeners: ServerListeners) -> None:
    """Two listeners cannot have one address."""
    seen: dict[str, str] = {}
    for name in ("management", "inference", "bootstrap", "control"):
        bind: str = getattr(listeners, name).bind
        other = seen.setdefault(bind, name)
        if other != name and not bind.endswith(":0"):
            detail = f"the same address as listeners.{other}.bind; choose another port"
            raise unsupported_at(f"listeners.{name}.bind", detail, SERVER.kind)
