"""Several hosts and the server they dial: the real link between them, over wires that break."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence

import attrs
import trio

from capyctl.control.directory import Directory
from capyctl.control.hearing import Hearing, OnRecord
from capyctl.control.recover import ControlPlane, Reach
from capyctl.control.surroundings import World
from capyctl.domain.devices import MachineShape
from capyctl.domain.hosts import HostState
from capyctl.domain.ids import HostId, InstanceId
from capyctl.domain.specs import ModelTask
from capyctl.gates.lease import Lease
from capyctl.link.channel import Channel
from capyctl.link.dial import DialFailed
from capyctl.link.server import LinkServer
from capyctl.machines.link import Silence
from capyctl.simulation.checks import Checks
from capyctl.simulation.engine import Engine
from capyctl.simulation.faults import Faults
from capyctl.simulation.host_process import VERSION, HostProcess
from capyctl.simulation.machine import draw_shape
from capyctl.simulation.names import WorldClock, WorldIds
from capyctl.simulation.outside import Attached
from capyctl.simulation.sim_host import SimHost

HEARTBEAT_S = 8.0
"""Each costs as much as a commit, and worlds are long; silence is measured in the same scale."""
SILENCE = Silence(suspend_after_s=20.0, lost_after_s=60.0)
_DAMAGES = ("cut", "cut", "deaf here", "deaf there", "stuck")


class NoEvents:
    """Implements `contracts.hosts.HostEvents` until the control plane runs."""

    def online(self, *_: object, **__: object) -> None: ...

    def suspended(self, *_: object) -> None: ...

    def lost(self, *_: object) -> None: ...

    def sampled(self, *_: object) -> None: ...


@attrs.define(eq=False, kw_only=True)
class Server:
    """One daemon's side of the link."""

    link: LinkServer
    directory: Directory
    nursery: trio.Nursery | None = None
    """None until it listens, and once it is no more."""

    def accept(self, host: HostId, certificate: str, channel: Channel) -> None:
        """As TLS would: only a certificate that is good gets in."""
        if self.nursery is None:
            raise DialFailed("connection refused")
        record = self.directory.hosts.get(host)
        if record is None or certificate not in record.certificates:
            raise DialFailed("the certificate is of another one", code="host_identity_superseded")
        if record.state is HostState.REVOKED:
            raise DialFailed("the certificate is revoked", code="host_revoked")
        self.nursery.start_soon(self.link.attend, host, channel)


class Fleet:
    """Implements `outside.Outside`. Hosts outlive servers, and machines outlive both."""

    def __init__(
        self,
        count: int,
        chance: random.Random,
        faults: Faults,
        nursery: trio.Nursery,
        checks: Checks,
        clock: WorldClock,
        ids: WorldIds,
    ) -> None:
        self._nursery = nursery
        self._chance = chance
        self._clock = clock
        self._ids = ids
        self._checks = checks
        self.server: Server | None = None
        self.faults = faults
        self.hosts = {host.id: host for host in map(self._make, range(count))}

    def _make(self, number: int) -> HostProcess:
        id = HostId(self._ids.ulid())
        shape = draw_shape(self._chance, id)
        machine = SimHost(
            shape, self._chance, self.faults, self._nursery, self._checks.engine_changed
        )
        machine.differs = self._chance.random() < self.faults.digest_differs_chance
        return HostProcess(
            id=id,
            name=f"gpu-{'abcdefgh'[number]}",
            machine=machine,
            certificate=f"{number}/1",
            ids=self._ids,
            chance=self._chance,
            accept=self.accept,
            note=self._checks.note,
            faults=self.faults,
        )

    @property
    def machines(self) -> Sequence[SimHost]:
        return [host.machine for host in self.hosts.values()]

    @property
    def shapes(self) -> Mapping[HostId, MachineShape]:
        return {host.id: host.machine.machine for host in self.hosts.values()}

    def accept(self, host: HostId, certificate: str, channel: Channel) -> None:
        if self.server is None:
            raise DialFailed("connection refused")
        self.server.accept(host, certificate, channel)

    def start(self) -> None:
        """Every host's daemon, and what befalls it."""
        for host in self.hosts.values():
            self._nursery.start_soon(host.run)
            self._nursery.start_soon(self._trouble, host)
            self._nursery.start_soon(self._end_daemons, host)

    def calm(self) -> None:
        """Wires are whole from now on, and nobody is killed any more."""
        self.faults = Faults()
        for host in self.hosts.values():
            host.faults = Faults()
            host.partitioned = False
            if host.wire is not None:
                host.wire.cut()

    # -- one server's life -------------------------------------------------------------------

    def attach(self, directory: Directory) -> Attached:
        link = LinkServer(
            directory=OnRecord(directory=directory),
            events=NoEvents(),
            clock=self._clock,
            ids=self._ids,
            version=VERSION,
            silence=SILENCE,
            heartbeat_s=HEARTBEAT_S,
            look_s=HEARTBEAT_S / 2,
            routes=lambda family, task: frozenset({_route(task)}),
            log=lambda event, **fields: self._checks.note(f"link {event} {fields}"),
        )
        server = Server(link=link, directory=directory)

        async def begin(control: ControlPlane, world: World, nursery: trio.Nursery) -> None:
            assert control.hosts is not None
            link.events = Hearing(
                world=world, hosts=control.hosts, placement=control.placement, kept=_forget
            )
            nursery.start_soon(link.run)
            server.nursery = nursery
            self.server = server

        def leave() -> None:
            server.nursery = None
            if self.server is server:
                self.server = None

        return Attached(
            hosts=link.hosts,
            own_host=None,
            reach=Reach(open_host=link.open_host, close_session=link.dismiss),
            find=self.find,
            begin=begin,
            leave=leave,
        )

    def find(self, lease: Lease) -> Engine | None:
        way = lease.endpoint.ingress
        return None if way is None else self.hosts[way.host].find(lease)

    # -- what goes wrong ---------------------------------------------------------------------

    async def _trouble(self, host: HostProcess) -> None:
        while self.faults.link_every_s > 0:
            await trio.sleep(self._chance.expovariate(1 / self.faults.link_every_s))
            if self.faults.link_every_s <= 0:
                return
            down_s = self._chance.uniform(0.0, self.faults.link_down_max_s)
            if self._chance.random() < 0.4:
                host.partitioned = True
                host.damage(self._chance.choice(_DAMAGES))
                await trio.sleep(down_s)
                host.partitioned = False
            else:
                kind = self._chance.choice(_DAMAGES)
                host.damage(kind)
                await trio.sleep(down_s)
                if kind == "stuck":
                    host.damage("free")

    async def _end_daemons(self, host: HostProcess) -> None:
        while self.faults.host_kills_every_s > 0:
            await trio.sleep(self._chance.expovariate(1 / self.faults.host_kills_every_s))
            if self.faults.host_kills_every_s > 0:
                host.machine.clock_s += self._chance.choice([0.0, 0.0, 7200.0, -7200.0])
                host.kill(reboot=self._chance.random() < 0.25)


def _route(_: ModelTask) -> str:
    return "/v1/chat/completions"


def _forget(_: InstanceId, __: object) -> None:
    return
