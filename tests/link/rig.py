"""A server and one host that dials it over wires that a test can damage, in one process."""

from __future__ import annotations

import random
from contextlib import asynccontextmanager

import trio

from capyctl.link.dial import DialFailed, Dialler
from capyctl.link.memory_channel import Wire, open_wire
from capyctl.link.remote import RemoteHost
from capyctl.link.server import LinkServer
from capyctl.link.service import HostService, open_host_service
from tests.link.fakes import (
    HOST,
    PUBLICATION,
    CountedIds,
    FakeDirectory,
    FakeEvents,
    FakeHost,
    FakeMachine,
    FakeOpenings,
    FakeStrays,
    TrioClock,
)

VERSION = "0.1.0"


class Rig:
    """What a test drives. The machine and its engines outlive the host's processes."""

    def __init__(self, nursery: trio.Nursery, *, seed: int = 0) -> None:
        self.nursery = nursery
        self.chance = random.Random(seed)
        self.machine = FakeMachine()
        self.openings = FakeOpenings()
        self.strays = FakeStrays(self.machine)
        self.directory = FakeDirectory()
        self.events = FakeEvents()
        self.logged: list[tuple[str, dict]] = []
        self.changes: list[str | None] = []
        self.wires: list[Wire] = []
        self.network = True
        self.version = VERSION
        self.publication = PUBLICATION
        self.renewing = None
        self.sent_away = None
        self.service: HostService | None = None
        self.processes_count = 0
        self.epochs = CountedIds("E")
        self._host_scope = trio.CancelScope()
        self._process: FakeHost | None = None
        self._server_scope = trio.CancelScope()
        self._servers_count = 0
        self.start_server()

    def log(self, event: str, **fields: object) -> None:
        self.logged.append((event, fields))

    @property
    def wire(self) -> Wire:
        return self.wires[-1]

    @property
    def remote(self) -> RemoteHost:
        return self.server.open_host(HOST, PUBLICATION)

    # -- the server -------------------------------------------------------------------------

    def start_server(self) -> None:
        """A new process of it: it knows what the directory knows."""
        self._servers_count += 1
        self.server = LinkServer(
            directory=self.directory,
            events=self.events,
            clock=TrioClock(),
            ids=CountedIds(f"A{self._servers_count}"),
            version=VERSION,
            routes=lambda family, task: frozenset({f"/{family}/{task.value}"}),
            log=self.log,
        )
        self._server_scope = trio.CancelScope()
        self._attending = None
        self.nursery.start_soon(self._serve, self.server, self._server_scope)

    async def _serve(self, server: LinkServer, scope: trio.CancelScope) -> None:
        with scope:
            async with trio.open_nursery() as self._attending:
                await server.run()

    def kill_server(self) -> None:
        self._server_scope.cancel()
        for wire in self.wires:
            wire.cut()

    # -- the host ---------------------------------------------------------------------------

    @asynccontextmanager
    async def dial(self):
        await trio.sleep(0.01)
        if not self.network or self._attending is None or self._server_scope.cancel_called:
            raise DialFailed("no route")
        wire = open_wire()
        self.wires.append(wire)
        del self.wires[:-8]
        self._attending.start_soon(self.server.attend, HOST, wire.there)
        yield wire.here

    def start_host(self) -> None:
        """A new process of it."""
        self.processes_count += 1
        self._host_scope = trio.CancelScope()
        self._process = FakeHost(self.machine)
        self.nursery.start_soon(self._run_host, self._process, self._host_scope)

    async def _run_host(self, process: FakeHost, scope: trio.CancelScope) -> None:
        with scope:
            async with open_host_service(
                process,
                strays=self.strays,
                publication=self.publication,
                openings=self.openings,
                epoch=self.epochs.ulid(),
                first_generation=self.processes_count * 1000,
                log=self.log,
            ) as self.service:
                dialler = Dialler(
                    service=self.service,
                    dial=self.dial,
                    version=self.version,
                    chance=self.chance.random,
                    log=self.log,
                    changed=self.changes.append,
                    renewing=self.renewing,
                )
                self.sent_away = await dialler.run()

    def kill_host(self) -> None:
        """SIGKILL: engines stay, latches go, nobody is told."""
        self._host_scope.cancel()
        assert self._process is not None
        self._process.process_ended()
        self.openings.open_now.clear()
        for wire in self.wires:
            wire.cut()

    async def live(self, count: int = 1) -> None:
        """Until the server told so often that the host is online."""
        await self.events.wait("online", count)


@asynccontextmanager
async def open_rig(*, started: bool = True, seed: int = 0):
    """A rig whose host is live, unless it shall not be started yet."""
    async with trio.open_nursery() as nursery:
        rig = Rig(nursery, seed=seed)
        if started:
            rig.start_host()
            await rig.live()
        yield rig
        nursery.cancel_scope.cancel()
