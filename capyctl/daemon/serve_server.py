"""The server role: from its settings to its exit status. Hosts and their engines outlive it."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from functools import partial

import attrs
import trio

from capyctl.config.credentials import Credentials, credentials_path, ensure_credentials
from capyctl.config.role_settings import Address
from capyctl.config.server_settings import SERVER, ServerSettings, load_server
from capyctl.daemon.assemble_server import ServerDaemon, dialled_names, open_server
from capyctl.daemon.banner import show_banner, shown_inference, warn_of_open_inference
from capyctl.daemon.clock import SystemClock
from capyctl.daemon.listening import bound
from capyctl.daemon.naming import Listening, naming
from capyctl.daemon.running import (
    RoleRefused,
    check_root_is_free,
    given_by,
    held_role,
    keep_document,
    run_role,
)
from capyctl.daemon.serving import Beside, make_plane, serve_daemon
from capyctl.daemon.shutdown import SIGNALS
from capyctl.daemon.tightest import keep_tightest
from capyctl.domain.hosts import HostState, QueueLimits
from capyctl.link.authority import Authority, AuthorityUnusable
from capyctl.link.bootstrap import Bootstrap
from capyctl.link.certificates import BadCertificate
from capyctl.link.websocket import serve_link
from capyctl.telemetry.log import Log

CERTIFICATE_EVERY_S = 60.0
"""A clock may be set long after a start, as on a machine that boots with none: until the next look
hosts refuse what was made by the wrong one."""


def run_server(
    flags: Mapping[str, str], sets: Sequence[str] = (), log_format: str | None = None
) -> int:
    """Serve until a signal; the exit status. As `serve.run_standalone`."""

    def run(log: Log) -> None:
        root, given = given_by(flags, sets)
        check_root_is_free(SERVER.kind, root)
        settings = load_server(root, given)
        keep_document(SERVER, given, settings)
        with held_role(SERVER.kind, settings, given):
            credentials = ensure_credentials(root, SERVER.kind)
            trio.run(_serve, settings, credentials, log)

    return run_role(SERVER.kind, log_format, run)


@attrs.frozen(kw_only=True)
class Doors:
    """Where hosts come in."""

    bootstrap: list[trio.SocketListener]
    control: list[trio.SocketListener]


@contextlib.asynccontextmanager
async def _doors(settings: ServerSettings) -> AsyncIterator[Doors]:
    with contextlib.ExitStack() as opened:
        found = []
        for where, setting in (
            (settings.bootstrap, "listeners.bootstrap.bind"),
            (settings.control, "listeners.control.bind"),
        ):
            with naming(where, Listening(setting=setting)):
                listeners = await trio.open_tcp_listeners(where.port, host=where.host)
            for listener in listeners:
                opened.callback(listener.socket.close)
            found.append(listeners)
        yield Doors(bootstrap=found[0], control=found[1])


async def _serve(settings: ServerSettings, credentials: Credentials, log: Log) -> None:
    try:
        with trio.open_signal_receiver(*SIGNALS) as signals:
            async with (
                bound(settings) as listeners,
                _doors(settings) as doors,
                open_server(settings, log) as daemon,
            ):
                plane = make_plane(daemon, credentials, log, hosts_tls=daemon.hosts_tls())
                daemon.ears.plane = plane
                beside = Beside(
                    started=[partial(_let_hosts_in, daemon, doors, log)],
                    ready=partial(_banner, daemon, log),
                )
                await serve_daemon(
                    daemon, listeners, credentials, plane, log, signals=signals, beside=beside
                )
    except (AuthorityUnusable, BadCertificate) as problem:
        raise RoleRefused("identity_unusable", str(problem)) from problem
    log.event("stopped", hosts="go on")


async def _let_hosts_in(
    daemon: ServerDaemon,
    doors: Doors,
    log: Log,
    *,
    task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Both doors, and what goes on beside them, until cancelled."""
    contexts = daemon.authority.contexts()
    bootstrap = Bootstrap(
        contexts.bootstrap,
        daemon.enrolment.redeem,
        log=lambda address, why: log.warning("join_refused", address=address, why=why),
    )
    link = partial(
        serve_link,
        daemon.link,
        doors.control,
        contexts.control,
        daemon.on_record(),
        log=log.event,
    )
    async with trio.open_nursery() as nursery:
        nursery.start_soon(bootstrap.serve, doors.bootstrap)
        nursery.start_soon(link)
        nursery.start_soon(daemon.link.run)
        names = dialled_names(daemon.settings)
        nursery.start_soon(keep_certificate, daemon.authority, names, SystemClock().wall_ms, log)
        nursery.start_soon(_keep_limits, daemon, log)
        task_status.started()


async def keep_certificate(
    authority: Authority, names: Sequence[str], wall_ms: Callable[[], int], log: Log
) -> None:
    """Make the server another certificate where that is due, for ever."""
    told = None
    while True:
        await trio.sleep(CERTIFICATE_EVERY_S)
        try:
            if authority.keep_current(names, wall_ms()):
                log.event("certificate_renewed")
            told = None
        except OSError as problem:
            if told != str(problem):
                log.error("certificate_not_renewed", problem=str(problem))
            told = str(problem)


async def _keep_limits(daemon: ServerDaemon, log: Log) -> None:
    def changed(limits: QueueLimits) -> None:
        daemon.routing.set_stream_idle(limits.stream_idle_s)
        log.event("queue_limits", **attrs.asdict(limits))

    await keep_tightest(
        daemon.world.directory,
        bytes_max=daemon.settings.buffered_bytes_max,
        now_s=trio.current_time,
        changed=changed,
    )


def _banner(daemon: ServerDaemon, log: Log, inference: Address, management: Address) -> None:
    settings = daemon.settings
    hosts = daemon.world.directory.hosts.values()
    enrolled = sorted(one.name for one in hosts if one.state is HostState.ENROLLED)
    lines = {
        "inference": shown_inference(settings, inference),
        "management": str(management),
        "bootstrap": f"{settings.bootstrap}, dialled as {settings.bootstrap_dialled}",
        "control": f"{settings.control}, dialled as {settings.control_dialled}",
        "hosts": ", ".join(enrolled) or "none: let one join with `capyctl invite host`",
        "state": str(settings.state_root),
        "credentials": str(credentials_path(settings.state_root, SERVER.kind)),
    }
    show_banner(SERVER.kind, lines, log)
    warn_of_open_inference(settings, inference, log)
