"""A host that stays in touch with its server: one session after another, until it is sent away."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager

import attrs
import trio

from capyctl.domain.launches import LaunchRecord
from capyctl.link.channel import Channel
from capyctl.link.looking import Looking
from capyctl.link.renewal import Renewing
from capyctl.link.service import HostService
from capyctl.link.session import Session
from capyctl.machines.link import PROTOCOL, redial_pause_s
from capyctl.wire.link import (
    Ack,
    BadFrame,
    Call,
    Cancel,
    Hello,
    Refused,
    Renewed,
    ServerFrame,
    Sync,
    Watch,
    Welcome,
    read_server_frame,
)
from capyctl.wire.link_calls import from_wire, to_wire

GREETING_S = 10.0
SYNC_S = 30.0
LAUNCHES_COUNT_MAX = 65_536
REFUSED_PAUSE_S = 30.0
"""After a refusal that somebody has to mend elsewhere: an upgrade, a server put back."""
BEATS_IN_SILENCE = 3
SOON = frozenset({"host_identity_in_use"})
"""Refusals that may be over in a moment, as where a machine began anew and its old wire is not
known to be dead yet."""
FINAL = frozenset({"host_revoked", "host_identity_superseded"})
"""Refusals that no waiting mends."""

Dial = Callable[[], AbstractAsyncContextManager[Channel]]
"""Opens a channel to the server. Raises `DialFailed`."""


class DialFailed(Exception):
    """The server could not be reached. ``code`` is set where it would not have us."""

    def __init__(self, why: str, *, code: str | None = None) -> None:
        super().__init__(why)
        self.why = why
        self.code = code


@attrs.frozen(kw_only=True)
class Parting:
    """How a session ended."""

    why: str
    agreed: bool
    """It came to an agreement, so the server was there and took us."""
    refused: Refused | None = None


@attrs.define(eq=False)
class _Visit:
    """One session, as the host leads it."""

    service: HostService
    version: str
    log: Callable[..., None]
    changed: Callable[[str | None], None]
    renewing: Renewing | None
    report_s: float | None
    agreed: bool = False
    refused: Refused | None = None

    async def lead(self, session: Session[ServerFrame]) -> None:
        service = self.service
        published = service.publication
        session.post(
            Hello(
                protocol=PROTOCOL,
                version=self.version,
                capabilities=list(published.capabilities),
                epoch=service.epoch,
                publication=to_wire(published),
            )
        )
        welcome = await session.receive(within_s=GREETING_S)
        if isinstance(welcome, Refused):
            self._sent_away(session, welcome)
            return
        if not isinstance(welcome, Welcome):
            raise BadFrame(f"{welcome.kind} instead of a welcome")
        looking = Looking(service, self.log)
        session.start_soon(looking.beat, session, beat_every_s(welcome, self.report_s))
        launches, calls = await self._known_to_server(session)
        session.post(await service.agree(launches, calls))
        try:
            service.attach(session, published)
            self.agreed = True
            self.changed(None)
            if self.renewing is not None:
                session.start_soon(self.renewing.run, session.post)
            await session.listen(
                lambda frame: self._take(session, looking, frame), silent_s=welcome.silent_s
            )
        finally:
            service.detach(session)

    async def _known_to_server(
        self, session: Session[ServerFrame]
    ) -> tuple[list[LaunchRecord], list[str]]:
        launches: list[LaunchRecord] = []
        while True:
            sync = await session.receive(within_s=SYNC_S)
            if isinstance(sync, Refused):
                self._sent_away(session, sync)
                await trio.sleep_forever()
            if isinstance(sync, Watch):
                continue
            if not isinstance(sync, Sync):
                raise BadFrame(f"{sync.kind} before the sync")
            launches += [from_wire(LaunchRecord, record) for record in sync.launches]
            if len(launches) > LAUNCHES_COUNT_MAX:
                raise BadFrame(f"more than {LAUNCHES_COUNT_MAX} launches")
            if not sync.more:
                return launches, sync.calls

    def _take(self, session: Session[ServerFrame], looking: Looking, frame: ServerFrame) -> None:
        match frame:
            case Call():
                self.service.begin(frame)
            case Cancel(id=id):
                self.service.drop(id)
            case Ack(id=id):
                self.service.forget(id)
            case Watch():
                looking.watch = frame
            case Refused():
                self._sent_away(session, frame)
            case Renewed() if self.renewing is not None:
                self.renewing.take(frame)
            case _:
                raise BadFrame(f"{frame.kind} in a session that is agreed")

    def _sent_away(self, session: Session[ServerFrame], refused: Refused) -> None:
        self.refused = refused
        session.close(f"refused: {refused.code}")


def beat_every_s(welcome: Welcome, report_s: float | None) -> float:
    """Between two heartbeats: as the host's document says, and several before the server finds
    it silent; as the server says where the document is silent."""
    if report_s is None:
        return welcome.heartbeat_s
    return min(report_s, welcome.silent_s / BEATS_IN_SILENCE)


async def host_session(
    service: HostService,
    channel: Channel,
    *,
    version: str,
    log: Callable[..., None],
    changed: Callable[[str | None], None] = lambda _: None,
    renewing: Renewing | None = None,
    report_s: float | None = None,
) -> Parting:
    """Lead one session over ``channel``, which is closed afterwards. Calls outlive it."""
    visit = _Visit(service, version, log, changed, renewing, report_s)
    session = Session(channel, read_server_frame)
    why = await session.converse(visit.lead)
    return Parting(why=why, agreed=visit.agreed, refused=visit.refused)


@attrs.define(eq=False, kw_only=True)
class Dialler:
    """How one host stays in touch with its server."""

    service: HostService
    dial: Dial
    version: str
    chance: Callable[[], float]
    """A number from 0 to 1, anew each time: it spreads the dials of many hosts."""
    log: Callable[..., None]
    changed: Callable[[str | None], None] = attrs.field(default=lambda _: None)
    """Told None when a session is agreed, and in a few words why there is none any more."""
    renewing: Renewing | None = None
    report_s: float | None = None
    """`load_report_interval`; None: what the server says."""
    """Keeps this host's certificate current; None where the link needs none."""
    _told: str | None = None

    async def run(self) -> Refused:
        """Dial, lead a session, and dial again, for as long as the server takes this host.

        Returns:
            The refusal after which dialling again is of no use. Cancelling ends the session;
            calls and engines go on for as long as the service is open.
        """
        attempt = 0
        while True:
            parting = await self._visit()
            refused = parting.refused
            if refused is not None and refused.code in FINAL:
                return refused
            self._tell(parting)
            attempt = 0 if parting.agreed else attempt + 1
            pause_s = redial_pause_s(attempt, self.chance())
            if refused is not None and refused.code not in SOON:
                pause_s = REFUSED_PAUSE_S * (0.5 + 0.5 * self.chance())
            await trio.sleep(pause_s)

    async def _visit(self) -> Parting:
        try:
            async with self.dial() as channel:
                return await host_session(
                    self.service,
                    channel,
                    version=self.version,
                    log=self.log,
                    changed=self.changed,
                    renewing=self.renewing,
                    report_s=self.report_s,
                )
        except DialFailed as failed:
            refused = None
            if failed.code is not None:
                refused = Refused(code=failed.code, message=failed.why)
            return Parting(why=failed.why, agreed=False, refused=refused)

    def _tell(self, parting: Parting) -> None:
        """Each reason once, until there was a session again."""
        why = parting.why if parting.refused is None else parting.refused.message
        if parting.agreed or why != self._told:
            self.log("link_down", why=why)
            self.changed(why)
        self._told = why
