"""Puts a standalone daemon together: the one place that knows every part."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import attrs

from actors import ChildSpec
from capyctl import __version__
from capyctl.config.complete import Checks, complete_deployment
from capyctl.config.resolve import resolve
from capyctl.config.settings import StandaloneSettings
from capyctl.contracts.management import Invite
from capyctl.control.recover import ControlPlane, open_control
from capyctl.control.sampler import SamplerActor
from capyctl.daemon.clock import UlidIds
from capyctl.daemon.hosts_view import HostsView, OwnHost
from capyctl.daemon.machine import OwnMachine
from capyctl.daemon.management import DaemonManagement, HostChanges, MadeInvitation
from capyctl.daemon.mirrors import (
    Daemon,
    FailureLog,
    Mirrors,
    Outside,
    directory_of,
    make_mirrors,
    opened_store,
)
from capyctl.daemon.publishing import Publishing
from capyctl.domain.checkpoints import CheckpointFacts
from capyctl.domain.errors import Refused
from capyctl.domain.hosts import HostPublication
from capyctl.domain.ids import HostId
from capyctl.domain.specs import DeploymentSpec, ResolvedSpec
from capyctl.engines.arguments import check_extra_args
from capyctl.engines.env_rules import resolve_env
from capyctl.machines.idling import IdlePolicy
from capyctl.store.writer import BeforeCommit
from capyctl.telemetry.log import Log


@attrs.frozen(kw_only=True, eq=False)
class StandaloneDaemon(Daemon):
    """With the one machine that it runs."""

    machine: OwnMachine
    publishing: Publishing


@asynccontextmanager
async def open_daemon(
    settings: StandaloneSettings,
    machine: OwnMachine,
    log: Log,
    *,
    before_commit: BeforeCommit | None = None,
) -> AsyncIterator[StandaloneDaemon]:
    """Everything but the listeners, for the length of the block. Engines outlive it.

    ``before_commit``: of the store, see `open_store`. For tests.

    Raises:
        store.errors.StoreUnusable: the database cannot be used; it was not changed.
    """
    ids = UlidIds()
    publishing = Publishing(settings, machine.simulated_profiles, machine.retirements)
    async with opened_store(settings, log, ids, before_commit=before_commit) as store:
        stored = await store.load()
        outside = Outside(
            hosts={HostId(settings.host): machine.host},
            engine_paths=machine.host.routes,
            queue=settings.queue,
            parked_growth_limit=settings.parked_growth_limit,
        )
        mirrors = make_mirrors(
            settings,
            outside,
            store=store,
            stored=stored,
            directory=directory_of(stored, settings.queue, own_host=HostId(settings.host)),
            ids=ids,
            log=log,
        )
        async with _over(mirrors, settings, machine, publishing, log) as daemon:
            yield daemon


@asynccontextmanager
async def _over(
    mirrors: Mirrors,
    settings: StandaloneSettings,
    machine: OwnMachine,
    publishing: Publishing,
    log: Log,
) -> AsyncIterator[StandaloneDaemon]:
    host_id = HostId(settings.host)
    async with open_control(
        mirrors.world,
        resolve=Resolver(publishing=publishing, machine=machine, settings=settings),
        own_host=host_id,
        observer=FailureLog(log),
        window_s=settings.queue.admission_window_s,
        idle=IdlePolicy(ready_s=settings.ready_idle_s, parked_s=settings.parked_idle_s),
    ) as control:
        await _start_sampler(control, mirrors, host_id)
        own = OwnHost(
            id=host_id, publication=lambda: own_publication(settings, machine, publishing)
        )
        management = DaemonManagement(
            world=mirrors.world,
            store=mirrors.store,
            fragments=mirrors.fragments,
            hub=mirrors.hub,
            catalogue=control.catalogue,
            load_view=mirrors.load_view,
            completer=Completer(publishing=publishing, settings=settings),
            hosts_view=HostsView(world=mirrors.world, books=control.books, own=own),
            host_changes=HostChanges(hosts=control.hosts, make_invitation=_no_invitation),
        )
        try:
            yield StandaloneDaemon(
                settings=settings,
                mirrors=mirrors,
                control=control,
                management=management,
                machine=machine,
                publishing=publishing,
            )
        finally:
            mirrors.hub.close()


def _no_invitation(asked: Invite, host: HostId | None) -> MadeInvitation:
    raise Refused(
        "unsupported_capability",
        "This is a standalone machine; hosts are invited and revoked on a server",
    )


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
        profiles=publishing.offered,
        version=__version__,
        models_root=str(settings.models_root),
        kv_default_bytes=settings.kv_default_bytes,
        parked_growth_limit=settings.parked_growth_limit,
    )


@attrs.frozen(kw_only=True)
class Completer:
    """Documents to specifications, with what is published now."""

    publishing: Publishing
    settings: StandaloneSettings

    def __call__(self, document: Mapping[str, Any]) -> DeploymentSpec:
        return complete_deployment(
            document,
            profiles=self.publishing.offered,
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
