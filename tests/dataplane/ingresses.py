"""A host's ingress before scripted engines, and a server's plane that reaches them through it."""

import contextlib
import socket
import ssl
from collections.abc import AsyncIterator, Callable

import trio

from capyctl.dataplane.ingress import INGRESS_LIMITS, Ingress
from capyctl.dataplane.listener import serve
from capyctl.dataplane.plane import Limits
from capyctl.dataplane.tls import HostTls, ListenerTls
from capyctl.domain.ids import HostId, InstanceId, LaunchId
from capyctl.domain.launches import Endpoint, IngressPass
from capyctl.gates.gate import Gate
from tests.dataplane import certificates
from tests.dataplane.engines import DEPLOYMENT, FakeEngine, HttpClient, Script, World

SERVER = "server.test"
HOST = HostId("host1.test")


def launch(index: int) -> LaunchId:
    return LaunchId(f"01J0000000000000000000000{index}")


class Machine:
    """One machine: its ingress, its engines, and whom it accepts."""

    def __init__(
        self,
        name: HostId,
        *,
        shown: certificates.Shown | None,
        secure: bool,
        limits: Limits,
        tls: ListenerTls | None = None,
    ) -> None:
        self.name = name
        self.accepted = {SERVER}
        self.bugs: list[Exception] = []
        if tls is None:
            context = certificates.listening(certificates.ours(), shown or certificates.of(name))
            tls = ListenerTls(context=lambda: context, accepts=self._accepts)
        self.ingress = Ingress(tls=tls if secure else None, on_bug=self.bugs.append, limits=limits)
        self.secure = secure
        self.port = 0

    def _accepts(self, session: ssl.SSLObject) -> bool:
        return certificates.peer_name(session) in self.accepted

    def endpoint(self, index: int, *, generation: int = 1) -> Endpoint:
        return Endpoint(
            host="127.0.0.1",
            port=self.port,
            key=None,
            served_name="m",
            ingress=IngressPass(
                host=self.name, launch=launch(index), generation=generation, secure=self.secure
            ),
        )


class Site(World):
    """A server's plane; each engine is an instance of ``m`` on a machine of its own."""

    def __init__(self, nursery: trio.Nursery, limits: Limits, **plane_fields: object) -> None:
        super().__init__(nursery, limits, **plane_fields)
        self.machines: list[Machine] = []
        self.gates: list[Gate] = []

    async def add_machine(
        self,
        script: Script,
        *,
        name: HostId | None = None,
        shown: certificates.Shown | None = None,
        secure: bool = True,
        where: socket.socket | None = None,
        limits: Limits = INGRESS_LIMITS,
        tls: ListenerTls | None = None,
    ) -> Machine:
        engine = FakeEngine(script)
        await self.nursery.start(engine.serve)
        self.engines.append(engine)
        index = len(self.machines)
        named = name or HostId(f"host{index + 1}.test")
        machine = Machine(named, shown=shown, secure=secure, limits=limits, tls=tls)
        listening = where or ("127.0.0.1", 0)
        _, machine.port = await self.nursery.start(machine.ingress.serve, listening)
        machine.ingress.launches.open(launch(index), engine.endpoint, generation=1)
        self.machines.append(machine)
        self.add_gate(machine.endpoint(index))
        return machine

    def add_gate(self, endpoint: Endpoint) -> Gate:
        gate = Gate(InstanceId(DEPLOYMENT, len(self.gates)))
        self.gates.append(gate)
        self.admission.add_gate(gate)
        gate.open_for(endpoint, 1)
        return gate


def hosts_tls(shown: certificates.Shown | None = None) -> HostTls:
    """How the server meets hosts here: by the name in their certificate."""
    context = certificates.calling(certificates.ours(), shown or certificates.of(SERVER))
    return HostTls(
        context=lambda: context,
        name=str,
        accepts=lambda session, host: certificates.peer_name(session) == host,
    )


@contextlib.asynccontextmanager
async def site(
    *scripts: Script,
    limits: Limits | None = None,
    tls: HostTls | None = None,
    secure: bool = True,
    **plane_fields: object,
) -> AsyncIterator[Site]:
    """A server's plane with one machine for each script."""
    async with trio.open_nursery() as nursery:
        made = Site(nursery, limits or Limits(), hosts_tls=tls or hosts_tls(), **plane_fields)
        made.route("m")
        for script in scripts:
            await made.add_machine(script, secure=secure)
        _, made.port = await nursery.start(serve, ("127.0.0.1", 0), made.plane)
        try:
            yield made
            for machine in made.machines:
                assert machine.bugs == []
        finally:
            for stream in made.streams:
                stream.socket.close()
            nursery.cancel_scope.cancel()


async def call(
    machine: Machine,
    shown: certificates.Shown | None,
    *,
    change: Callable[[ssl.SSLContext], None] | None = None,
    tcp: trio.socket.SocketType | None = None,
) -> trio.SSLStream:
    """A TLS connection of one's own to an ingress."""
    context = certificates.calling(certificates.ours(), shown)
    if change is not None:
        change(context)
    if tcp is not None:
        stream = trio.SocketStream(tcp)
    else:
        stream = await trio.open_tcp_stream("127.0.0.1", machine.port)
    return trio.SSLStream(stream, context, server_hostname=machine.name)


def http(stream: trio.SSLStream) -> HttpClient:
    return HttpClient(stream)


def passed(body: bytes, *, index: int = 0, generation: object = 1, headers: tuple = ()) -> bytes:
    """A request as a server sends it to an ingress."""
    lines = [
        "POST /v1/chat/completions HTTP/1.1",
        "Host: test",
        "Content-Type: application/json",
        f"Content-Length: {len(body)}",
        f"x-capyctl-launch: {launch(index)}",
        f"x-capyctl-generation: {generation}",
        *headers,
    ]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body
