"""The standalone role: from its settings to its exit status."""

from __future__ import annotations

import contextlib
import logging
import os
import socket
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import attrs
import trio

from capyctl import __version__
from capyctl.api.app import ManagementApp, make_app
from capyctl.api.serve import open_loopback, serve_management
from capyctl.config.credentials import Credentials, ensure_credentials
from capyctl.config.problems import InvalidDocument
from capyctl.config.role_document import find_state_root, generate_document
from capyctl.config.role_settings import Address
from capyctl.config.settings import STANDALONE, StandaloneSettings, load_standalone
from capyctl.control.surroundings import tell_now
from capyctl.daemon.assemble import Daemon, open_daemon
from capyctl.daemon.clock import SystemClock
from capyctl.daemon.control_socket import NAME as SOCKET_NAME
from capyctl.daemon.control_socket import ControlSocket
from capyctl.daemon.machine import OwnMachine, own_machine, simulation_text
from capyctl.daemon.root import StateRootBusy, held_root, owner_folder, write_owner_file
from capyctl.daemon.shutdown import SIGNALS, drain, wait_for_stop
from capyctl.dataplane.listener import bind, serve
from capyctl.dataplane.plane import Plane
from capyctl.dataplane.records import RequestRecord
from capyctl.domain.ids import DeploymentId, InstanceId
from capyctl.engines.runtime_dir import ensure_runtime
from capyctl.launch.addresses import ephemeral_overlap
from capyctl.launch.orphans import reap_orphans
from capyctl.messages.deployment import DemandArose
from capyctl.messages.instance import LeaseUnproven
from capyctl.store.errors import StoreFromNewerVersion, StoreUnusable
from capyctl.telemetry.log import Level, Log

EXIT_OK = 0
EXIT_CONFIG = 2
EXIT_UNSUPPORTED = 5
EXIT_INTERNAL = 13


def run_standalone(
    flags: Mapping[str, str],
    sets: Sequence[str] = (),
    simulate: str | None = None,
    log_format: str | None = None,
) -> int:
    """Serve until a signal; the exit status.

    ``flags``: named ones that were given, with their dashes; ``simulate``: the text or file
    of ``--simulate``, None for the real machine; ``log_format``: ``text``, ``json`` or None
    for text on a terminal.
    """
    as_json = None if log_format is None else log_format == "json"
    clock = SystemClock()
    log = Log(sys.stderr, role="standalone", clock_wall_ms=clock.wall_ms, as_json=as_json)
    try:
        settings = _settings(flags, sets)
        with held_root(settings.state_root):
            for repaired in ensure_runtime(settings.state_root).warnings:
                log.warning("runtime_repaired", message=repaired)
            credentials = ensure_credentials(settings.state_root)
            stated = None if simulate is None else simulation_text(simulate)
            machine = own_machine(settings, stated, log.warning)
            trio.run(_serve, settings, credentials, machine, log)
    except (InvalidDocument, StateRootBusy) as problem:
        return _refused(log, str(problem), EXIT_CONFIG)
    except StoreFromNewerVersion as problem:
        return _refused(log, str(problem), EXIT_UNSUPPORTED)
    except (StoreUnusable, ValueError) as problem:
        return _refused(log, str(problem), EXIT_CONFIG)
    except OSError as problem:
        return _refused(log, _os_problem(problem), EXIT_INTERNAL)
    return EXIT_OK


def _refused(log: Log, message: str, status: int) -> int:
    log.error("start_refused", message=message)
    return status


def _os_problem(problem: OSError) -> str:
    where = f"{problem.filename}: " if problem.filename else ""
    return f"{where}{problem.strerror or problem}"


@contextlib.contextmanager
def _naming(address: Address, flag: str) -> Iterator[None]:
    """Give a listener's failure its address, which the system's message lacks."""
    try:
        yield
    except OSError as problem:
        where = f"cannot listen on {address.host}:{address.port} ({flag})"
        raise OSError(problem.errno, problem.strerror or str(problem), where) from problem


def _settings(flags: Mapping[str, str], sets: Sequence[str]) -> StandaloneSettings:
    env = os.environ
    stated = flags.get("--config") or env.get("CAPYCTL_CONFIG")
    config_path = Path(stated).absolute() if stated else None
    root = find_state_root(flags, env, config_path)
    settings = load_standalone(root, config_path=config_path, flags=flags, env=env, sets=sets)
    if config_path is None and not settings.document_path.exists():
        owner_folder(root)
        generate_document(STANDALONE, root)
    return settings


async def _serve(
    settings: StandaloneSettings, credentials: Credentials, machine: OwnMachine, log: Log
) -> None:
    logging.basicConfig(level=logging.WARNING, format="%(message)s")
    # A start that fails between here and serving closes what it has bound.
    with contextlib.ExitStack() as bound:
        with _naming(settings.inference, "--listen"):
            inference = bind(settings.inference.host, settings.inference.port)
        bound.enter_context(inference)
        with _naming(settings.management, "--management-listen"):
            listeners = await open_loopback(settings.management.host, settings.management.port)
        for listener in listeners:
            bound.callback(listener.socket.close)
        await _serve_on(inference, listeners, settings, credentials, machine, log)


