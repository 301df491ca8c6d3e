"""The link over real sockets: TLS with certificates on both sides, a websocket, and its ends."""

from __future__ import annotations

import contextlib
from contextlib import asynccontextmanager
from functools import partial

import attrs
import pytest
import trio

from capyctl.contracts.host import EndOutcome
from capyctl.domain.hosts import HostRecord, HostState
from capyctl.link.channel import ChannelClosed
from capyctl.link.contexts import host_link_context, server_tls_name
from capyctl.link.dial import DialFailed, Dialler
from capyctl.link.server import LinkServer
from capyctl.link.service import open_host_service
from capyctl.link.websocket import PATH, serve_link, websocket_dial
from capyctl.machines.link import Silence
from capyctl.wire.link import (
    FRAME_BYTES_MAX,
    Hello,
    Refused,
    Welcome,
    read_server_frame,
    write_frame,
)
from capyctl.wire.link_calls import to_wire
from tests.link.fakes import (
    PUBLICATION,
    CountedIds,
    FakeDirectory,
    FakeEvents,
    FakeHost,
    FakeMachine,
    FakeStrays,
    TrioClock,
    order,
)
from tests.link.trust import A, authority, machine

pytestmark = pytest.mark.slow
SILENCE = Silence(suspend_after_s=1.0, lost_after_s=3.0)
HERE = attrs.evolve(PUBLICATION, shape=attrs.evolve(PUBLICATION.shape, host=A))


@attrs.define(eq=False)
class Coming:
    """A host that dials, and what sent it away for good."""

    refused: Refused | None = None
    ended: trio.Event = attrs.field(factory=trio.Event)


class Site:
    """A server that listens, and what hosts need to come to it."""

    def __init__(self, tmp_path, nursery: trio.Nursery) -> None:
        self.tmp_path = tmp_path
        self.nursery = nursery
        self.authority = authority(tmp_path / "server")
        self.name = server_tls_name(self.authority.server_id)
        self.identity = machine(tmp_path, self.authority)
        self.record = HostRecord(
            id=A, name="gpu-a", certificates=(self.identity.issued.fingerprint,)
        )
        self.directory = FakeDirectory(records={A: self.record})
        self.events = FakeEvents()
        self.logged: list[tuple[str, dict]] = []
        self.spoken = trio.Event()
        self.machine = FakeMachine()
        self.port = 0
        self.server = LinkServer(
            directory=self.directory,
            events=self.events,
            clock=TrioClock(),
            ids=CountedIds("A"),
            version="0.1.0",
            silence=SILENCE,
            heartbeat_s=0.1,
            routes=lambda family, task: frozenset(),
            log=self.log,
        )

    def log(self, event: str, **fields: object) -> None:
        self.logged.append((event, fields))
        self.spoken.set()
        self.spoken = trio.Event()

    async def said(self, event: str) -> list[str]:
        """The reasons given with this event, once there is one."""
        while not (found := [f.get("why", "") for name, f in self.logged if name == event]):
            await self.spoken.wait()
        return found

    async def open(self) -> None:
        listeners = await trio.open_tcp_listeners(0, host="127.0.0.1")
        self.port = listeners[0].socket.getsockname()[1]
        context = self.authority.contexts().control
        self.nursery.start_soon(self.server.run)
        self.nursery.start_soon(
            partial(serve_link, self.server, listeners, context, self.directory, log=self.log)
        )

    def dial(self, *, port=None, context=None, name=None):
        """As a host that has this site's certificate, unless something else is said."""
        return websocket_dial(
            "127.0.0.1",
            port or self.port,
            lambda: context or self.identity.link,
            server_name=name or self.name,
        )

    def start_host(self, *, port=None) -> Coming:
        coming = Coming()
        self.nursery.start_soon(self._run_host, coming, self.dial(port=port))
        return coming

    async def _run_host(self, coming: Coming, dial) -> None:
        async with open_host_service(
            FakeHost(self.machine),
            strays=FakeStrays(self.machine),
            publication=HERE,
            epoch=CountedIds("E").ulid(),
            log=self.log,
        ) as service:
            dialler = Dialler(
                service=service, dial=dial, version="0.1.0", chance=lambda: 0.0, log=self.log
            )
            coming.refused = await dialler.run()
        coming.ended.set()

    @property
    def remote(self):
        return self.server.open_host(A, HERE)


@asynccontextmanager
async def open_site(tmp_path):
    async with trio.open_nursery() as nursery:
        site = Site(tmp_path, nursery)
        await site.open()
        yield site
        nursery.cancel_scope.cancel()


