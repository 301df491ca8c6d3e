"""Puts a server together: the deciding, the link to its hosts, and how machines become those."""

from __future__ import annotations

import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, cast

import attrs

from actors import ActorGone, AskTimedOut, MailboxFull, Ref, ask
from capyctl import __version__
from capyctl.config.server_settings import ServerSettings
from capyctl.contracts.hosts import HostEvents, HostSample
from capyctl.contracts.management import Invite
from capyctl.contracts.store import Stored
from capyctl.control.directory import Directory
from capyctl.control.hearing import Hearing, OnRecord
from capyctl.control.recover import Reach, open_control
from capyctl.daemon.clock import SystemClock, UlidIds
from capyctl.daemon.host_news import HostNews
from capyctl.daemon.host_offers import HostsCompleter, HostsResolver
from capyctl.daemon.hosts_view import HostsView
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
from capyctl.daemon.tightest import tightest
from capyctl.dataplane.plane import Plane
from capyctl.dataplane.tls import HostTls
from capyctl.domain.devices import MachineShape
from capyctl.domain.errors import Refused
from capyctl.domain.hosts import Compatibility, HostPublication, HostRecord
from capyctl.domain.ids import HostId
from capyctl.domain.specs import ModelTask
from capyctl.engines.families import families
from capyctl.engines.surroundings import Surroundings
from capyctl.link.authority import Authority, open_authority
from capyctl.link.contexts import host_tls_name
from capyctl.link.enrolment import Enrolment
from capyctl.link.invitations import ServerAddresses
from capyctl.link.peers import Tls, refusal
from capyctl.link.server import LinkServer
from capyctl.machines.idling import IdlePolicy
from capyctl.machines.link import Silence
from capyctl.messages.hosts import EnrolHost, RenewHost
from capyctl.telemetry.log import Log

ASK_S = 30.0


@attrs.define(eq=False)
class Ears:
    """Implements `contracts.hosts.HostEvents`: for the control plane, and for the data plane.

    Both are there later than the link, which tells nothing before.
    """

    hearing: HostEvents | None = None
    plane: Plane | None = None
    news: HostNews | None = None

    def online(
        self,
        host: HostId,
        publication: HostPublication,
        *,
        fresh: bool,
        compatibility: Compatibility,
    ) -> None:
        assert self.hearing is not None
        self.hearing.online(host, publication, fresh=fresh, compatibility=compatibility)
        if self.news is not None:
            self.news.online(host)

    def suspended(self, host: HostId) -> None:
        assert self.hearing is not None
        self.hearing.suspended(host)
        self._leave(host, cut=False)
        if self.news is not None:
            self.news.suspended(host)

    def lost(self, host: HostId) -> None:
        assert self.hearing is not None
        self.hearing.lost(host)
        if self.news is not None:
            self.news.lost(host)

    def sampled(self, host: HostId, sample: HostSample) -> None:
        assert self.hearing is not None
        self.hearing.sampled(host, sample)

    def dismissed(self, host: HostId) -> None:
        """It was revoked: nothing of it is trusted any more."""
        self._leave(host, cut=True)

    def _leave(self, host: HostId, *, cut: bool) -> None:
        if self.plane is not None:
            self.plane.close_host(host, cut=cut)


@attrs.frozen(kw_only=True, eq=False)
class ServerDaemon(Daemon):
    """With what hosts are met by."""

    settings: ServerSettings
    link: LinkServer
    authority: Authority
    enrolment: Enrolment
    ears: Ears

    def hosts_tls(self) -> HostTls:
        """How the data plane meets the ingresses of hosts."""
        directory = self.world.directory
        contexts = self.authority.contexts()

        def accepts(session: ssl.SSLObject, host: HostId) -> bool:
            # The stub's overloads hide that it is one of `peers.Tls`.
            met = cast("Tls", session)
            return refusal(met, directory.hosts.get(host), expected=host) is None

        return HostTls(context=lambda: contexts.upstream, name=host_tls_name, accepts=accepts)

    def on_record(self) -> OnRecord:
        return OnRecord(directory=self.world.directory)


@asynccontextmanager
async def open_server(settings: ServerSettings, log: Log) -> AsyncIterator[ServerDaemon]:
    """Everything but the listeners, for the length of the block. Hosts and engines outlive it.

    Raises:
        store.errors.StoreUnusable: the database cannot be used; it was not changed.
        link.authority.AuthorityUnusable: the identity is lost or damaged.
    """
    ids = UlidIds()
    async with opened_store(settings, log, ids) as store:
        stored = await store.load()
        limits = tightest(stored.hosts, bytes_max=settings.buffered_bytes_max)
        directory = directory_of(stored, limits)
        authority = _authority(settings, stored, ids)
        asking = Asking()
        enrolment = _enrolment(settings, stored, directory, authority, asking, ids, log)
        ears = Ears()
        link = _link(settings, directory, ears, enrolment, ids, log)
        outside = Outside(
            hosts=link.hosts,
            engine_paths=engine_paths(settings),
            queue=limits,
            listeners=(enrolment.on_committed,),
        )
        mirrors = make_mirrors(
            settings,
            outside,
            store=store,
            stored=stored,
            directory=directory,
            ids=ids,
            log=log,
        )
        parts = Parts(
            settings=settings,
            mirrors=mirrors,
            link=link,
            authority=authority,
            enrolment=enrolment,
            ears=ears,
        )
        async with _over(parts, asking, log) as daemon:
            yield daemon


