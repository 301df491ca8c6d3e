"""The hosts actor: the one owner of what is on record of machines, and who tells others of them.

What it tells follows from the records and the sessions as they are, not from the message at
hand: after a failure of the actor, or of the daemon, it is told again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, assert_never

import attrs

from actors import Actor, Ref, ReplyTo
from capyctl.contracts.host import Host
from capyctl.contracts.store import Change, ReceiptTaken, StoreBroken
from capyctl.control.eligibility import eligibility
from capyctl.control.replies import answer, fail, refuse
from capyctl.control.sessions import Session, SessionState
from capyctl.control.surroundings import World
from capyctl.domain.errors import Refused
from capyctl.domain.events import Receipt
from capyctl.domain.hosts import HostPublication, HostRecord, HostState
from capyctl.domain.ids import HostId
from capyctl.machines.host_changes import (
    HostDecision,
    HostPut,
    decide_host,
    enrolled,
    host_event,
    invited,
)
from capyctl.machines.instance import Instance
from capyctl.messages import hosts as m
from capyctl.messages.deployment import HostsChanged, ReceiptKey
from capyctl.messages.instance import HostBack, HostLost, HostSuspended, InstanceMessage
from capyctl.messages.placement import HostPublished

TOGETHER_S = 0.2
"""Deployments are told of hosts that change at the same time together."""


@attrs.frozen
class TellDeployments:
    """Hosts have changed a moment ago. From: our own timer."""


@attrs.frozen(kw_only=True)
class HostsNeeds:
    """Beside the world: who is told of hosts, and how they are reached."""

    world: World
    placement: Ref[Any]
    open_host: Callable[[HostId, HostPublication], Host]
    """The way to a host, made once and kept. Called before anything is asked of it."""
    close_session: Callable[[HostId], None] = lambda _: None
    """End the host's session at once; it is not let in again. For hosts that were revoked."""


