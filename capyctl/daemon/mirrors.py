"""What every daemon that serves builds over its store: mirrors that follow it, and the world."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager

import attrs

from actors import Failure, Observer
from capyctl.config.role_settings import ServingSettings
from capyctl.contracts.host import Host
from capyctl.contracts.store import OnCommitted, Stored
from capyctl.control.directory import Directory
from capyctl.control.recover import ControlPlane
from capyctl.control.surroundings import World
from capyctl.control.telling import TellingStore
from capyctl.daemon.clock import SystemClock, UlidIds
from capyctl.daemon.load import LoadView
from capyctl.daemon.management import DaemonManagement
from capyctl.daemon.routing import Routing
from capyctl.domain.hosts import QueueLimits
from capyctl.domain.ids import HostId
from capyctl.domain.specs import ModelTask
from capyctl.gates.admission import QueueBounds
from capyctl.store.sqlite_store import SqliteStore, open_store
from capyctl.store.writer import BeforeCommit
from capyctl.telemetry.forwarding import last_lines
from capyctl.telemetry.fragments import Fragments
from capyctl.telemetry.hub import Hub
from capyctl.telemetry.log import Log

DATABASE = "srv.sqlite3"


@attrs.frozen(kw_only=True, eq=False)
class Mirrors:
    """What follows the store, and the world that the control plane is given."""

    store: SqliteStore
    world: World
    fragments: Fragments
    routing: Routing
    hub: Hub
    load_view: LoadView


@attrs.frozen(kw_only=True, eq=False)
class Daemon:
    """A running control plane and what serves from it."""

    settings: ServingSettings
    mirrors: Mirrors
    control: ControlPlane
    management: DaemonManagement

    @property
    def world(self) -> World:
        return self.mirrors.world

    @property
    def routing(self) -> Routing:
        return self.mirrors.routing


@asynccontextmanager
async def opened_store(
    settings: ServingSettings,
    log: Log,
    ids: UlidIds,
    *,
    before_commit: BeforeCommit | None = None,
) -> AsyncIterator[SqliteStore]:
    """The state root's database, for the length of the block.

    Raises:
        store.errors.StoreUnusable: it cannot be used; it was not changed.
    """
    opening = open_store(
        settings.state_root / DATABASE,
        clock_wall_ms=SystemClock().wall_ms,
        ids=ids,
        before_commit=before_commit,
        on_broken=lambda why: log.error(
            "store_failed", message=str(why), problem=repr(why.__cause__)
        ),
    )
    async with opening as store:
        if store.put_back is not None:
            log.warning("store_was_put_back", reason=store.put_back)
        yield store


@attrs.frozen(kw_only=True, eq=False)
class Outside:
    """What the mirrors are made with, beside the store."""

    hosts: Mapping[HostId, Host]
    engine_paths: Callable[[str, ModelTask], frozenset[str]]
    queue: QueueLimits
    parked_growth_limit: str = "auto"
    listeners: tuple[OnCommitted, ...] = ()
    """Told of commits after the directory."""


def make_mirrors(
    settings: ServingSettings,
    outside: Outside,
    *,
    store: SqliteStore,
    stored: Stored,
    directory: Directory,
    ids: UlidIds,
    log: Log,
) -> Mirrors:
    """Mirrors of what is ``stored``, which ``directory`` has loaded."""
    fragments = Fragments.from_store(stored)
    routing = Routing(
        directory,
        engine_paths=outside.engine_paths,
        stream_idle_s=outside.queue.stream_idle_s,
    )
    # The directory first: whoever else is told of a commit finds it there.
    for listener in (directory.apply, *outside.listeners, fragments.apply, routing.apply):
        store.listen(listener)
    world = World(
        store=TellingStore(store, directory),
        clock=SystemClock(),
        ids=ids,
        hosts=outside.hosts,
        directory=directory,
        session_epoch=stored.session_epoch,
        log=log.event,
        drain_s=settings.switching_drain_s,
        parked_growth_limit=outside.parked_growth_limit,
    )
    return Mirrors(
        store=store,
        world=world,
        fragments=fragments,
        routing=routing,
        hub=Hub(store, last_seq=stored.last_seq),
        load_view=LoadView(world=world),
    )


def directory_of(
    stored: Stored, queue: QueueLimits, *, own_host: HostId | None = None
) -> Directory:
    """What is durable, with the bounds of its queues. ``own_host``: of a standalone daemon."""
    directory = Directory(
        own_host=own_host,
        running_max=queue.running_per_deployment_max,
        pending_max=queue.pending_per_deployment_max,
        bounds=QueueBounds(total_max=queue.pending_total_max, bytes_max=queue.buffered_bytes_max),
    )
    directory.load((*stored.hosts, *stored.invitations, *stored.certificates))
    directory.load((*stored.deployments, *stored.instances, *stored.operations))
    return directory


class FailureLog(Observer):
    """Says in the log that an actor failed, and why; a restart follows by itself."""

    def __init__(self, log: Log) -> None:
        self._log = log

    def exited(self, name: str, failure: Failure | None) -> None:
        if failure is not None:
            self._log.error(
                "actor_failed",
                actor=name,
                type=failure.type,
                text=failure.text,
                traceback=last_lines([failure.traceback]),
            )

    def restarted(self, name: str, restarts_count: int) -> None:
        self._log.warning("actor_restarted", actor=name, times=restarts_count)