@attrs.frozen(kw_only=True, eq=False)
class Parts:
    """A server's, before its control plane runs."""

    settings: ServerSettings
    mirrors: Mirrors
    link: LinkServer
    authority: Authority
    enrolment: Enrolment
    ears: Ears


@attrs.define(eq=False)
class Asking:
    """Asks the hosts actor, which is there once the control plane runs."""

    hosts: Ref[Any] | None = None

    async def __call__(self, message: EnrolHost | RenewHost) -> HostRecord:
        if self.hosts is None:
            raise Refused("reconciliation_required", "The server is still starting; try again")
        try:
            found = await ask(self.hosts, message, within_s=ASK_S)
        except (MailboxFull, ActorGone, AskTimedOut) as problem:
            text = "The server is busy or being recovered; try again"
            raise Refused("reconciliation_required", text) from problem
        assert isinstance(found, HostRecord)
        return found


@asynccontextmanager
async def _over(parts: Parts, asking: Asking, log: Log) -> AsyncIterator[ServerDaemon]:
    settings, mirrors, link, ears = parts.settings, parts.mirrors, parts.link, parts.ears
    directory = mirrors.world.directory

    def close_session(host: HostId) -> None:
        link.dismiss(host)
        ears.dismissed(host)

    for host in directory.hosts:
        link.expect(host)
    async with open_control(
        mirrors.world,
        resolve=HostsResolver(directory=directory),
        reach=Reach(open_host=link.open_host, close_session=close_session),
        observer=FailureLog(log),
        idle=IdlePolicy(ready_s=settings.ready_idle_s, parked_s=settings.parked_idle_s),
    ) as control:
        asking.hosts = control.hosts
        ears.news = HostNews(directory, log, silent_s=settings.suspend_s, lost_s=settings.lost_s)
        ears.hearing = Hearing(
            world=mirrors.world,
            hosts=control.hosts,
            placement=control.placement,
            kept=mirrors.load_view.keep,
        )
        management = DaemonManagement(
            world=mirrors.world,
            store=mirrors.store,
            fragments=mirrors.fragments,
            hub=mirrors.hub,
            catalogue=control.catalogue,
            load_view=mirrors.load_view,
            completer=HostsCompleter(directory=directory),
            hosts_view=HostsView(world=mirrors.world, books=control.books, rival=link.rival),
            host_changes=HostChanges(
                hosts=control.hosts, make_invitation=Inviting(enrolment=parts.enrolment)
            ),
        )
        try:
            yield ServerDaemon(
                settings=settings,
                mirrors=mirrors,
                control=control,
                management=management,
                link=link,
                authority=parts.authority,
                enrolment=parts.enrolment,
                ears=ears,
            )
        finally:
            mirrors.hub.close()


@attrs.frozen(kw_only=True)
class Inviting:
    """Fresh invitations with their join files."""

    enrolment: Enrolment

    def __call__(self, asked: Invite, recover: HostId | None) -> MadeInvitation:
        invitation, document = self.enrolment.invitation(
            asked.name, recover=recover, expires_in_ms=asked.expires_in_ms
        )
        return MadeInvitation(invitation=invitation, document=document)


def engine_paths(settings: ServerSettings) -> Any:
    """Inference paths of each family, as this release has them: `link.remote.Routes`."""
    nowhere = MachineShape(host=HostId(settings.name), gpus=(), domains=())
    known = families(Surroundings(state_dir=str(settings.state_root), shape=nowhere))

    def paths(family: str, task: ModelTask) -> frozenset[str]:
        return known[family].routes(task)

    return paths


def _authority(settings: ServerSettings, stored: Stored, ids: UlidIds) -> Authority:
    return open_authority(
        settings.state_root / "identity",
        new_id=ids.ulid,
        names=dialled_names(settings),
        now_ms=SystemClock().wall_ms(),
        hosts_are_known=bool(stored.hosts),
    )


def dialled_names(settings: ServerSettings) -> tuple[str, ...]:
    """What the server's certificate is for, beside its id."""
    return tuple(sorted({settings.bootstrap_dialled.host, settings.control_dialled.host}))


def _enrolment(
    settings: ServerSettings,
    stored: Stored,
    directory: Directory,
    authority: Authority,
    asking: Asking,
    ids: UlidIds,
    log: Log,
) -> Enrolment:
    return Enrolment(
        authority=authority,
        addresses=ServerAddresses(
            bootstrap=f"https://{settings.bootstrap_dialled}",
            control=f"https://{settings.control_dialled}",
        ),
        book=directory,
        ask_owner=asking,
        clock=SystemClock(),
        ids=ids,
        issued=stored.certificates,
        log=lambda why: log.error("revocation_not_written", message=why),
    )


def _link(
    settings: ServerSettings,
    directory: Directory,
    ears: Ears,
    enrolment: Enrolment,
    ids: UlidIds,
    log: Log,
) -> LinkServer:
    async def renew(request: str, host: HostId, in_use: str) -> str:
        return await enrolment.renew(request, host, in_use=in_use)

    return LinkServer(
        directory=OnRecord(directory=directory),
        events=ears,
        clock=SystemClock(),
        ids=ids,
        version=__version__,
        silence=Silence(suspend_after_s=settings.suspend_s, lost_after_s=settings.lost_s),
        routes=engine_paths(settings),
        renew=renew,
        log=log.event,
    )
