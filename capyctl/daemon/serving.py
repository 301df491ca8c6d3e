"""Serves a daemon's inference and management until a signal, and ends both in order."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Any

import attrs
import trio

from capyctl.api.app import ManagementApp, make_app
from capyctl.api.serve import serve_management
from capyctl.config.credentials import Credentials
from capyctl.config.role_settings import Address
from capyctl.control.surroundings import tell_now
from capyctl.daemon.descriptors import fitting
from capyctl.daemon.garbage import leave_out_what_stays
from capyctl.daemon.listening import Bound, address_of_socket, record_addresses
from capyctl.daemon.mirrors import Daemon
from capyctl.daemon.shutdown import drain, wait_for_stop
from capyctl.dataplane.cors import Cors
from capyctl.dataplane.listener import serve
from capyctl.dataplane.plane import Limits, Plane
from capyctl.dataplane.records import RequestRecord
from capyctl.dataplane.tls import HostTls
from capyctl.domain.ids import DeploymentId, InstanceId
from capyctl.launch.orphans import reap_orphans
from capyctl.messages.deployment import DemandArose
from capyctl.messages.instance import LeaseUnproven
from capyctl.telemetry.log import Level, Log

Task = Callable[..., Awaitable[Any]]


@attrs.frozen(kw_only=True)
class Beside:
    """What a role runs beside its two listeners."""

    started: Sequence[Task] = ()
    """Tasks that say when they have started: as `nursery.start` has it."""
    ready: Callable[[Address, Address], None] = lambda *_: None
    """Told of the addresses of inference and management once everything serves."""


async def serve_daemon(
    daemon: Daemon,
    bound: Bound,
    credentials: Credentials,
    plane: Plane,
    log: Log,
    *,
    signals: AsyncIterator[int],
    beside: Beside,
) -> None:
    """Until a signal. Requests get `shutdown.drain_timeout` then; both listeners are closed.

    Raises:
        OSError: the addresses cannot be recorded, or something beside cannot start.
    """
    settings = daemon.settings
    shutdown, served = trio.Event(), trio.Event()
    app = make_app(
        daemon.management,
        token=credentials.admin_token,
        clock=daemon.world.clock,
        inference_key=credentials.api_key,
        model_sources=daemon.management.referenced_sources,
    )
    async with trio.open_nursery() as nursery:
        nursery.start_soon(_serve_app, app, bound.management, shutdown, served)
        await nursery.start(serve, bound.inference, plane)
        leave_out_what_stays()
        for task in beside.started:
            await nursery.start(task)
        nursery.start_soon(reap_orphans)
        inference = address_of_socket(bound.inference)
        management = address_of_socket(bound.management[0].socket)
        record_addresses(settings, management=management, inference=inference)
        beside.ready(inference, management)
        name = await wait_for_stop(signals)
        log.event("stopping", signal=name)
        await drain(plane, signals, drain_s=settings.shutdown_drain_s, log=log.event)
        shutdown.set()
        with trio.move_on_after(app.limits.graceful_s + 1.0):
            await served.wait()
        nursery.cancel_scope.cancel()


def make_plane(
    daemon: Daemon, credentials: Credentials, log: Log, *, hosts_tls: HostTls | None = None
) -> Plane:
    """The data plane over a daemon's routes."""
    directory = daemon.world.directory
    settings = daemon.settings
    origins = settings.allowed_origins

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
        hosts_tls=hosts_tls,
        cors=Cors(origins=frozenset(origins)) if origins else None,
        limits=fitting(Limits()),
    )


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
