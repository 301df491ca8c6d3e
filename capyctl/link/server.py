"""The server's side of the link: one session per host, and the news of them in order."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import NoReturn

import attrs
import trio

from capyctl.contracts.clock import Clock, Ids
from capyctl.contracts.host import Host
from capyctl.contracts.hosts import HostDirectory, HostEvents
from capyctl.domain.hosts import (
    Compatibility,
    HostPublication,
    HostState,
    other_machine,
    publication_problem,
)
from capyctl.domain.ids import HostId
from capyctl.link.channel import Channel
from capyctl.link.peers import record_refusal
from capyctl.link.remote import SAMPLE_S, RemoteHost, Routes
from capyctl.link.renewal import RenewHostCertificate, answer_renewal, renews_none
from capyctl.link.session import Session
from capyctl.machines import link as m
from capyctl.machines.table import Step
from capyctl.wire.link import (
    BadFrame,
    Error,
    Heartbeat,
    Hello,
    HostFrame,
    Progress,
    Published,
    Refused,
    Renew,
    Result,
    Sync,
    Synced,
    Welcome,
    read_host_frame,
)
from capyctl.wire.link_calls import from_wire, to_wire

GREETING_S = 10.0
SYNC_S = 90.0
"""A host that ends strays answers within half a minute, and some more for a slow wire."""
LOOK_S = 0.5
"""How often the silence of all hosts is looked at."""
HEARTBEAT_S = 1.0
SYNC_LAUNCHES_COUNT = 100
"""Records in one frame of a sync; each takes a kilobyte or two."""
HOST_REVOKED = "host_revoked"
IN_USE = "host_identity_in_use"
RIVAL_S = 60.0
"""How long a second machine with a host's identity is told of after it last came, and how
seldom."""


@attrs.frozen(kw_only=True)
class Rival:
    """Another process that greeted as a host which is live."""

    address: str
    at_s: float
    """When it came, on Trio's clock."""
    logged_at_s: float


@attrs.define(eq=False, kw_only=True)
class Place:
    """One host, for as long as this server runs."""

    standing: m.Standing
    remote: RemoteHost | None = None
    session: Session[HostFrame] | None = None
    """The one of the standing."""
    compatibility: Compatibility = Compatibility.SUPPORTED
    address: str = ""
    """Where that session is from."""
    rival: Rival | None = None


