"""The host role: from its settings to its exit status. Engines outlive it."""

from __future__ import annotations

import socket
from collections.abc import Mapping, Sequence

import trio

from capyctl.config.credentials import check_state_root
from capyctl.config.host_settings import HOST, HostSettings, load_host
from capyctl.config.owner_files import write_owner_file
from capyctl.daemon.assemble_host import HostRole, open_host, warn_of_certificate
from capyctl.daemon.banner import NO_ENGINES, show_banner
from capyctl.daemon.host_policy import limited
from capyctl.daemon.machine import OwnMachine, own_machine, simulation_text
from capyctl.daemon.naming import Listening, naming
from capyctl.daemon.places import check_places
from capyctl.daemon.root import owner_folder
from capyctl.daemon.running import RoleRefused, check_root_is_free, given_by, held_role, run_role
from capyctl.daemon.shutdown import SIGNALS, drain, wait_for_stop
from capyctl.dataplane.listener import bind
from capyctl.engines.runtime_dir import ensure_runtime
from capyctl.launch.addresses import ephemeral_overlap
from capyctl.launch.orphans import reap_orphans
from capyctl.link.identity import HostIdentity, HostTls, IdentityUnusable, read_identity
from capyctl.link.peers import how_to_return
from capyctl.telemetry.log import Log
from capyctl.wire.link import Refused


def run_host(
    flags: Mapping[str, str],
    sets: Sequence[str] = (),
    simulate: str | None = None,
    log_format: str | None = None,
) -> int:
    """Run engines for a server until a signal; the exit status. As `serve.run_standalone`.

    14 when the server has revoked this host: a restart would not help.
    """

    def run(log: Log) -> None:
        root, given = given_by(flags, sets)
        check_root_is_free(HOST.kind, root)
        settings = load_host(root, given)
        check_state_root(root)
        identity = _identity(settings)
        with held_role(HOST.kind, settings, given):
            write_owner_file(root / "run" / "server-address", identity.control_address + "\n")
            for repaired in ensure_runtime(root).warnings:
                log.warning("runtime_repaired", message=repaired)
            stated = None if simulate is None else simulation_text(simulate)
            check_places(settings, HOST.kind, simulated=stated is not None, log=log.warning)
            machine = own_machine(
                settings,
                stated,
                log.warning,
                host_id=identity.host,
                limit=lambda shape: limited(shape, settings),
                raw_logs="--debug-engine-logs" in flags,
            )
            trio.run(_serve, settings, HostTls(identity), machine, log)

    return run_role(HOST.kind, log_format, run)


def _identity(settings: HostSettings) -> HostIdentity:
    """Who this machine is to its server. Raises RoleRefused."""
    try:
        identity = read_identity(settings.state_root / "identity")
    except IdentityUnusable as problem:
        raise RoleRefused("identity_unusable", str(problem)) from problem
    if identity is None:
        raise RoleRefused(
            "not_joined",
            f"this machine has joined no server: on the server `capyctl invite host {settings.host}"
            " --output F`, here `capyctl join host --join-file F`",
        )
    if identity.name != settings.host:
        raise RoleRefused(
            "invalid_config",
            f"name: the document says {settings.host}, and this machine joined its server as "
            f"{identity.name}: a host keeps its name",
        )
    return identity


async def _serve(settings: HostSettings, tls: HostTls, machine: OwnMachine, log: Log) -> None:
    where = settings.ingress_bind
    with naming(where, Listening(setting="ingress.bind")):
        listening = bind(where.host, where.port)
    with listening, trio.open_signal_receiver(*SIGNALS) as signals:
        async with open_host(settings, tls, machine, log) as role:
            ended = _Ended()
            async with trio.open_nursery() as nursery:
                await _start(role, listening, nursery)
                nursery.start_soon(ended.link, role, nursery.cancel_scope)
                _banner(role, log)
                name = await wait_for_stop(signals)
                log.event("stopping", signal=name)
                drain_s = settings.shutdown_drain_s
                await drain(role.ingress, signals, drain_s=drain_s, log=log.event)
                nursery.cancel_scope.cancel()
        await machine.processes.aclose()
    if ended.refused is not None:
        raise ended.refused
    log.event("stopped", engines="left running")


async def _start(role: HostRole, listening: socket.socket, nursery: trio.Nursery) -> None:
    await nursery.start(role.ingress.serve, listening)
    await nursery.start(role.control_socket().serve)
    nursery.start_soon(reap_orphans)
    nursery.start_soon(warn_of_certificate, role)


class _Ended:
    """Whether the server has sent this host away for good."""

    def __init__(self) -> None:
        self.refused: RoleRefused | None = None

    async def link(self, role: HostRole, scope: trio.CancelScope) -> None:
        refused = await role.keep_linked()
        self.refused = RoleRefused(refused.code, sent_away(refused, role.tls.identity.name))
        role.ingress.close_all()
        scope.cancel()


def sent_away(refused: Refused, name: str) -> str:
    """The last words of a host that its server does not take any more, with what to do.

    A server that refuses in the handshake has no words of its own.
    """
    again = how_to_return(name)
    what = "" if again in refused.message else f"; to take it back: {again}"
    return f"{refused.message}{what}. Engines that run here go on"


def _banner(role: HostRole, log: Log) -> None:
    settings, identity = role.settings, role.tls.identity
    profiles = ", ".join(p.name for p in role.publishing.profiles)
    how = "plain HTTP" if settings.ingress_plain else "mutual TLS"
    lines = {
        "engines": profiles or NO_ENGINES,
        "ingress": f"{settings.ingress_bind} ({how}), reached at {settings.ingress}",
        "host_id": str(identity.host),
        "server": identity.control_address,
        "state": str(settings.state_root),
        "credentials": str(owner_folder(settings.state_root / "identity") / "host.pem"),
    }
    show_banner(HOST.kind, lines, log)
    overlap = ephemeral_overlap(*settings.engine_ports)
    if overlap is not None:
        log.warning("engine_ports_ephemeral", message=overlap)
