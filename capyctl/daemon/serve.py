"""The standalone role: from its settings to its exit status."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial

import trio

from capyctl.config.credentials import Credentials, credentials_path, ensure_credentials
from capyctl.config.role_settings import Address
from capyctl.config.settings import STANDALONE, StandaloneSettings, load_standalone
from capyctl.daemon.assemble import StandaloneDaemon, open_daemon
from capyctl.daemon.banner import (
    NO_ENGINES,
    show_banner,
    shown_inference,
    warn_of_open_inference,
)
from capyctl.daemon.control_socket import NAME as SOCKET_NAME
from capyctl.daemon.control_socket import ControlSocket, users_in
from capyctl.daemon.listening import bound
from capyctl.daemon.machine import OwnMachine, own_machine, simulation_text
from capyctl.daemon.places import check_places
from capyctl.daemon.role_actions import pruning, retiring
from capyctl.daemon.running import check_root_is_free, given_by, held_role, keep_document, run_role
from capyctl.daemon.serving import Beside, make_plane, serve_daemon
from capyctl.daemon.shutdown import SIGNALS
from capyctl.engines.runtime_dir import ensure_runtime
from capyctl.launch.addresses import ephemeral_overlap
from capyctl.telemetry.log import Log


def run_standalone(
    flags: Mapping[str, str],
    sets: Sequence[str] = (),
    simulate: str | None = None,
    log_format: str | None = None,
) -> int:
    """Serve until a signal; the exit status.

    ``flags``: named ones that were given, with their dashes; ``simulate``: the text or file
    of ``--simulate``, None for the real machine; ``log_format``: see `run_role`.
    """

    def run(log: Log) -> None:
        root, given = given_by(flags, sets)
        check_root_is_free(STANDALONE.kind, root)
        settings = load_standalone(
            root, config_path=given.config_path, flags=flags, env=given.env, sets=sets
        )
        keep_document(STANDALONE, given, settings)
        with held_role(STANDALONE.kind, settings, given):
            for repaired in ensure_runtime(settings.state_root).warnings:
                log.warning("runtime_repaired", message=repaired)
            credentials = ensure_credentials(settings.state_root)
            stated = None if simulate is None else simulation_text(simulate)
            check_places(settings, STANDALONE.kind, simulated=stated is not None, log=log.warning)
            raw_logs = "--debug-engine-logs" in flags
            machine = own_machine(settings, stated, log.warning, raw_logs=raw_logs)
            trio.run(_serve, settings, credentials, machine, log)

    return run_role(STANDALONE.kind, log_format, run)


async def _serve(
    settings: StandaloneSettings, credentials: Credentials, machine: OwnMachine, log: Log
) -> None:
    with trio.open_signal_receiver(*SIGNALS) as signals:
        async with bound(settings) as listeners, open_daemon(settings, machine, log) as daemon:
            await serve_daemon(
                daemon,
                listeners,
                credentials,
                make_plane(daemon, credentials, log),
                log,
                signals=signals,
                beside=Beside(
                    started=[_control_socket(settings, daemon, machine, log).serve],
                    ready=partial(_banner, settings, daemon, log),
                ),
            )
        await machine.processes.aclose()
    log.event("stopped", engines="left running")


def _control_socket(
    settings: StandaloneSettings, daemon: StandaloneDaemon, machine: OwnMachine, log: Log
) -> ControlSocket:
    directory = daemon.world.directory
    users = partial(users_in, directory)
    return ControlSocket(
        path=settings.state_root / SOCKET_NAME,
        host=settings.host,
        publishing=daemon.publishing,
        users=users,
        log=log.event,
        actions={
            **retiring(daemon.publishing, users, lambda: None),
            **pruning(machine.sources, lambda: [d.spec for d in directory.deployments.values()]),
        },
    )


def _banner(
    settings: StandaloneSettings,
    daemon: StandaloneDaemon,
    log: Log,
    inference: Address,
    management: Address,
) -> None:
    profiles = ", ".join(p.name for p in daemon.publishing.profiles)
    lines = {
        "inference": shown_inference(settings, inference),
        "management": str(management),
        "engines": profiles or NO_ENGINES,
        "state": str(settings.state_root),
        "credentials": str(credentials_path(settings.state_root)),
    }
    show_banner(STANDALONE.kind, lines, log)
    overlap = ephemeral_overlap(*settings.engine_ports)
    if overlap is not None:
        log.warning("engine_ports_ephemeral", message=overlap)
    warn_of_open_inference(settings, inference, log)
