"""Worlds with several hosts: as those with one, over a link that breaks, with changes of hosts."""

from __future__ import annotations

import random

import attrs
import trio

from actors import ActorGone, AskTimedOut, MailboxFull, ask
from capyctl.control.directory import Directory
from capyctl.control.sessions import SessionState
from capyctl.domain.errors import Refused
from capyctl.domain.hosts import HostRecord, HostState, Invitation
from capyctl.domain.ids import HostId
from capyctl.domain.specs import DeploymentSpec
from capyctl.machines.deployment import Deployment
from capyctl.machines.fitting import named_hosts
from capyctl.messages.hosts import (
    ActOnHost,
    DrainHost,
    EnrolHost,
    InviteHost,
    RevokeHost,
    UndrainHost,
)
from capyctl.simulation.faults import Faults, draw_fleet_faults
from capyctl.simulation.fleet import Fleet
from capyctl.simulation.host_process import HostProcess
from capyctl.simulation.operator import ASK_S, UNKNOWN, Operator, Sent
from capyctl.simulation.outside import Outside
from capyctl.simulation.run import POLL_S, SETTLE_S_MAX, Simulation
from capyctl.simulation.seeding import part
from capyctl.simulation.session import Session

HOSTS_COUNT = 3
INVITED_MS = 900_000
IN_USE_COUNT = 4
"""Looks in a row at which every host is in use."""
_CHANGES: dict[type[DrainHost | UndrainHost | RevokeHost], int] = {
    DrainHost: 5,
    UndrainHost: 5,
    RevokeHost: 1,
}


class FleetOperator(Operator):
    """Also changes hosts, and lets models run on some of them only."""

    hosts: tuple[HostProcess, ...] = ()

    def draw(self, directory: Directory) -> Sent | None:
        if directory.hosts and self.chance.random() < 0.08:
            kinds, weights = zip(*_CHANGES.items(), strict=True)
            kind = self.chance.choices(kinds, weights)[0]
            return self.keep(self.host_change(kind, self.chance.choice(list(directory.hosts))))
        return super().draw(directory)

    def host_change(self, kind: type[DrainHost | UndrainHost | RevokeHost], host: HostId) -> Sent:
        message: ActOnHost = kind(host=host, receipt=self.receipt(f"hosts:{host}"))
        return Sent(target=None, message=message)

    def spec(self, name: str) -> DeploymentSpec:
        drawn = super().spec(name)
        allowed: tuple[str, ...] = ()
        if self.chance.random() < 0.3:
            some = self.chance.sample(self.hosts, self.chance.randint(1, len(self.hosts)))
            allowed = tuple(sorted(host.name for host in some))
        return attrs.evolve(drawn, allowed_hosts=allowed)


