"""A daemon's control plane over a simulated outside without faults, for tests of one behaviour."""

from __future__ import annotations

import random
from contextlib import asynccontextmanager

import attrs
import trio

from capyctl.domain.devices import MachineShape
from capyctl.domain.ids import DeploymentId, InstanceId
from capyctl.domain.specs import DeploymentSpec, Residency
from capyctl.machines.idling import IdlePolicy
from capyctl.machines.instance import Instance
from capyctl.messages.catalogue import Create
from capyctl.messages.deployment import Act, ActionKind, ReceiptKey, Replace
from capyctl.simulation.checks import Checks
from capyctl.simulation.faults import Faults
from capyctl.simulation.machine import draw_shape
from capyctl.simulation.names import WorldClock, WorldIds
from capyctl.simulation.operator import Sent
from capyctl.simulation.outside import OneMachine
from capyctl.simulation.session import Lasting, Session, open_session
from capyctl.simulation.sim_host import SimHost
from capyctl.simulation.sim_store import Disk


def fail(problem: str) -> None:
    raise AssertionError(problem)


@attrs.define(eq=False)
class Place:
    """The disk and the machine of a test; daemons come and go on it."""

    lasting: Lasting
    host: SimHost
    disk: Disk
    faults: Faults = attrs.field(factory=Faults)
    keys_count: int = 0

    @asynccontextmanager
    async def daemon(self, faults: Faults | None = None):
        async with open_session(self.lasting, faults or self.faults) as session:
            yield session

    def key(self, scope: str) -> ReceiptKey:
        self.keys_count += 1
        return ReceiptKey(scope=scope, key=f"k{self.keys_count}", fingerprint=f"f{self.keys_count}")

    # -- changes -----------------------------------------------------------------------------

    def create(self, name: str = "m", **changes) -> Sent:
        message = Create(spec=spec(name, **changes), receipt=self.key("create"))
        return Sent(target=None, message=message)

    def replace(self, id: DeploymentId, **changes) -> Sent:
        now = self.disk.deployments[id]
        message = Replace(
            spec=attrs.evolve(now.spec, **changes),
            expected_revision=now.revision,
            receipt=self.key(f"replace:{id}"),
        )
        return Sent(target=id, message=message)

    def act(self, id: DeploymentId, action: ActionKind, **changes) -> Sent:
        deadline_s = changes.pop("deadline_s", 1800.0)
        message = Act(
            action=action,
            instance=changes.pop("instance", None),
            expected_revision=self.disk.deployments[id].revision,
            deadline_at_ms=self.lasting.clock.wall_ms() + round(deadline_s * 1000),
            receipt=self.key(f"actions:{id}"),
            **changes,
        )
        return Sent(target=id, message=message)

    async def made(self, session: Session, name: str = "m", **changes) -> DeploymentId:
        """A deployment whose files are measured."""
        known = set(self.disk.deployments)
        await session.desk.take(self.create(name, **changes))
        (id,) = set(self.disk.deployments) - known
        await self.until(lambda: self.disk.deployments[id].resolved is not None)
        return id

    async def started(self, session: Session, id: DeploymentId, **changes) -> None:
        """All instances of it are ready."""
        await session.desk.take(self.act(id, ActionKind.START, **changes))
        count = self.disk.deployments[id].spec.instances
        await self.until(lambda: [self.state(id, i) for i in range(count)] == ["ready"] * count)

    # -- what is there -----------------------------------------------------------------------

    def one(self, id: DeploymentId, index: int = 0) -> Instance:
        found = InstanceId(id, index)
        return self.disk.instances.get(found) or Instance(id=found)

    def state(self, id: DeploymentId, index: int = 0) -> str:
        return self.one(id, index).state.value

    def kinds(self) -> list[str]:
        return [event.kind for event in self.disk.events]

    async def until(self, holds, within_s: float = 3000.0) -> None:
        """Wait for an effect, in virtual time."""
        with trio.fail_after(within_s):
            while not holds():  # noqa: ASYNC110  (time is virtual, and many things may end it)
                await trio.sleep(0.5)


def spec(name: str, gib: int = 20, **changes) -> DeploymentSpec:
    made = DeploymentSpec(
        name=name,
        routes=(name,),
        profile="p",
        family="vllm",
        instances=1,
        model_path=f"/models/{name}",
        expected_digest=None,
        residency=Residency.DEEP,
        request_deadline_s=1800.0,
        document="{}",
        engine_part=str(gib),
    )
    return attrs.evolve(made, **changes)


def one_card() -> MachineShape:
    """One card of 24 GiB, all of which may be parked on."""
    shapes = (draw_shape(random.Random(seed)) for seed in range(1000))
    return next(
        s for s in shapes if len(s.gpus) == 1 and s.domains[1].parked_limit_bytes > 20 << 30
    )


@asynccontextmanager
async def place(faults: Faults | None = None, shape: MachineShape | None = None):
    """Where daemons can run; ends with whatever still runs on it."""
    faults = faults or Faults()
    chance = random.Random(1)
    disk = Disk()
    checks = Checks(disk, fail)
    async with trio.open_nursery() as nursery:
        host = SimHost(shape or one_card(), chance, faults, nursery, checks.engine_changed)
        checks.machines = [host]
        lasting = Lasting(
            disk=disk,
            outside=OneMachine(host),
            clock=WorldClock(),
            ids=WorldIds(),
            checks=checks,
            chance=chance,
            idle=IdlePolicy(),
        )
        yield Place(lasting=lasting, host=host, disk=disk, faults=faults)
        nursery.cancel_scope.cancel()
