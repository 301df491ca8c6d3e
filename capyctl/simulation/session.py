"""One life of the daemon in a world: the real control plane over the simulated outside."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import attrs
import trio

from actors import Failure, Observer
from capyctl.control.directory import Directory
from capyctl.control.recover import ControlPlane, open_control
from capyctl.control.surroundings import World
from capyctl.control.telling import TellingStore
from capyctl.machines.idling import IdlePolicy
from capyctl.simulation.checks import Checks
from capyctl.simulation.courier import Courier
from capyctl.simulation.faults import Faults
from capyctl.simulation.machine import WorldResolver
from capyctl.simulation.names import WorldClock, WorldIds
from capyctl.simulation.operator import Desk
from capyctl.simulation.outside import Attached, Outside
from capyctl.simulation.requests import Requests
from capyctl.simulation.sim_store import Disk, FailingActors, SimStore


@attrs.frozen(kw_only=True)
class Lasting:
    """What outlives every daemon of a world."""

    disk: Disk
    outside: Outside
    clock: WorldClock
    ids: WorldIds
    checks: Checks
    chance: random.Random
    idle: IdlePolicy


class Failures(Observer):
    """Every actor that fails by itself is a bug, unless the world made it fail."""

    def __init__(self, checks: Checks) -> None:
        self._checks = checks
        self.ended = False

    def exited(self, name: str, failure: Failure | None) -> None:
        if failure is None or self.ended:
            return
        self._checks.note(f"{name} failed: {failure.type}")
        if failure.type not in ("InjectedFailure", "RestartsExceeded"):
            self._checks.fail(f"{failure}\n{failure.traceback}")


@attrs.define(eq=False)
class Session:
    """A daemon that runs."""

    store: SimStore
    attached: Attached
    courier: Courier
    directory: Directory
    world: World
    control: ControlPlane
    desk: Desk
    requests: Requests
    clients: trio.Nursery
    failures: Failures
    failing: FailingActors
    over: trio.Event = attrs.field(factory=trio.Event)

    def end(self) -> None:
        """The process ends here, whatever it was doing."""
        self.store.end()
        self.attached.leave()
        self.courier.closed = True
        self.failures.ended = True
        self.clients.cancel_scope.cancel()
        self.over.set()

    def calm(self) -> None:
        calm = Faults()
        self.store.after = lambda count: None
        self.failing.faults = self.store.faults = self.courier.faults = self.requests.faults = calm


@asynccontextmanager
async def open_session(lasting: Lasting, faults: Faults) -> AsyncIterator[Session]:
    """A daemon from what is stored, until the block is left."""
    disk, checks = lasting.disk, lasting.checks
    stored = disk.load()
    directory = Directory()
    directory.load((*stored.deployments, *stored.instances, *stored.operations))
    directory.load((*stored.hosts, *stored.invitations))
    store = SimStore(
        disk,
        lasting.chance,
        faults,
        now_ms=lasting.clock.wall_ms,
        before=checks.before_commit,
        after=lambda count: None,
    )
    store.listen(directory.apply)
    attached = lasting.outside.attach(directory)
    failures = Failures(checks)
    async with trio.open_nursery() as nursery, trio.open_nursery() as clients:
        courier = Courier(lasting.chance, nursery, faults)
        nursery.start_soon(store.run)
        failing = FailingActors(TellingStore(store, directory), lasting.chance, faults)
        world = World(
            store=failing,
            clock=lasting.clock,
            ids=lasting.ids,
            hosts=attached.hosts,
            directory=directory,
            session_epoch=stored.session_epoch,
            log=lambda event, **fields: checks.note(f"log {event} {fields}"),
            tell=courier.tell,
        )
        store.listen(checks.committed(directory))
        resolve = WorldResolver(lasting.outside.shapes)
        try:
            async with open_control(
                world,
                resolve=resolve,
                own_host=attached.own_host,
                reach=attached.reach,
                observer=failures,
                idle=lasting.idle,
            ) as control:
                checks.books = control.books
                await attached.begin(control, world, nursery)
                yield Session(
                    store=store,
                    attached=attached,
                    courier=courier,
                    directory=directory,
                    world=world,
                    control=control,
                    desk=Desk(store, directory, control.catalogue, control.hosts),
                    requests=Requests(
                        directory,
                        attached.find,
                        courier.tell,
                        lasting.chance,
                        faults,
                        checks.lease_taken,
                    ),
                    clients=clients,
                    failures=failures,
                    failing=failing,
                )
        finally:
            checks.books = None
            clients.cancel_scope.cancel()
            nursery.cancel_scope.cancel()
