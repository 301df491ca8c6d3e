"""What one daemon of a world is connected to: the one machine that it runs on, or a fleet."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Protocol

import attrs
import trio

from actors import ChildSpec
from capyctl.contracts.host import Host
from capyctl.control.directory import Directory
from capyctl.control.recover import ControlPlane, Reach
from capyctl.control.sampler import SamplerActor
from capyctl.control.surroundings import World
from capyctl.domain.devices import MachineShape
from capyctl.domain.ids import HostId
from capyctl.gates.lease import Lease
from capyctl.simulation.engine import Engine
from capyctl.simulation.machine import HOST
from capyctl.simulation.sim_host import HostDoor, SimHost


@attrs.frozen(kw_only=True)
class Attached:
    """One daemon's connections, from its start to its end."""

    hosts: Mapping[HostId, Host]
    own_host: HostId | None
    reach: Reach | None
    find: Callable[[Lease], Engine | None]
    """Where a request gets to under a lease."""
    begin: Callable[[ControlPlane, World, trio.Nursery], Awaitable[None]]
    """Once the control plane runs."""
    leave: Callable[[], None]
    """The daemon is no more."""


class Outside(Protocol):
    @property
    def machines(self) -> Sequence[SimHost]: ...

    @property
    def shapes(self) -> Mapping[HostId, MachineShape]: ...

    def attach(self, directory: Directory) -> Attached: ...


@attrs.frozen
class OneMachine:
    """A standalone daemon's. Implements `Outside`."""

    host: SimHost
    sample_period_s: float = 1.0

    @property
    def machines(self) -> Sequence[SimHost]:
        return [self.host]

    @property
    def shapes(self) -> Mapping[HostId, MachineShape]:
        return {HOST: self.host.machine}

    def attach(self, directory: Directory) -> Attached:
        door = HostDoor(self.host)
        return Attached(
            hosts={HOST: door},
            own_host=HOST,
            reach=None,
            find=self._find,
            begin=self._begin,
            leave=door.leave,
        )

    def _find(self, lease: Lease) -> Engine:
        engines = self.host.engines.values()
        return next(e for e in engines if e.record.port == lease.endpoint.port)

    async def _begin(self, control: ControlPlane, world: World, _: trio.Nursery) -> None:
        def make() -> SamplerActor:
            return SamplerActor(
                world,
                placement=control.placement,
                host=HOST,
                kept=lambda *_: None,
                period_s=self.sample_period_s,
            )

        await control.system.start_child(ChildSpec(name="sampler", make=make))
