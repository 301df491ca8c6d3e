"""Puts a standalone daemon together: the one place that knows every part."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import attrs

from actors import ChildSpec, Failure, Observer
from capyctl import __version__
from capyctl.config.complete import Checks, complete_deployment
from capyctl.config.resolve import resolve
from capyctl.config.settings import StandaloneSettings
from capyctl.control.directory import Directory
from capyctl.control.recover import ControlPlane, open_control
from capyctl.control.sampler import SamplerActor
from capyctl.control.surroundings import World
from capyctl.control.telling import TellingStore
from capyctl.daemon.clock import SystemClock, UlidIds
from capyctl.daemon.hosts_view import HostsView, OwnHost
from capyctl.daemon.load import LoadView
from capyctl.daemon.machine import OwnMachine
from capyctl.daemon.management import DaemonManagement
from capyctl.daemon.publishing import Publishing
from capyctl.daemon.routing import Routing
from capyctl.domain.checkpoints import CheckpointFacts
from capyctl.domain.errors import Refused
from capyctl.domain.hosts import HostPublication
from capyctl.domain.ids import HostId
from capyctl.domain.specs import DeploymentSpec, ResolvedSpec
from capyctl.engines.arguments import check_extra_args
from capyctl.engines.env_rules import resolve_env
from capyctl.gates.admission import QueueBounds
from capyctl.machines.idling import IdlePolicy
from capyctl.store.sqlite_store import SqliteStore, open_store
from capyctl.store.writer import BeforeCommit
from capyctl.telemetry.fragments import Fragments
from capyctl.telemetry.hub import Hub
from capyctl.telemetry.log import Log

DATABASE = "srv.sqlite3"


@attrs.frozen(kw_only=True, eq=False)
class Daemon:
    """A running control plane and what serves from it."""

    settings: StandaloneSettings
    world: World
    machine: OwnMachine
    control: ControlPlane
    management: DaemonManagement
    hub: Hub
    routing: Routing
    publishing: Publishing
    fragments: Fragments


@asynccontextmanager
async def open_daemon(
    settings: StandaloneSettings,
    machine: OwnMachine,
    log: Log,
    *,
    before_commit: BeforeCommit | None = None,
) -> AsyncIterator[Daemon]:
    """Everything but the listeners, for the length of the block. Engines outlive it.

    ``before_commit``: of the store, see `open_store`. For tests.

    Raises:
        store.errors.StoreUnusable: the database cannot be used; it was not changed.
    """
    clock, ids = SystemClock(), UlidIds()
    path = settings.state_root / DATABASE
    opening = open_store(
        path,
        clock_wall_ms=clock.wall_ms,
        ids=ids,
        before_commit=before_commit,
        on_broken=lambda why: log.error(
            "store_failed", message=str(why), problem=repr(why.__cause__)
        ),
    )
    async with opening as store:
        if store.put_back is not None:
            log.warning("store_was_put_back", reason=store.put_back)
        async with _over_store(settings, machine, log, store, ids) as daemon:
            yield daemon


@attrs.frozen(kw_only=True, eq=False)
class Mirrors:
    """What follows the store, and the world that the control plane is given."""

    world: World
    fragments: Fragments
    routing: Routing
    publishing: Publishing
    hub: Hub
    load_view: LoadView


async def _open_mirrors(
    settings: StandaloneSettings, machine: OwnMachine, log: Log, store: SqliteStore, ids: UlidIds
) -> Mirrors:
    stored = await store.load()
    directory = _directory(settings)
    directory.load((*stored.deployments, *stored.instances, *stored.operations))
    fragments = Fragments.from_store(stored)
    routing = Routing(
        directory,
        engine_paths=machine.host.routes,
        stream_idle_s=settings.queue.stream_idle_s,
    )
    # The directory first: whoever else is told of a commit finds it there.
    for listener in (directory.apply, fragments.apply, routing.apply):
        store.listen(listener)
    world = World(
        store=TellingStore(store, directory),
        clock=SystemClock(),
        ids=ids,
        hosts={HostId(settings.host): machine.host},
        directory=directory,
        session_epoch=stored.session_epoch,
        log=log.event,
        drain_s=settings.switching_drain_s,
        parked_growth_limit=settings.parked_growth_limit,
    )
    return Mirrors(
        world=world,
        fragments=fragments,
        routing=routing,
        publishing=Publishing(settings, machine.simulated_profiles),
        hub=Hub(store, last_seq=stored.last_seq),
        load_view=LoadView(world=world),
    )


@asynccontextmanager
async def _over_store(
    settings: StandaloneSettings, machine: OwnMachine, log: Log, store: SqliteStore, ids: UlidIds
) -> AsyncIterator[Daemon]:
    mirrors = await _open_mirrors(settings, machine, log, store, ids)
    host_id = HostId(settings.host)
    async with open_control(
        mirrors.world,
        resolve=Resolver(publishing=mirrors.publishing, machine=machine, settings=settings),
        own_host=host_id,
        observer=FailureLog(log),
        window_s=settings.queue.admission_window_s,
        idle=IdlePolicy(ready_s=settings.ready_idle_s, parked_s=settings.parked_idle_s),
    ) as control:
        await _start_sampler(control, mirrors, host_id)
        management = DaemonManagement(
            world=mirrors.world,
            store=store,
            fragments=mirrors.fragments,
            hub=mirrors.hub,
            catalogue=control.catalogue,
            load_view=mirrors.load_view,
            completer=Completer(publishing=mirrors.publishing, settings=settings),
            hosts_view=HostsView(
                world=mirrors.world,
                books=control.books,
                own=OwnHost(
                    id=host_id,
                    publication=lambda: own_publication(settings, machine, mirrors.publishing),
                ),
            ),
        )
        try:
            yield Daemon(
                settings=settings,
                world=mirrors.world,
                machine=machine,
                control=control,
                management=management,
                hub=mirrors.hub,
                routing=mirrors.routing,
                publishing=mirrors.publishing,
                fragments=mirrors.fragments,
            )
        finally:
            mirrors.hub.close()


async def _start_sampler(control: ControlPlane, mirrors: Mirrors, host: HostId) -> None:
    def make() -> SamplerActor:
        return SamplerActor(
            mirrors.world,
            placement=control.placement,
            host=host,
            kept=mirrors.load_view.keep,
        )

    await control.system.start_child(ChildSpec(name="sampler", make=make))


def own_publication(
    settings: StandaloneSettings, machine: OwnMachine, publishing: Publishing
) -> HostPublication:
    """What this machine would say of itself to a server."""
    return HostPublication(
        shape=machine.shape,
        profiles=publishing.profiles,
        version=__version__,
        models_root=str(settings.models_root),
        kv_default_bytes=settings.kv_default_bytes,
        parked_growth_limit=settings.parked_growth_limit,
    )


def _directory(settings: StandaloneSettings) -> Directory:
    queue = settings.queue
    return Directory(
        running_max=queue.running_per_deployment_max,
        pending_max=queue.pending_per_deployment_max,
        bounds=QueueBounds(total_max=queue.pending_total_max, bytes_max=queue.buffered_bytes_max),
    )


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
                traceback=failure.traceback,
            )

    def restarted(self, name: str, restarts_count: int) -> None:
        self._log.warning("actor_restarted", actor=name, times=restarts_count)


@attrs.frozen(kw_only=True)
class Completer:
    """Documents to specifications, with what is published now."""

    publishing: Publishing
    settings: StandaloneSettings

    def __call__(self, document: Mapping[str, Any]) -> DeploymentSpec:
        return complete_deployment(
            document,
            profiles=self.publishing.profiles,
            models_root=self.settings.models_root,
            defaults=self.settings.defaults,
            checks=Checks(extra_args=check_extra_args, env=resolve_env),
        )


@attrs.frozen(kw_only=True)
class Resolver:
    """Specifications to charges and engine settings on this machine."""

    publishing: Publishing
    machine: OwnMachine
    settings: StandaloneSettings

    def path_on(self, path: str, host: HostId) -> str:
        return path

    def __call__(self, spec: DeploymentSpec, facts: CheckpointFacts, host: HostId) -> ResolvedSpec:
        profile = self.publishing.find(spec.profile)
        if profile is None:
            raise Refused(
                "checkpoint_unusable",
                f"profile {spec.profile} is not published any more; register it again",
            )
        return resolve(
            spec,
            profile=profile,
            machine=self.machine.shape,
            facts=facts,
            kv_default_bytes=self.settings.kv_default_bytes,
        )
