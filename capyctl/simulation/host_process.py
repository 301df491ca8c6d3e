"""One host of a fleet: its machine, the daemon on it that comes and goes, and its wire."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator, Callable, Collection
from contextlib import asynccontextmanager

import attrs
import trio

from capyctl.domain.hosts import HostPublication, IngressAddress
from capyctl.domain.ids import HostId, LaunchId
from capyctl.domain.launches import Endpoint
from capyctl.gates.lease import Lease
from capyctl.link.channel import Channel
from capyctl.link.dial import DialFailed, Dialler
from capyctl.link.memory_channel import Wire, open_wire
from capyctl.link.service import open_host_service
from capyctl.machines.link import CAPABILITIES
from capyctl.messages.hosts import EnrolHost
from capyctl.simulation.engine import Engine, EngineState
from capyctl.simulation.faults import Faults
from capyctl.simulation.names import WorldIds
from capyctl.simulation.sim_host import HostDoor, SimHost

VERSION = "0.1.0"
Accept = Callable[[HostId, str, Channel], None]
"""Takes a host's channel, under its certificate. Raises `DialFailed`."""


@attrs.define(eq=False)
class SimIngress:
    """Which launches requests get through to. Implements `contracts.hosts.Openings`."""

    opened: dict[LaunchId, int] = attrs.field(factory=dict)

    def open(self, launch: LaunchId, endpoint: Endpoint, *, generation: int) -> None:
        self.opened[launch] = generation

    def close(self, launch: LaunchId) -> None:
        self.opened.pop(launch, None)


@attrs.frozen
class SimStrays:
    """Implements `contracts.hosts.Strays`: looks at what runs."""

    door: HostDoor

    async def end_others(self, keep: Collection[LaunchId]) -> frozenset[LaunchId]:
        strays = [e for e in self.door.host.alive if e.record.launch not in keep]
        async with trio.open_nursery() as nursery:
            for engine in strays:
                nursery.start_soon(self._end, engine)
        return frozenset(engine.record.launch for engine in strays)

    async def _end(self, engine: Engine) -> None:
        if engine.state is EngineState.LATCHED:
            await self.door.discard(engine.record)
            return
        while engine.state is not EngineState.GONE:
            await self.door.end(engine.record, grace_s=15.0, idle_s=0.0)


@attrs.define(eq=False, kw_only=True)
class HostProcess:
    """Outlives daemons: the machine and its engines do. `run` lives one daemon after the other."""

    id: HostId
    name: str
    machine: SimHost
    certificate: str
    ids: WorldIds
    chance: random.Random
    accept: Accept
    note: Callable[[str], None]
    faults: Faults
    ingress: SimIngress | None = None
    """Of the daemon that runs; None while none does."""
    wire: Wire | None = None
    partitioned: bool = False
    """Nothing gets through to the server."""
    lives_count: int = 0
    joining: EnrolHost | None = None
    """How it joined last, or tries to."""
    _scope: trio.CancelScope = attrs.field(factory=trio.CancelScope)
    _door: HostDoor | None = None
    _shown: str = ""
    """The certificate that it dialled with last."""
    _admitted: trio.Event = attrs.field(factory=trio.Event)

    @property
    def publication(self) -> HostPublication:
        return HostPublication(
            shape=self.machine.machine,
            version=VERSION,
            capabilities=tuple(sorted(CAPABILITIES)),
            ingress=IngressAddress(host=self.name, port=8444),
            models_root="/models",
        )

    async def run(self) -> None:
        """A daemon, its end, a pause, and the next one."""
        while True:
            self.lives_count += 1
            self.note(f"{self.name} begins its life {self.lives_count}")
            with trio.CancelScope() as self._scope:
                await self._live()
            down_s = self.chance.uniform(0.0, self.faults.host_down_max_s)
            await trio.sleep(down_s)

    async def _live(self) -> None:
        self._door = door = HostDoor(self.machine)
        self.ingress = SimIngress()
        try:
            async with open_host_service(
                door,
                strays=SimStrays(door),
                publication=self.publication,
                openings=self.ingress,
                epoch=self.ids.ulid(),
                first_generation=self.chance.randrange(1 << 30),
                log=self._log,
            ) as service:
                dialler = Dialler(
                    service=service,
                    dial=self._dial,
                    version=VERSION,
                    chance=self.chance.random,
                    log=self._log,
                )
                refused = await dialler.run()
            self.note(f"{self.name} was sent away: {refused.code}")
            self._end()
            while self.certificate == self._shown:
                self._admitted = trio.Event()
                await self._admitted.wait()
        finally:
            self._end()

    def _end(self) -> None:
        """The daemon on it is no more; the machine goes on."""
        if self._door is not None:
            self._door.leave()
        self.ingress = None

    def kill(self, *, reboot: bool) -> None:
        """End the daemon, whatever it is doing; with the machine, its engines end as well."""
        self.note(f"{self.name} is {'rebooted' if reboot else 'killed'}")
        self._end()
        if reboot:
            for engine in self.machine.alive:
                self.machine.become(engine, EngineState.GONE)
        if self.wire is not None and not self.partitioned:
            self.wire.cut()
        self._scope.cancel()

    def admit(self, certificate: str) -> None:
        """It joined again, under another certificate, and is started again."""
        self.certificate = certificate
        self._admitted.set()

    def _log(self, event: str, **fields: object) -> None:
        self.note(f"{self.name}: {event} {fields}")

    # -- the way to the server ---------------------------------------------------------------

    @asynccontextmanager
    async def _dial(self) -> AsyncIterator[Channel]:
        await trio.sleep(self.chance.uniform(0.0, 0.3))
        if self.partitioned:
            await trio.sleep(self.chance.uniform(0.0, 3.0))
            raise DialFailed("no route to the server")
        wire = open_wire()
        wire.delay(self.chance.uniform(0.0, self.faults.link_delay_max_s))
        self._shown = self.certificate
        self.accept(self.id, self.certificate, wire.there)
        self.wire = wire
        yield wire.here

    def damage(self, kind: str) -> None:
        """Something happens to the wire, if there is one."""
        self.note(f"{self.name}: its wire is {kind}")
        wire = self.wire
        if wire is None:
            return
        match kind:
            case "cut":
                wire.cut()
            case "deaf here":
                wire.half_open(0)
            case "deaf there":
                wire.half_open(1)
            case "stuck":
                wire.stick(True)
            case "free":
                wire.stick(False)

    def find(self, lease: Lease) -> Engine | None:
        """What a request under this lease gets to through the ingress."""
        way = lease.endpoint.ingress
        if way is None or self.ingress is None or self.partitioned:
            return None
        if self.ingress.opened.get(way.launch) != way.generation:
            return None
        engine = self.machine.engines.get(way.launch)
        return None if engine is None or engine.state is EngineState.GONE else engine