class FleetSimulation(Simulation):
    """``FleetSimulation(seed).run()`` is all that is needed to see a failure again."""

    outside: Fleet

    def __init__(
        self, seed: int, *, hosts_count: int = HOSTS_COUNT, faults: Faults | None = None
    ) -> None:
        drawn = draw_fleet_faults(part(seed, "fleet")) if faults is None else faults
        super().__init__(seed, faults=drawn)
        self._hosts_count = hosts_count
        self._recovering: set[HostId] = set()

    def make_operator(self, chance: random.Random) -> Operator:
        return FleetOperator(chance, self.clock, self.ids)

    def make_outside(self, nursery: trio.Nursery) -> Outside:
        fleet = Fleet(
            self._hosts_count,
            self.chance,
            self.faults,
            nursery,
            self.checks,
            self.clock,
            self.ids,
        )
        assert isinstance(self.operator, FleetOperator)
        self.operator.hosts = tuple(fleet.hosts.values())
        return fleet

    async def begin(self) -> None:
        for host in self.outside.hosts.values():
            while host.id not in self.disk.hosts:
                await self._enrol(host, recovers=False)
        self.outside.start()

    async def _enrol(self, host: HostProcess, *, recovers: bool) -> bool:
        """Invite it and let it join; False when a server ended meanwhile, or it was refused."""
        session = await self.daemon()
        assert session.control.hosts is not None
        invitation = Invitation(
            id=self.ids.ulid(),
            host_name=host.name,
            secret_digest="0" * 64,
            expires_at_ms=self.clock.wall_ms() + INVITED_MS,
            recover=host.id if recovers else None,
        )
        invite = InviteHost(invitation=invitation, receipt=self.operator.receipt("invitations"))
        record = HostRecord(
            id=host.id, name=host.name, certificates=(f"{host.certificate}+",), enrolled_at_ms=1
        )
        try:
            await ask(session.control.hosts, invite, within_s=ASK_S)
        except (Refused, ActorGone, AskTimedOut, MailboxFull):
            await trio.sleep(1)
            return False
        host.joining = EnrolHost(
            invitation=invitation.id, host=record, key_digest=record.certificates[0]
        )
        for _ in range(2):  # whoever joins may ask again
            await self._join(host)
        return host.certificate == record.certificates[0]

    async def _join(self, host: HostProcess) -> None:
        """Use the invitation, as often as it takes."""
        session, joining = await self.daemon(), host.joining
        assert session.control.hosts is not None
        if joining is None:
            return
        try:
            known = await ask(session.control.hosts, joining, within_s=ASK_S)
        except Refused as refused:
            self.checks.note(f"{host.name} does not join: {refused!r}")
            await trio.sleep(1)
        except (ActorGone, AskTimedOut, MailboxFull):
            await trio.sleep(1)
        else:
            if known.certificates == joining.host.certificates:
                host.admit(known.certificates[0])

    # -- unkind ------------------------------------------------------------------------------

    def something(self, session: Session) -> None:
        super().something(session)
        for host in self.outside.hosts.values():
            record = self.disk.hosts[host.id]
            revoked = record.state is HostState.REVOKED
            if revoked and self.script.random() < 0.1 and host.id not in self._recovering:
                session.clients.start_soon(self._recover, host)

    async def _recover(self, host: HostProcess) -> None:
        self._recovering.add(host.id)
        try:
            await self._enrol(host, recovers=True)
        finally:
            self._recovering.discard(host.id)

    def look(self) -> None:
        super().look()
        session = self.session
        if session is None:
            return
        for host in self.outside.hosts.values():
            known = session.world.sessions.of(host.id)
            if known is None or known.state is not SessionState.ONLINE:
                continue
            self.checks.no_strays(host.machine, known.since_s)

    # -- kind --------------------------------------------------------------------------------

    async def settle(self) -> None:
        """Every host is whole, admitted, in use, and in touch; and still so once the last changes
        that were sent before are accepted."""
        self.outside.calm()
        in_use_count = 0
        for _ in range(int(SETTLE_S_MAX / POLL_S)):
            session = await self.daemon()
            in_use_count = in_use_count + 1 if await self._all_in_use(session) else 0
            if in_use_count == IN_USE_COUNT:
                return
            await trio.sleep(POLL_S)
        self.fail(f"not every host comes back: {self._states()}")

    async def _all_in_use(self, session: Session) -> bool:
        for host in self.outside.hosts.values():
            record = session.directory.hosts[host.id]
            if record.state is HostState.REVOKED:
                await self._enrol(host, recovers=True)
                return False
            if host.certificate not in record.certificates:
                await self._join(host)
                return False
            if record.draining:
                assert isinstance(self.operator, FleetOperator)
                sent = self.operator.host_change(UndrainHost, host.id)
                if await self.operator.send(session.desk, sent) not in ("accepted", UNKNOWN):
                    self.fail(f"{host.name} is not undrained")
                return False
            if session.world.sessions.state(host.id) is not SessionState.ONLINE:
                return False
        return True

    def _states(self) -> list[str]:
        session = self.session
        if session is None:
            return ["no server"]
        return [
            f"{host.name} {host.certificate}: {session.world.sessions.state(host.id).value}, "
            f"{self.disk.hosts[host.id].state.value}, {self.disk.hosts[host.id].certificates}"
            for host in self.outside.hosts.values()
        ]

    def fits(self, deployment: Deployment) -> bool:
        able = named_hosts(deployment.spec, self.disk.hosts.values())
        same = any(not self._differs(record.id) for record in able)
        return same and super().fits(deployment)

    def _differs(self, host: HostId) -> bool:
        return self.outside.hosts[host].machine.differs