@attrs.define(eq=False, kw_only=True)
class LinkServer:
    """Welcomes hosts, and tells what becomes of them."""

    directory: HostDirectory
    events: HostEvents
    clock: Clock
    ids: Ids
    version: str
    """Of capyctl here."""
    silence: m.Silence = attrs.field(factory=m.Silence)
    heartbeat_s: float = HEARTBEAT_S
    routes: Routes
    log: Callable[..., None]
    look_s: float = LOOK_S
    renew: RenewHostCertificate = renews_none
    """Gives a host that asks for it another certificate."""
    hosts: dict[HostId, Host] = attrs.field(init=False, factory=dict)
    """Those that can be asked for something. Hosts are added as they come, and kept."""
    _places: dict[HostId, Place] = attrs.field(init=False, factory=dict)
    _sessions_count: int = attrs.field(init=False, default=0)

    # -- hosts ------------------------------------------------------------------------------

    def open_host(self, host: HostId, publication: HostPublication) -> RemoteHost:
        """The way to a host, made once and kept; what is asked of it waits for a session."""
        place = self.expect(host)
        if place.remote is None:
            place.remote = RemoteHost(
                host,
                publication,
                clock=self.clock,
                ids=self.ids,
                routes=self.routes,
                sample_s=SAMPLE_S * self.heartbeat_s / HEARTBEAT_S,
            )
            self.hosts[host] = place.remote
        return place.remote

    def expect(self, host: HostId) -> Place:
        """Wait for this host from now on: it is told lost if it does not come in time."""
        if host not in self._places:
            standing = m.Standing(silence=self.silence, heard_at_s=trio.current_time())
            self._places[host] = Place(standing=standing)
        return self._places[host]

    def rival(self, host: HostId) -> str | None:
        """From where a second machine came as this host within the last minute, if one did."""
        place = self._places.get(host)
        if place is None or place.rival is None:
            return None
        recent = trio.current_time() - place.rival.at_s < RIVAL_S
        return place.rival.address if recent else None

    def note_rival(self, host: HostId, place: Place, address: str) -> None:
        now_s, before = trio.current_time(), place.rival
        news = before is None or now_s - before.logged_at_s >= RIVAL_S
        logged_at_s = now_s if before is None or news else before.logged_at_s
        place.rival = Rival(address=address, at_s=now_s, logged_at_s=logged_at_s)
        if news:
            self.log(IN_USE, host=host, kept=place.address, refused=address)

    def dismiss(self, host: HostId) -> None:
        """The host was revoked: its session ends at once. Calls to it wait, or are cancelled."""
        place = self._places.get(host)
        if place is not None:
            self.advance(host, place, m.Dismissed())

    async def run(self) -> None:
        """Notice silence, and launches that nobody claims, until cancelled."""
        async with trio.open_nursery() as nursery:
            while True:
                now_s = trio.current_time()
                for host, place in list(self._places.items()):
                    self.advance(host, place, m.Looked(now_s))
                    if place.remote is not None:
                        known = partial(self.directory.known_launches, host)
                        for record in place.remote.unclaimed(known):
                            nursery.start_soon(place.remote.discard, record)
                await trio.sleep(self.look_s)

    def advance(self, host: HostId, place: Place, event: m.LinkEvent) -> None:
        """Take one event, and do what follows from it."""
        step: Step[m.Standing] = m.advance(place.standing, event)
        former, place.standing = place.session, step.data
        if place.remote is not None and not step.data.agreed:
            place.remote.detach()
        for effect in step.effects:
            match effect:
                case m.TellOnline(fresh):
                    self.tell_online(host, place, fresh=fresh)
                case m.TellSuspended():
                    self.events.suspended(host)
                case m.TellLost():
                    self.events.lost(host)
                case m.CloseSession(why=why):
                    assert former is not None
                    self._close(host, former, why)
        if step.data.session is None:
            place.session = None

    def tell_online(self, host: HostId, place: Place, *, fresh: bool) -> None:
        assert place.remote is not None
        self.events.online(
            host, place.remote.publication, fresh=fresh, compatibility=place.compatibility
        )

    def _close(self, host: HostId, session: Session[HostFrame], why: str) -> None:
        record = self.directory.record(host)
        refused = None if record is None else record_refusal(record, None)
        if why == HOST_REVOKED and refused is not None:
            session.post_last(Refused(code=refused.code, message=refused.message), why)
        else:
            session.close(why)

    # -- sessions ---------------------------------------------------------------------------

    async def attend(self, host: HostId, channel: Channel, address: str = "") -> str:
        """Hold a session with the host at the other end of ``channel``, which is closed after.

        Who it is was proved before; ``address`` is for people. Returns why it ended;
        cancelling ends it.
        """
        self._sessions_count += 1
        visit = _Visit(self, host, self._sessions_count, address)
        session = Session(channel, read_host_frame)
        try:
            return await session.converse(visit.lead)
        finally:
            place = self._places.get(host)
            if place is not None:
                self.advance(host, place, m.Parted(visit.number))
            if session.ended != f"refused: {IN_USE}":  # that is told more seldom, and in words
                self.log("host_session_ended", host=host, why=session.ended)


