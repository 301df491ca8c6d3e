"""A server and three hosts over the real link, without faults, for tests of one behaviour."""

from __future__ import annotations

import random
from contextlib import asynccontextmanager

import attrs
import trio

from actors import ask
from capyctl.control.sessions import SessionState
from capyctl.domain.hosts import HostRecord, Invitation
from capyctl.domain.ids import DeploymentId, HostId
from capyctl.machines.idling import IdlePolicy
from capyctl.messages.hosts import DrainHost, EnrolHost, InviteHost, RevokeHost, UndrainHost
from capyctl.simulation.checks import Checks
from capyctl.simulation.engine import Engine
from capyctl.simulation.faults import Faults
from capyctl.simulation.fleet import Fleet
from capyctl.simulation.host_process import HostProcess
from capyctl.simulation.names import WorldClock, WorldIds
from capyctl.simulation.session import Lasting, Session
from capyctl.simulation.sim_store import Disk
from tests.control.worlds import Place, fail

ACTIONS = {"drain": DrainHost, "undrain": UndrainHost, "revoke": RevokeHost}


@attrs.define(eq=False)
class FleetPlace(Place):
    """Where servers can run: hosts, their machines and the disk outlive them."""

    fleet: Fleet = None

    def at(self, name: str) -> HostProcess:
        return next(h for h in self.fleet.hosts.values() if h.name == name)

    def record(self, name: str) -> HostRecord:
        return self.disk.hosts[self.at(name).id]

    async def act_on_host(self, session: Session, action: str, name: str, key=None) -> str:
        host = self.at(name).id
        message = ACTIONS[action](host=host, receipt=key or self.key(f"hosts:{host}"))
        return await ask(session.control.hosts, message, within_s=60.0)

    async def join(self, session: Session, name: str, *, recovers: bool = False) -> None:
        host = self.at(name)
        invitation = Invitation(
            id=self.lasting.ids.ulid(),
            host_name=name,
            secret_digest="0" * 64,
            expires_at_ms=self.lasting.clock.wall_ms() + 1000,
            recover=host.id if recovers else None,
        )
        invite = InviteHost(invitation=invitation, receipt=self.key("invitations"))
        await ask(session.control.hosts, invite, within_s=60.0)
        record = HostRecord(id=host.id, name=name, certificates=(f"{host.certificate}+",))
        enrol = EnrolHost(invitation=invitation.id, host=record, key_digest="k")
        await ask(session.control.hosts, enrol, within_s=60.0)
        host.admit(record.certificates[0])

    async def all_here(self, session: Session) -> None:
        """Every host has joined and is online."""
        for host in self.fleet.hosts.values():
            if host.id not in self.disk.hosts:
                await self.join(session, host.name)
        if not any(host.lives_count for host in self.fleet.hosts.values()):
            self.fleet.start()
        for host in self.fleet.hosts.values():
            await self.until(lambda host=host: self.session_of(session, host.name) == "online")

    def session_of(self, session: Session, name: str) -> str:
        return session.world.sessions.state(self.at(name).id).value

    async def measured(self, session: Session, name: str = "m", **changes) -> DeploymentId:
        """A deployment whose files every host that may run it has measured."""
        id = await self.made(session, name, **changes)
        hosts = self.disk.deployments[id].checkpoint.hosts
        await self.until(lambda: all(f.digest for f in self.disk.deployments[id].checkpoint.hosts))
        assert hosts
        return id

    def where(self, id: DeploymentId, index: int = 0) -> str:
        """Name of the host that an instance holds memory of."""
        host: HostId | None = self.one(id, index).host
        return "nowhere" if host is None else self.fleet.hosts[host].name

    def engine(self, id: DeploymentId, index: int = 0) -> Engine:
        one = self.one(id, index)
        return self.fleet.hosts[one.host].machine.engines[one.launch_id]

    async def is_lost(self, session: Session, name: str) -> None:
        lost = SessionState.LOST.value
        await self.until(lambda: self.session_of(session, name) == lost)


@asynccontextmanager
async def fleet(faults: Faults | None = None):
    """Three hosts with a card of 24 GiB each at least; ends with whatever still runs."""
    faults = faults or Faults()
    chance = random.Random(1)
    disk = Disk()
    checks = Checks(disk, fail)
    clock, ids = WorldClock(), WorldIds()
    async with trio.open_nursery() as nursery:
        hosts = Fleet(3, chance, faults, nursery, checks, clock, ids)
        checks.machines = list(hosts.machines)
        lasting = Lasting(
            disk=disk,
            outside=hosts,
            clock=clock,
            ids=ids,
            checks=checks,
            chance=chance,
            idle=IdlePolicy(),
        )
        yield FleetPlace(
            lasting=lasting, host=hosts.machines[0], disk=disk, faults=faults, fleet=hosts
        )
        nursery.cancel_scope.cancel()
