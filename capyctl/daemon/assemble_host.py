"""Puts a host role together: its machine, its side of the link, and its ingress."""

from __future__ import annotations

import secrets
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from typing import cast

import attrs
import trio

from capyctl import __version__
from capyctl.config.host_settings import HostSettings
from capyctl.config.server_document import split_url
from capyctl.daemon.clock import SystemClock, UlidIds
from capyctl.daemon.control_socket import NAME as SOCKET_NAME
from capyctl.daemon.control_socket import ControlSocket
from capyctl.daemon.descriptors import fitting
from capyctl.daemon.machine import OwnMachine
from capyctl.daemon.publication import host_publication
from capyctl.daemon.publishing import Publishing
from capyctl.daemon.role_actions import refused, retiring
from capyctl.dataplane.ingress import INGRESS_LIMITS, Ingress
from capyctl.dataplane.tls import ListenerTls
from capyctl.launch.strays import LaunchStrays
from capyctl.link.contexts import server_tls_name
from capyctl.link.dial import Dial, Dialler
from capyctl.link.identity import HostTls
from capyctl.link.peers import Tls, peer_server_id
from capyctl.link.renewal import HostRenewal
from capyctl.link.service import HostService, open_host_service
from capyctl.link.websocket import websocket_dial
from capyctl.telemetry.log import Log
from capyctl.wire.link import Refused

STRAY_GRACE_S = 10.0
STRAY_PROOF_S = 5.0
GENERATION_BITS = 48
"""Of the first opening: chance keeps those of two processes apart."""


@attrs.define(eq=False)
class LinkState:
    """Why there is no session with the server; None while there is one."""

    why_down: str | None = "not dialled yet"


@attrs.frozen(kw_only=True, eq=False)
class HostRole:
    """A running host, and what serves from it."""

    settings: HostSettings
    machine: OwnMachine
    tls: HostTls
    publishing: Publishing
    service: HostService
    ingress: Ingress
    log: Log
    link: LinkState = attrs.field(factory=LinkState)

    async def keep_linked(self) -> Refused:
        """As `dial.Dialler.run`, with this host's own dial."""
        dialler = Dialler(
            service=self.service,
            dial=self._dial(),
            version=__version__,
            chance=lambda: secrets.randbelow(1 << 20) / (1 << 20),
            log=self.log.event,
            changed=self._linked,
            report_s=self.settings.report_s,
            renewing=HostRenewal(tls=self.tls, wall_ms=SystemClock().wall_ms, log=self.log.event),
        )
        return await dialler.run()

    def control_socket(self) -> ControlSocket:
        return ControlSocket(
            path=self.settings.state_root / SOCKET_NAME,
            host=self.settings.host,
            publishing=self.publishing,
            users=self._users,
            log=self.log.event,
            published=self._publish,
            link=lambda: self.link.why_down or "agreed",
            actions={
                **retiring(self.publishing, self._users, self._publish),
                "prune_sources": refused(
                    "unsupported", "a host does not know what is deployed; see prune sources"
                ),
            },
        )

    def _dial(self) -> Dial:
        identity = self.tls.identity
        address, port = split_url(identity.control_address)
        return websocket_dial(
            address,
            port,
            lambda: self.tls.contexts.link,
            server_name=server_tls_name(identity.server_id),
        )

    def _linked(self, why: str | None) -> None:
        self.link.why_down = why
        if why is None:
            self.log.event("link_agreed", server=self.tls.identity.control_address)

    def _publish(self) -> None:
        self.service.publish(host_publication(self.settings, self.machine, self.publishing))

    def _users(self, profile: str) -> list[str]:
        """By the names that their engines serve; a host knows no others."""
        records = self.service.records
        return sorted({one.served_name for one in records if one.profile == profile})


@asynccontextmanager
async def open_host(
    settings: HostSettings, tls: HostTls, machine: OwnMachine, log: Log
) -> AsyncIterator[HostRole]:
    """Everything but the listeners and the link, for the length of the block. Engines stay."""
    publishing = Publishing(settings, machine.simulated_profiles, machine.retirements)
    ingress = Ingress(
        tls=None if settings.ingress_plain else _listener_tls(tls),
        on_bug=lambda error: log.error("ingress_bug", problem=repr(error)),
        limits=fitting(INGRESS_LIMITS),
    )
    end = partial(machine.processes.end, grace_s=STRAY_GRACE_S, proof_s=STRAY_PROOF_S)
    opening = open_host_service(
        machine.host,
        strays=LaunchStrays(state_dir=settings.state_root, end=end),
        publication=host_publication(settings, machine, publishing),
        openings=ingress.launches,
        epoch=UlidIds().ulid(),
        first_generation=secrets.randbits(GENERATION_BITS),
        log=log.event,
    )
    async with opening as service:
        yield HostRole(
            settings=settings,
            machine=machine,
            tls=tls,
            publishing=publishing,
            service=service,
            ingress=ingress,
            log=log,
        )


def _listener_tls(tls: HostTls) -> ListenerTls:
    def accepts(session: ssl.SSLObject) -> bool:
        # The stub's overloads hide that it is one of `peers.Tls`.
        return peer_server_id(cast("Tls", session)) == tls.identity.server_id

    return ListenerTls(context=lambda: tls.contexts.ingress, accepts=accepts)


async def warn_of_certificate(role: HostRole, every_s: float = 3600.0) -> None:
    """Say in the log when the certificate will not be taken; for ever."""
    clock = SystemClock()
    while True:
        why = role.tls.identity.why_not_current(clock.wall_ms())
        if why is not None:
            role.log.warning("certificate_not_current", message=why)
        await trio.sleep(every_s)