@attrs.define(eq=False)
class _Visit:
    """One session, as the server leads it."""

    server: LinkServer
    host: HostId
    number: int
    address: str
    synced: bool = False
    renewing: bool = False

    async def lead(self, session: Session[HostFrame]) -> None:
        hello = await session.receive(within_s=GREETING_S)
        if not isinstance(hello, Hello):
            raise BadFrame(f"{hello.kind} instead of a greeting")
        greeting = m.negotiate(
            protocol=hello.protocol,
            host_version=hello.version,
            server_version=self.server.version,
        )
        if greeting.code is not None:
            await self._refuse(session, greeting.code, greeting.message)
        publication = from_wire(HostPublication, hello.publication)
        await self._check(session, publication)
        await self._check_rival(session, hello)
        place = self._welcome(session, hello, publication, greeting.compatibility)
        session.start_soon(self._watch, session, place)
        self._sync(session, place)
        await session.listen(
            lambda frame: self._take(session, place, hello, frame),
            silent_s=self.server.silence.lost_after_s,
        )

    async def _check(self, session: Session[HostFrame], publication: HostPublication) -> None:
        """It may have been revoked since its certificate was looked at."""
        record = self.server.directory.record(self.host)
        if record is None:
            message = f"this server knows no host {self.host}"
            await self._refuse(session, "host_unknown", message)
        elif record.state is HostState.REVOKED:
            refused = record_refusal(record, None)
            assert refused is not None
            await self._refuse(session, refused.code, refused.message)
        elif publication.shape.host != self.host:
            message = f"the host calls itself {publication.shape.host}, and is {self.host}"
            await self._refuse(session, "host_mismatch", message)
        elif (problem := publication_problem(publication)) is not None:
            message = f"what the host publishes of itself makes no sense: {problem}"
            await self._refuse(session, "host_publication_invalid", message)
        elif record.publication is not None:
            changed = other_machine(record.publication.shape, publication.shape)
            if changed is not None:
                await self._refuse(session, "device_policy_mismatch", changed)

    async def _check_rival(self, session: Session[HostFrame], hello: Hello) -> None:
        place = self.server.expect(self.host)
        if m.is_rivalled(place.standing, hello.epoch, trio.current_time()):
            self.server.note_rival(self.host, place, self.address)
            await self._refuse(session, IN_USE, in_use(self.host, place.address))

    async def _refuse(self, session: Session[HostFrame], code: str, message: str) -> NoReturn:
        session.post_last(Refused(code=code, message=message), f"refused: {code}")
        await trio.sleep_forever()

    def _welcome(
        self,
        session: Session[HostFrame],
        hello: Hello,
        publication: HostPublication,
        compatibility: Compatibility,
    ) -> Place:
        server = self.server
        remote = server.open_host(self.host, publication)
        remote.publication = publication
        place = server.expect(self.host)
        server.advance(self.host, place, m.Greeted(self.number, hello.epoch, trio.current_time()))
        place.session, place.compatibility = session, compatibility
        place.address = self.address
        session.post(
            Welcome(
                protocol=m.PROTOCOL,
                version=server.version,
                compatibility=compatibility.value,
                heartbeat_s=server.heartbeat_s,
                silent_s=server.silence.suspend_after_s,
            )
        )
        return place

    def _sync(self, session: Session[HostFrame], place: Place) -> None:
        """Say what is known here, as it is at this very moment."""
        assert place.remote is not None
        known = place.remote.launches(self.server.directory.known_launches(self.host))
        records = [to_wire(record) for record in known]
        calls = place.remote.calls.open_ids
        for start in range(0, max(1, len(records)), SYNC_LAUNCHES_COUNT):
            end = start + SYNC_LAUNCHES_COUNT
            more = end < len(records)
            some = records[start:end]
            session.post(Sync(launches=some, calls=[] if more else calls, more=more))

    async def _watch(self, session: Session[HostFrame], place: Place) -> None:
        assert place.remote is not None
        until_s = trio.current_time() + SYNC_S
        while self.synced or trio.current_time() < until_s:
            session.post_beat(place.remote.watch())
            await trio.sleep(self.server.heartbeat_s)
        session.close(f"the host did not answer the sync within {SYNC_S:g} s")

    def _take(
        self, session: Session[HostFrame], place: Place, hello: Hello, frame: HostFrame
    ) -> None:
        server, remote = self.server, place.remote
        assert remote is not None
        now_s = trio.current_time()
        match frame:
            case Heartbeat():
                server.advance(self.host, place, m.Heard(self.number, now_s))
                server.events.sampled(self.host, remote.take_heartbeat(frame))
            case Synced() if not self.synced:
                self.synced = True
                remote.attach(session, hello, frame)
                server.advance(self.host, place, m.Agreed(self.number, now_s))
            case Result() | Error() | Progress() if self.synced:
                server.advance(self.host, place, m.Heard(self.number, now_s))
                remote.calls.take(frame)
            case Published() if self.synced:
                remote.publication = self._same_machine(remote, frame)
                server.tell_online(self.host, place, fresh=False)
            case Renew() if self.synced and not self.renewing:
                self.renewing = True
                session.start_soon(self._renew, session, frame)
            case _:
                raise BadFrame(f"{frame.kind} out of place")

    def _same_machine(self, remote: RemoteHost, frame: Published) -> HostPublication:
        found = from_wire(HostPublication, frame.publication)
        shape = found.shape
        if shape.host != self.host or other_machine(remote.publication.shape, shape) is not None:
            raise BadFrame("published is of another machine than the greeting was")
        problem = publication_problem(found)
        if problem is not None:
            raise BadFrame(f"published makes no sense: {problem}")
        return found

    async def _renew(self, session: Session[HostFrame], asked: Renew) -> None:
        session.post(await answer_renewal(self.server.renew, self.host, asked))
        self.renewing = False


def in_use(host: HostId, address: str) -> str:
    """For whoever comes second with the identity of a host."""
    where = f" from {address}" if address else ""
    return (
        f"another process is connected as this host ({host}){where}: two machines have one "
        "identity, as after a copy of a state directory. On the one that is not the host, end "
        "capyctl and move its `identity` folder away; then let it join under a name of its own"
    )