async def _serve_on(
    inference: socket.socket,
    listeners: list[trio.SocketListener],
    settings: StandaloneSettings,
    credentials: Credentials,
    machine: OwnMachine,
    log: Log,
) -> None:
    """Until a signal; both listeners are closed then."""
    with trio.open_signal_receiver(*SIGNALS) as signals:
        async with open_daemon(settings, machine, log) as daemon:
            plane = _plane(daemon, credentials, log)
            shutdown = trio.Event()
            app = make_app(
                daemon.management,
                token=credentials.admin_token,
                clock=daemon.world.clock,
                inference_key=credentials.api_key,
                model_sources=daemon.management.referenced_sources,
            )
            async with trio.open_nursery() as nursery:
                served = trio.Event()
                nursery.start_soon(_serve_app, app, listeners, shutdown, served)
                host, port = await nursery.start(serve, inference, plane)
                await nursery.start(_control_socket(daemon, log).serve)
                nursery.start_soon(reap_orphans)
                address = _record_addresses(settings, listeners, f"{_shown(host)}:{port}")
                _banner(daemon, f"{_shown(host)}:{port}", address, log)
                name = await wait_for_stop(signals)
                log.event("stopping", signal=name)
                await drain(plane, signals, drain_s=settings.shutdown_drain_s, log=log.event)
                shutdown.set()
                with trio.move_on_after(app.limits.graceful_s + 1.0):
                    await served.wait()
                nursery.cancel_scope.cancel()
        await machine.processes.aclose()
    log.event("stopped", engines="left running")


async def _serve_app(
    app: ManagementApp,
    listeners: list[trio.SocketListener],
    shutdown: trio.Event,
    served: trio.Event,
) -> None:
    try:
        await serve_management(app, listeners, shutdown=shutdown)
    finally:
        served.set()


def _plane(daemon: Daemon, credentials: Credentials, log: Log) -> Plane:
    directory = daemon.world.directory
    settings = daemon.settings

    def nudge(deployment: DeploymentId) -> None:
        ref = directory.deployment_refs.get(deployment)
        if ref is not None:
            tell_now(ref, DemandArose())

    def unproven(instance: InstanceId, generation: int, why: str) -> None:
        ref = directory.instance_refs.get(instance)
        if ref is not None:
            tell_now(ref, LeaseUnproven(generation=generation, why=why))

    def on_request(record: RequestRecord) -> None:
        log.event("request", level=Level.INFO, **_request_fields(record))

    def on_bug(error: Exception) -> None:
        log.error("request_bug", problem=repr(error))

    return Plane(
        routes=daemon.routing.table,
        nudge=nudge,
        unproven=unproven,
        on_request=on_request,
        on_bug=on_bug,
        api_key=credentials.api_key.encode() if settings.inference_key_required else None,
        request_metrics=settings.request_metrics,
        timing_header=settings.timing_header,
    )


def _request_fields(record: RequestRecord) -> dict[str, object]:
    fields: dict[str, object] = {
        "request_id": record.request_id,
        "client_request_id": record.client_request_id,
        "method": record.method,
        "path": record.path,
        "status": record.status,
        "outcome": record.outcome.value,
        "code": record.code,
        "model": record.model,
        "instance": None if record.instance is None else str(record.instance),
        "waited_ms": round(record.waited_s * 1000, 1),
        "first_output_ms": (
            None if record.first_output_s is None else round(record.first_output_s * 1000, 1)
        ),
        "duration_ms": round(record.duration_s * 1000, 1),
        "completion_tokens": record.completion_tokens,
    }
    return {name: value for name, value in fields.items() if value is not None}


def _control_socket(daemon: Daemon, log: Log) -> ControlSocket:
    return ControlSocket(
        path=daemon.settings.state_root / SOCKET_NAME,
        publishing=daemon.publishing,
        directory=daemon.world.directory,
        log=log.event,
    )


def _record_addresses(
    settings: StandaloneSettings, listeners: list[trio.SocketListener], inference: str
) -> str:
    """Write where both listeners are; the management address."""
    host, port = listeners[0].socket.getsockname()[:2]
    address = f"{_shown(host)}:{port}"
    run = owner_folder(settings.state_root / "run")
    write_owner_file(run / "management-address", address + "\n")
    suffix = "" if settings.inference_key_required else " (no key)"
    write_owner_file(run / "inference-address", inference + suffix + "\n")
    return address


def _shown(host: str) -> str:
    return f"[{host}]" if ":" in host else host


@attrs.frozen(kw_only=True)
class Banner:
    """What a started role says of itself."""

    inference: str
    management: str
    engines: str
    state: str
    credentials: str


def _banner(daemon: Daemon, inference: str, management: str, log: Log) -> None:
    settings = daemon.settings
    key = "API key required" if settings.inference_key_required else "no key"
    profiles = ", ".join(p.name for p in daemon.publishing.profiles)
    banner = Banner(
        inference=f"{inference} ({key})",
        management=management,
        engines=profiles or "none: register one with `capyctl engine add`",
        state=str(settings.state_root),
        credentials=str(settings.state_root / "identity" / "credentials"),
    )
    if sys.stderr.isatty():
        lines = [f"capyctl {__version__} standalone ready"]
        lines += [f"  {k.capitalize():<12} {v}" for k, v in attrs.asdict(banner).items()]
        print("\n".join(lines), file=sys.stderr)
    else:
        fields = attrs.asdict(banner)
        # Under its own name the log would take the path for a credential.
        fields["key_file"] = fields.pop("credentials")
        log.event("ready", version=__version__, **fields)
    overlap = ephemeral_overlap(*settings.engine_ports)
    if overlap is not None:
        log.warning("engine_ports_ephemeral", message=overlap)
    if not settings.inference_key_required and not settings.inference.host.startswith("127."):
        log.warning(
            "inference_unauthenticated",
            address=inference,
            message="anyone who reaches this address can use every model",
        )