class Relay:
    """A stretch of network between a host and its server, which can go deaf without a word."""

    def __init__(self, site: Site) -> None:
        self._site = site
        self.deaf = False
        self.count = 0
        self.port = 0

    async def open(self) -> None:
        listeners = await trio.open_tcp_listeners(0, host="127.0.0.1")
        self.port = listeners[0].socket.getsockname()[1]
        self._site.nursery.start_soon(trio.serve_listeners, self._carry, listeners)

    async def _carry(self, near: trio.SocketStream) -> None:
        self.count += 1
        self.deaf = False
        mine = self.count
        async with await trio.open_tcp_stream("127.0.0.1", self._site.port) as far:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._pump, near, far, mine)
                nursery.start_soon(self._pump, far, near, mine)

    async def _pump(self, source, sink, number: int) -> None:
        try:
            async for data in source:
                if not (self.deaf and number == self.count):
                    await sink.send_all(data)
            await sink.send_eof()
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            pass


async def test_a_launch_over_a_real_link(tmp_path):
    async with open_site(tmp_path) as site:
        site.start_host()
        record = await site.remote.prepare(order())
        await site.remote.run(record)
        assert await site.remote.wait_ready(record, order()) == "canary"
        assert await site.remote.log_tail(record, bytes_max=10) == ("line\n", False)
        assert (await site.remote.sample_engine(record)).running == 2
        outcome = await site.remote.end(record, grace_s=0, idle_s=0)

        assert outcome is EndOutcome.GONE
        assert site.events.names == ["online fresh supported"]


async def test_a_long_log_and_a_largest_frame_get_through(tmp_path):
    async with open_site(tmp_path) as site:
        site.start_host()
        record = await site.remote.prepare(order())
        site.machine.log = "\x00" * 300_000
        text, truncated = await site.remote.log_tail(record, bytes_max=1 << 30)

        assert truncated
        assert 100_000 < len(text) < 262_144
        assert site.events.names == ["online fresh supported"]


async def test_a_connection_that_goes_deaf_is_noticed_by_both_and_replaced(tmp_path):
    async with open_site(tmp_path) as site:
        relay = Relay(site)
        await relay.open()
        site.start_host(port=relay.port)
        await site.events.wait("online")
        record = await site.remote.prepare(order())
        relay.deaf = True
        began_s = trio.current_time()
        await site.remote.run(record)

        assert 0.8 <= trio.current_time() - began_s < 15.0
        assert relay.count == 2
        assert site.events.names[-1] == "online again supported"
        assert site.machine.calls["run", record.launch] == 1


async def greet(channel, epoch: str):
    hello = Hello(
        protocol=1, version="0.1.0", capabilities=[], epoch=epoch, publication=to_wire(HERE)
    )
    await channel.send(write_frame(hello))
    return read_server_frame(await channel.receive())


async def test_a_newer_session_of_a_host_replaces_the_older_one(tmp_path):
    async with open_site(tmp_path) as site:
        site.start_host()
        await site.events.wait("online")
        async with site.dial()() as channel:
            answer = await greet(channel, CountedIds("E").ulid())
            why = await site.said("link_down")

        assert isinstance(answer, Welcome)
        assert why == ["closed: the other side closed it: replaced"]


async def test_a_second_machine_with_a_host_s_identity_does_not_push_it_out(tmp_path):
    async with open_site(tmp_path) as site:
        site.start_host()
        await site.events.wait("online")
        for _ in range(3):
            async with site.dial()() as channel:
                answer = await greet(channel, "0" * 26)
                assert isinstance(answer, Refused)
        told = [fields for name, fields in site.logged if name == "host_identity_in_use"]

        assert answer.code == "host_identity_in_use"
        assert "from 127.0.0.1: two machines have one identity" in answer.message
        assert told == [{"host": A, "kept": "127.0.0.1", "refused": "127.0.0.1"}]
        assert site.server.rival(A) == "127.0.0.1"
        assert site.events.names == ["online fresh supported"]
        assert not [name for name, _ in site.logged if name == "link_down"]


async def test_a_frame_that_is_too_large_ends_its_session_only(tmp_path):
    async with open_site(tmp_path) as site:
        async with site.dial()() as channel:
            with contextlib.suppress(ChannelClosed):
                await channel.send(b" " * (2 * FRAME_BYTES_MAX))
            why = await site.said("host_session_ended")
        site.start_host()
        await site.events.wait("online")

        assert "maximum message size" in why[0]


async def test_a_text_message_ends_its_session(tmp_path):
    async with open_site(tmp_path) as site, site.dial()() as channel:
        await channel.socket.send_message("text")
        with pytest.raises(ChannelClosed, match="binary"):
            await channel.receive()


@pytest.mark.parametrize("version", ["9.0.0", "0.2.0"])
async def test_a_newer_host_is_told_to_wait_for_its_server(version, tmp_path):
    async with open_site(tmp_path) as site, site.dial()() as channel:
        hello = Hello(protocol=1, version=version, capabilities=[], epoch="0" * 26, publication={})
        await channel.send(write_frame(hello))
        answer = read_server_frame(await channel.receive())

        assert isinstance(answer, Refused)
        assert answer.code == "server_upgrade_required"
        with pytest.raises(ChannelClosed):
            await channel.receive()


