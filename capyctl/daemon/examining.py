"""Looks at a host machine without changing it: document, identity, server, machine and folders."""

from __future__ import annotations

import os
import socket
import ssl
from collections.abc import Iterator
from pathlib import Path

import attrs

from capyctl.config.credentials import check_state_root
from capyctl.config.host_settings import HostSettings, load_host
from capyctl.config.problems import InvalidDocument
from capyctl.config.role_document import Given
from capyctl.config.server_document import split_url
from capyctl.daemon.detecting import MachineUnusable, detected
from capyctl.daemon.host_policy import limited
from capyctl.domain.ids import HostId
from capyctl.domain.units import gib
from capyctl.ledger.limits import RamLimits
from capyctl.link.contexts import host_link_context, server_tls_name
from capyctl.link.identity import HostIdentity, IdentityUnusable, read_identity
from capyctl.link.peers import NOT_JOINED, is_foreign, why_refused

CONNECT_S_MAX = 5.0
_SIMULATED = "simulated"


@attrs.frozen(kw_only=True)
class Finding:
    """What one look showed; ``state`` is ``ok``, ``warning`` or ``failed``."""

    check: str
    state: str
    detail: str


def examine_host(state_root: Path, given: Given, *, now_ms: int) -> list[Finding]:
    """Every check, in the order in which they build on each other. Blocks; some seconds at most."""
    found: list[Finding] = []
    try:
        check_state_root(state_root)
        settings = load_host(state_root, given)
    except InvalidDocument as problem:
        return [Finding(check="document", state="failed", detail=str(problem))]
    found.append(Finding(check="document", state="ok", detail=str(settings.document_path)))
    found += _identity(settings, now_ms)
    found += _machine(settings)
    found += [_engines(settings), _models(settings), _ingress(settings)]
    return found


def _identity(settings: HostSettings, now_ms: int) -> Iterator[Finding]:
    try:
        identity = read_identity(settings.state_root / "identity")
    except IdentityUnusable as problem:
        yield Finding(check="identity", state="failed", detail=str(problem))
        return
    if identity is None:
        detail = "not joined: capyctl join host --join-file FILE"
        yield Finding(check="identity", state="failed", detail=detail)
        return
    if identity.name != settings.host:
        detail = f"the document's name is {settings.host}, and it joined as {identity.name}"
        yield Finding(check="identity", state="failed", detail=detail)
        return
    yield Finding(check="identity", state="ok", detail=f"{identity.name}, {identity.host}")
    why = identity.why_not_current(now_ms)
    left_days = (identity.shown.expires_at_ms - now_ms) // 86_400_000
    yield Finding(
        check="certificate",
        state="ok" if why is None else "failed",
        detail=why or f"good for {left_days} days by this machine's clock",
    )
    yield _server(identity)


def _server(identity: HostIdentity) -> Finding:
    """Whether the server of our join file answers, by TLS alone."""
    address, port = split_url(identity.control_address)
    name = server_tls_name(identity.server_id)
    try:
        context = host_link_context(identity.files)
        with (
            socket.create_connection((address, port), timeout=CONNECT_S_MAX) as raw,
            context.wrap_socket(raw, server_hostname=name) as tls,
        ):
            tls.settimeout(0.5)
            _read_alert(tls)
    except (OSError, ssl.SSLError) as problem:
        why = why_refused(problem) or str(problem)
        if is_foreign(problem):
            why = f"{why}; {NOT_JOINED}"
        return Finding(check="server", state="failed", detail=f"{identity.control_address}: {why}")
    return Finding(check="server", state="ok", detail=f"{identity.control_address} takes us in")


def _read_alert(tls: ssl.SSLSocket) -> None:
    """A server refuses a certificate after the handshake: with the first read, if at all."""
    try:
        tls.recv(1)
    except TimeoutError:
        return


def _machine(settings: HostSettings) -> Iterator[Finding]:
    if (settings.state_root / _SIMULATED).exists():
        detail = "a simulated one ran here; the real one was not looked at"
        yield Finding(check="machine", state="ok", detail=detail)
        return
    try:
        shape = limited(detected(HostId(settings.host), lambda _: RamLimits()).shape(), settings)
    except (MachineUnusable, ValueError) as problem:
        yield Finding(check="machine", state="failed", detail=str(problem))
        return
    memory = ", ".join(f"{one.name} {gib(one.total_bytes)}" for one in shape.domains)
    yield Finding(check="machine", state="ok", detail=memory)


def _engines(settings: HostSettings) -> Finding:
    names = [profile.name for profile in settings.profiles]
    missing = [
        f"{profile.name} ({profile.executable[0]})"
        for profile in settings.profiles
        if not os.access(profile.executable[0], os.X_OK)
    ]
    if missing:
        detail = f"cannot be run: {', '.join(missing)}"
        return Finding(check="engines", state="failed", detail=detail)
    if not names and (settings.state_root / _SIMULATED).exists():
        return Finding(check="engines", state="ok", detail="the simulated machine has its own")
    if not names:
        detail = "none is registered: capyctl engine add PATH"
        return Finding(check="engines", state="warning", detail=detail)
    return Finding(check="engines", state="ok", detail=", ".join(names))


def _models(settings: HostSettings) -> Finding:
    root = Path(settings.models_root)
    usable = root.is_dir() and os.access(root, os.R_OK | os.X_OK)
    state = "ok" if usable else "warning"
    detail = str(root) if usable else f"{root} is not there or cannot be read"
    return Finding(check="models", state=state, detail=detail)


def _ingress(settings: HostSettings) -> Finding:
    where = settings.ingress_bind
    family = socket.AF_INET6 if ":" in where.host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((where.host, where.port))
        except OSError as problem:
            if _listens(settings):
                return Finding(check="ingress", state="ok", detail=f"{where}, in use by the role")
            detail = f"{where}: {problem.strerror or problem}"
            return Finding(check="ingress", state="failed", detail=detail)
    return Finding(check="ingress", state="ok", detail=f"{where}, reached at {settings.ingress}")


def _listens(settings: HostSettings) -> bool:
    return (settings.state_root / "control.sock").exists()