class HostsActor(Actor[m.HostsMessage | TellDeployments]):
    """Machines other than this one. A standalone daemon has none, and no such actor."""

    def __init__(self, needs: HostsNeeds, *, first: bool) -> None:
        """``first``: the daemon has just begun, and no host has come yet."""
        super().__init__("hosts", capacity=4096)
        self._first = first
        self._needs = needs
        self._world = needs.world
        self._directory = needs.world.directory
        self._changed: dict[HostId, None] = {}

    async def on_start(self) -> None:
        now_s = self._world.clock.monotonic_s()
        for host, record in list(self._directory.hosts.items()):
            self._world.sessions.expect(host, now_s)
            if record.state is HostState.REVOKED and not self._first:
                self._leave(host)
            self._tell(host)

    async def handle(self, message: m.HostsMessage | TellDeployments) -> None:
        match message:
            case m.HostOnline():
                await self._online(message)
            case m.HostSilent():
                await self._moved(message.host, SessionState.SUSPENDED, "host_suspended")
            case m.HostGone():
                await self._moved(message.host, SessionState.LOST, "host_lost")
            case m.DrainHost() | m.UndrainHost() | m.RevokeHost():
                await self._act(message, self.reply_to())
            case m.InviteHost():
                await self._invite(message, self.reply_to())
            case m.EnrolHost():
                await self._enrol(message, self.reply_to())
            case m.RenewHost():
                await self._renew(message, self.reply_to())
            case TellDeployments():
                self._tell_deployments()
            case _:
                assert_never(message)

    # -- sessions ----------------------------------------------------------------------------

    async def _online(self, message: m.HostOnline) -> None:
        record = self._directory.hosts.get(message.host)
        if record is None or record.state is HostState.REVOKED:
            self._needs.close_session(message.host)
            return
        events = []
        session = self._world.sessions.expect(message.host, self._world.clock.monotonic_s())
        if message.fresh or session.recorded is not SessionState.ONLINE:
            events.append(host_event("host_online", record))
            session.recorded = SessionState.ONLINE
        if record.publication != message.publication:
            record = attrs.evolve(record, publication=message.publication)
            events.append(host_event("host_published", record))
            await self._store_quietly(Change(puts=(record,), events=tuple(events)))
        elif events:
            await self._store_quietly(Change(events=tuple(events)))
        self._tell(message.host)

    async def _moved(self, host: HostId, state: SessionState, kind: str) -> None:
        """A message that was overtaken by another one changes nothing, and is not told."""
        record = self._directory.hosts.get(host)
        if record is None:
            return
        session = self._world.sessions.expect(host, self._world.clock.monotonic_s())
        news = session.state is state and session.recorded is not state
        counts = record.state is not HostState.REVOKED and record.publication is not None
        if news and counts:
            session.recorded = state
            await self._store_quietly(Change(events=(host_event(kind, record),)))
        self._tell(host)

    # -- changes -----------------------------------------------------------------------------

    async def _act(self, message: m.ActOnHost, reply: ReplyTo | None) -> None:
        record = self._directory.hosts.get(message.host)
        moment = self._world.moment()
        try:
            decision = decide_host(record, message, now_ms=moment.now_ms)
        except Refused as refused:
            await refuse(self._world.store, reply, refused, message.receipt)
            return
        if not await self._accept(decision, message.receipt, reply):
            return
        if isinstance(message, m.RevokeHost):
            self._leave(message.host)
        self._tell(message.host)

    def _leave(self, host: HostId) -> None:
        """It was revoked: nothing is heard of it any more."""
        self._world.sessions.move(host, SessionState.LOST, self._world.clock.monotonic_s())
        self._needs.close_session(host)

    async def _invite(self, message: m.InviteHost, reply: ReplyTo | None) -> None:
        try:
            decision = invited(self._directory.hosts.values(), message.invitation)
        except Refused as refused:
            await refuse(self._world.store, reply, refused, message.receipt)
            return
        await self._accept(decision, message.receipt, reply)

    async def _accept(self, decision: HostDecision, key: ReceiptKey, reply: ReplyTo | None) -> bool:
        """Whether it is durable now; it is answered in any case."""
        receipt = Receipt(
            scope=key.scope, key=key.key, fingerprint=key.fingerprint, response=decision.response
        )
        try:
            await self._world.store.commit(
                Change(puts=decision.puts, events=decision.events, receipt=receipt)
            )
        except ReceiptTaken as taken:
            if taken.receipt.fingerprint == key.fingerprint:
                answer(reply, taken.receipt.response)
            else:
                fail(reply, Refused("idempotency_conflict", "The key belongs to another change"))
            return False
        except StoreBroken as broken:
            fail(reply, Refused("internal", f"The change was not stored: {broken}"))
            return False
        answer(reply, decision.response)
        return True

    async def _enrol(self, message: m.EnrolHost, reply: ReplyTo | None) -> None:
        try:
            decision = enrolled(
                self._directory.hosts,
                self._directory.invitations.get(message.invitation),
                message,
                now_ms=self._world.moment().now_ms,
            )
        except Refused as refused:
            fail(reply, refused)
            return
        if await self._put(decision, reply):
            now_s = self._world.clock.monotonic_s()
            self._world.sessions.expect(message.host.id, now_s)
            self._tell(message.host.id)

    async def _renew(self, message: m.RenewHost, reply: ReplyTo | None) -> None:
        record = self._directory.hosts.get(message.host)
        if record is None or record.state is HostState.REVOKED:
            fail(reply, Refused("not_found", f"{message.host} is not enrolled"))
            return
        after = attrs.evolve(record, certificates=message.certificates)
        puts: tuple[HostPut, ...] = (after, *message.issued)
        await self._put(HostDecision(puts=puts, record=after), reply)

    async def _put(self, decision: HostDecision, reply: ReplyTo | None) -> bool:
        """Durable, and answered with the record."""
        try:
            await self._world.store.commit(Change(puts=decision.puts, events=decision.events))
        except StoreBroken as broken:
            fail(reply, Refused("internal", f"The change was not stored: {broken}"))
            return False
        if reply is not None:
            reply.answer(decision.record)
        return True

    async def _store_quietly(self, change: Change) -> None:
        try:
            await self._world.store.commit(change)
        except StoreBroken:
            # What is seen of machines counts all the same: gates close, and nothing is freed.
            self._world.log("host_change_not_stored", events=[e.kind for e in change.events])

    # -- telling -----------------------------------------------------------------------------

    def _tell(self, host: HostId) -> None:
        """Placement, its instances and, a little later, the deployments: how the host is now."""
        record = self._directory.hosts.get(host)
        session = self._world.sessions.of(host)
        if record is None or session is None:
            return
        self._tell_placement(record, session)
        for one in self._concerned(host):
            ref = self._directory.instance_refs.get(one.id)
            if ref is not None:
                self._world.tell(ref, self._news(record, session, one))
        if session.state is SessionState.ONLINE:
            session.fresh_due = False
        if not self._changed:
            self.timers.set("together", TOGETHER_S, TellDeployments())
        self._changed[host] = None

    def _tell_placement(self, record: HostRecord, session: Session) -> None:
        tell, placement = self._world.tell, self._needs.placement
        publication = record.publication
        if publication is not None:
            self._needs.open_host(record.id, publication)
            published = HostPublished(
                host=record.id,
                name=record.name,
                shape=publication.shape,
                parked_max=publication.max_parked_count,
            )
            tell(placement, published)
        tell(placement, eligibility(record, session))

    def _concerned(self, host: HostId) -> Iterator[Instance]:
        """What holds memory there, or may just have been granted some."""
        for mine in list(self._directory.instances.values()):
            for one in list(mine.values()):
                there = one.held is not None and one.held.candidate.host == host
                if there or (one.held is None and one.ask is not None):
                    yield one

    def _news(self, record: HostRecord, session: Session, one: Instance) -> InstanceMessage:
        revoked = record.state is HostState.REVOKED
        if revoked or self._world.sessions.is_lost(record.id):
            why = f"{record.name} is offline"
            if revoked:
                why = f"{record.name} was revoked"
            return HostLost(host=record.id, why=why)
        if session.state is SessionState.SUSPENDED:
            return HostSuspended(host=record.id)
        there = one.launch is not None and one.held is not None
        running = not there or self._is_running(record.id, one)
        return HostBack(host=record.id, name=record.name, running=running, fresh=session.fresh_due)

    def _is_running(self, host: HostId, one: Instance) -> bool:
        if one.held is None or one.held.candidate.host != host or one.launch is None:
            return True
        return self._world.hosts[host].is_running(one.launch)

    def _tell_deployments(self) -> None:
        changed, self._changed = tuple(self._changed), {}
        if not changed:
            return
        for id, ref in list(self._directory.deployment_refs.items()):
            deployment = self._directory.deployments.get(id)
            if deployment is not None:
                self._world.tell(ref, HostsChanged(hosts=changed))


def hosts_maker(needs: HostsNeeds) -> Callable[[], HostsActor]:
    """Makes the actor: only the first one meets a fresh daemon."""
    made = 0

    def make() -> HostsActor:
        nonlocal made
        made += 1
        return HostsActor(needs, first=made == 1)

    return make