async def test_a_connection_that_says_nothing_is_given_up(tmp_path, monkeypatch):
    monkeypatch.setattr("capyctl.link.server.GREETING_S", 0.2)
    async with open_site(tmp_path) as site, site.dial()() as channel:
        with pytest.raises(ChannelClosed, match="nothing came within"):
            await channel.receive()


# -- who gets in --------------------------------------------------------------------------------


async def test_a_revoked_certificate_is_refused_by_tls_and_the_host_is_told(tmp_path):
    async with open_site(tmp_path) as site:
        site.authority.revoke([site.identity.issued.serial])
        with pytest.raises(DialFailed, match="revoked") as failed:
            async with site.dial()():
                pass

        assert failed.value.code == "host_revoked"


async def test_a_host_that_was_revoked_a_moment_ago_is_told_in_words(tmp_path):
    """Its record is revoked; the list that TLS looks at is not yet."""
    async with open_site(tmp_path) as site:
        site.directory.records[A] = attrs.evolve(site.record, state=HostState.REVOKED)
        async with site.dial()() as channel:
            answer = read_server_frame(await channel.receive())

        assert answer.code == "host_revoked"


async def test_an_older_identity_is_told_apart(tmp_path):
    async with open_site(tmp_path) as site:
        site.directory.records[A] = attrs.evolve(site.record, certificates=("f" * 64,))
        dialler = site.start_host()
        await site.said("link_connection_refused")
        await dialler.ended.wait()

        assert dialler.refused.code == "host_identity_superseded"
        assert "backup" in dialler.refused.message


async def test_a_server_of_another_authority_is_not_talked_to(tmp_path):
    async with open_site(tmp_path) as site:
        foreign = machine(tmp_path, authority(tmp_path / "other"))
        with pytest.raises(DialFailed, match=r"another authority.*`identity` folder away and join"):
            async with site.dial(context=host_link_context(foreign.files))():
                pass
        (said,) = await site.said("link_connection_refused")

    assert "it belongs to another server" in said


async def test_another_server_of_ours_is_not_talked_to(tmp_path):
    async with open_site(tmp_path) as site:
        with pytest.raises(DialFailed, match="another machine"):
            async with site.dial(name=server_tls_name("01SOTHER"))():
                pass


async def test_nobody_without_a_certificate_gets_a_byte(tmp_path):
    async with open_site(tmp_path) as site:
        async with await trio.open_tcp_stream("127.0.0.1", site.port) as raw:
            await raw.send_all(f"GET {PATH} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
            received = b""
            async for data in raw:
                received += data

        assert not received.startswith(b"HTTP")
        assert len(await site.said("link_connection_refused")) == 1


async def test_a_host_that_speaks_plain_http_over_tls_gets_no_session(tmp_path):
    async with open_site(tmp_path) as site:
        async with await trio.open_tcp_stream("127.0.0.1", site.port) as raw:
            tls = trio.SSLStream(raw, site.identity.link, server_hostname=site.name)
            await tls.send_all(b"POST / HTTP/1.1\r\nHost: x\r\n\r\n")
            answer = await tls.receive_some(100)
        site.start_host()
        await site.events.wait("online")

        assert answer.startswith(b"HTTP/1.1 400")


async def test_nobody_at_the_address_is_said_in_words(tmp_path):
    async with open_site(tmp_path) as site:
        listener = (await trio.open_tcp_listeners(0, host="127.0.0.1"))[0]
        port = listener.socket.getsockname()[1]
        await listener.aclose()
        with pytest.raises(DialFailed, match="Connection refused"):
            async with site.dial(port=port)():
                pass


async def test_a_server_that_is_none_of_ours_is_said_in_words(tmp_path):
    async with open_site(tmp_path) as site:
        listener = (await trio.open_tcp_listeners(0, host="127.0.0.1"))[0]
        context = site.authority.contexts().control

        async def answer(raw):
            tls = trio.SSLStream(raw, context, server_side=True)
            await tls.receive_some(1000)
            await tls.send_all(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nhi")
            await tls.receive_some(1000)

        site.nursery.start_soon(trio.serve_listeners, answer, [listener])
        with pytest.raises(DialFailed, match="no capyctl server"):
            async with site.dial(port=listener.socket.getsockname()[1])():
                pass


async def test_a_dial_that_is_given_up_in_the_handshake_leaves_no_connection(tmp_path):
    made = authority(tmp_path / "server")
    mine = machine(tmp_path, made)
    (listener,) = await trio.open_tcp_listeners(0, host="127.0.0.1")
    port = listener.socket.getsockname()[1]
    dial = websocket_dial(
        "127.0.0.1",
        port,
        lambda: host_link_context(mine.files),
        server_name=server_tls_name(made.server_id),
    )

    async def come():
        async with dial():
            raise AssertionError("nobody shook hands")

    async with listener, trio.open_nursery() as nursery:
        nursery.start_soon(come)
        async with await listener.accept() as met:
            hello = await met.receive_some()
            nursery.cancel_scope.cancel()
            with trio.CancelScope(shield=True):
                rest = await met.receive_some()

    assert hello
    assert rest == b""
