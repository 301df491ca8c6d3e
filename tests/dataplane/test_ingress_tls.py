"""Who is listened to at an ingress, whom a server talks to, and what ends with a certificate."""

import contextlib
import json
import ssl

import attrs
import pytest
import trio

from capyctl.dataplane.ingress import INGRESS_LIMITS, Ingress
from capyctl.dataplane.plane import Limits
from capyctl.dataplane.tls import ListenerTls
from capyctl.domain.ids import HostId
from tests.dataplane import certificates
from tests.dataplane.engines import (
    DONE_EVENT,
    LAST,
    STREAM_HEAD,
    FakeEngine,
    answers,
    chunk,
    event,
    json_answer,
    post,
)
from tests.dataplane.ingresses import HOST, SERVER, call, hosts_tls, http, passed, site

BODY = b'{"model":"m"}'
STREAM_BODY = b'{"model":"m","stream":true}'
ANSWER = b'{"id":"1"}'


async def nothing_answered(stream: trio.SSLStream) -> None:
    """The peer may end it as it likes, but says nothing of HTTP."""
    heard = b""
    with contextlib.suppress(trio.BrokenResourceError, ssl.SSLError):
        await stream.send_all(passed(BODY))
        while data := await stream.receive_some():
            heard += data
    assert heard == b""
    await trio.aclose_forcefully(stream)


def foreign() -> certificates.Shown:
    return certificates.Authority("foreign").signs(SERVER)


@pytest.mark.parametrize(
    "shown",
    [
        pytest.param(lambda: None, id="none"),
        pytest.param(foreign, id="of another authority"),
        pytest.param(lambda: certificates.ours().signs(SERVER, expired=True), id="expired"),
        pytest.param(lambda: certificates.of("host2.test"), id="of another host"),
    ],
)
async def test_nobody_but_the_server_is_answered(shown):
    async with site(answers(json_answer(ANSWER))) as plane:
        machine = plane.machines[0]
        await nothing_answered(await call(machine, shown()))
        # The next one that may is served.
        assert (await plane.ask(post(BODY))).status == 200
    assert len(plane.engines[0].requests) == 1


async def test_plain_requests_get_no_answer_of_http():
    async with site(answers(json_answer(ANSWER))) as plane:
        stream = await trio.open_tcp_stream("127.0.0.1", plane.machines[0].port)
        await stream.send_all(passed(BODY))
        heard = b""
        with contextlib.suppress(trio.BrokenResourceError):
            while data := await stream.receive_some():
                heard += data
        assert b"HTTP" not in heard
        await stream.aclose()
    assert plane.engines[0].requests == []


async def test_older_tls_is_not_spoken():
    def older(context: ssl.SSLContext) -> None:
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.maximum_version = ssl.TLSVersion.TLSv1_2

    async with site(answers(json_answer(ANSWER))) as plane:
        stream = await call(plane.machines[0], certificates.of(SERVER), change=older)
        with pytest.raises(trio.BrokenResourceError):
            await stream.do_handshake()
        await trio.aclose_forcefully(stream)


@pytest.mark.parametrize("spoils", ["version", "certificate"])
def test_a_context_that_lets_too_much_in_is_refused(spoils):
    context = certificates.listening(certificates.ours(), certificates.of(HOST))
    if spoils == "version":
        context.minimum_version = ssl.TLSVersion.TLSv1_2
    else:
        context.verify_mode = ssl.CERT_OPTIONAL
    tls = ListenerTls(context=lambda: context, accepts=lambda _: True)
    with pytest.raises(ValueError, match="the ingress must"):
        Ingress(tls=tls, on_bug=lambda _: None)


async def test_a_peer_that_says_nothing_is_given_up(monkeypatch):
    monkeypatch.setattr("capyctl.dataplane.handshake.HANDSHAKE_S_MAX", 0.05)
    async with site(answers(json_answer(ANSWER))) as plane:
        stream = await trio.open_tcp_stream("127.0.0.1", plane.machines[0].port)
        await stream.send_all(b"\x16")
        assert await stream.receive_some() == b""
        await stream.aclose()
        assert (await plane.ask(post(BODY))).status == 200


async def test_a_connection_without_requests_is_ended_in_order():
    """So that a request which crosses the end is known to have reached nobody."""
    async with site() as plane:
        limits = attrs.evolve(INGRESS_LIMITS, connection_idle_max_s=0.05)
        machine = await plane.add_machine(answers(json_answer(ANSWER)), limits=limits)
        stream = await call(machine, certificates.of(SERVER))
        await stream.send_all(passed(BODY))
        assert (await http(stream).answer()).status == 200
        assert await stream.receive_some() == b""
        await stream.aclose()


@pytest.mark.parametrize(
    "shown",
    [
        pytest.param(lambda: certificates.of("host2.test"), id="swapped"),
        pytest.param(lambda: certificates.Authority("x").signs(HOST), id="foreign"),
        pytest.param(lambda: certificates.ours().signs(HOST, expired=True), id="expired"),
    ],
)
async def test_a_host_that_is_not_the_one_that_is_meant_gets_no_request(shown):
    async with site() as plane:
        await plane.add_machine(answers(json_answer(ANSWER)), shown=shown())
        got = await plane.ask(post(BODY))
        assert (got.status, json.loads(got.body)["code"]) == (503, "unavailable")
        assert "cannot be reached" in json.loads(got.body)["message"]
        assert plane.unproven == []
        assert plane.admission.running_count == 0
    assert plane.engines[0].requests == []


async def test_the_servers_own_doubt_of_a_certificate_counts():
    """The name and the authority are right; what is on record says no."""
    doubting = attrs.evolve(hosts_tls(), accepts=lambda session, host: False)
    async with site(answers(json_answer(ANSWER)), tls=doubting) as plane:
        assert (await plane.ask(post(BODY))).status == 503
    assert plane.engines[0].requests == []


async def test_a_server_that_is_refused_has_sent_its_request_to_nobody():
    """In TLS 1.3 the refusal comes after the client's handshake is done, the request sent."""
    for spoilt in (hosts_tls(foreign()), hosts_tls(certificates.of("host2.test"))):
        async with site(answers(json_answer(ANSWER)), tls=spoilt) as plane:
            got = await plane.ask(post(BODY))
            told = json.loads(got.body)
            assert (got.status, told["code"]) == (503, "unavailable")
            assert plane.unproven == []
        assert plane.engines[0].requests == []


async def test_a_machine_that_accepts_and_is_silent_is_passed_over():
    """Half-open: TCP stands, and nothing answers in TLS."""

    async def silent(connection):
        await trio.sleep_forever()

    async with site(limits=Limits(connect_timeout_s=0.05)) as plane:
        dead = FakeEngine(silent)
        await plane.nursery.start(dead.serve)
        machine = await plane.add_machine(answers(json_answer(ANSWER)))
        there = machine.endpoint(0)
        plane.gates[0].open_for(attrs.evolve(there, port=dead.port), 1)
        got = await plane.ask(post(BODY))
        assert (got.status, json.loads(got.body)["code"]) == (503, "unavailable")
        plane.add_gate(there)
        assert (await plane.ask(post(BODY))).status == 200
        assert plane.unproven == []


async def stuck_stream(connection) -> None:
    await connection.request()
    await connection.send(STREAM_HEAD + chunk(event("a")))
    await connection.closed()


async def test_all_connections_end_at_once_when_the_host_is_not_trusted_any_more():
    async with site(stuck_stream) as plane:
        machine = plane.machines[0]
        client = await plane.client()
        await client.send(post(STREAM_BODY))
        await client.until(b"\n\n\r\n")
        idle = await call(machine, certificates.of(SERVER))
        await idle.do_handshake()
        halfway = await trio.open_tcp_stream("127.0.0.1", machine.port)
        await trio.testing.wait_all_tasks_blocked(0.01)

        machine.accepted.clear()
        assert machine.ingress.close_all() == 2
        await client.until(b'"engine_error"}}\n\n')
        with pytest.raises(trio.BrokenResourceError):
            await idle.receive_some()
        await trio.aclose_forcefully(idle)
        with trio.fail_after(5):
            assert await halfway.receive_some() == b""
        await nothing_answered(await call(machine, certificates.of(SERVER)))
        assert (await plane.ask(post(BODY))).status == 503
        await halfway.aclose()
    assert plane.engines[0].open_count == 0


async def test_only_what_is_not_accepted_any_more_is_closed():
    async with site(answers(json_answer(ANSWER))) as plane:
        machine = plane.machines[0]
        machine.accepted.add("old.test")
        old, new = [await call(machine, certificates.of(n)) for n in ("old.test", SERVER)]
        for stream in (old, new):
            await stream.send_all(passed(BODY))
            assert (await http(stream).answer()).status == 200
        machine.accepted.discard("old.test")
        assert machine.ingress.close_unaccepted() == 1
        with pytest.raises(trio.BrokenResourceError):
            await old.receive_some()
        await trio.aclose_forcefully(old)
        await new.send_all(passed(BODY))
        assert (await http(new).answer()).status == 200
        await new.aclose()


async def test_a_revoked_hosts_answers_are_broken_off_at_the_server():
    async with site(stuck_stream, answers(json_answer(ANSWER))) as plane:
        client = await plane.client()
        await client.send(post(STREAM_BODY))
        await client.until(b"\n\n\r\n")
        plane.plane.close_host(HostId("host2.test"), cut=True)
        plane.plane.close_host(HOST, cut=True)
        rest = await client.until(b'"engine_error"}}\n\n')
        assert b"not trusted" in rest
        assert [who.index for who, *_ in plane.unproven] == [0]
        while plane.engines[0].open_count:
            await trio.lowlevel.checkpoint()


async def test_idle_connections_to_a_host_are_closed_on_demand():
    async with site(answers(json_answer(ANSWER))) as plane:
        await plane.ask(post(BODY))
        acceptor = next(iter(plane.machines[0].ingress._plane.state.listeners))
        assert len(acceptor._connections) == 1
        plane.plane.close_host(HOST, cut=False)
        with trio.fail_after(5):
            while acceptor._connections:
                await trio.lowlevel.checkpoint()
        assert (await plane.ask(post(BODY))).status == 200


class RawIngress(FakeEngine):
    """TLS by Trio, and whatever the script does; ``script`` gets the stream."""

    async def _connection(self, stream: trio.SocketStream) -> None:
        self.connection_count += 1
        context = certificates.listening(certificates.ours(), certificates.of(HOST))
        secured = trio.SSLStream(stream, context, server_side=True)
        await self.script(self, secured)
        await trio.aclose_forcefully(secured)


async def request_on(stream: trio.SSLStream) -> bytes:
    data = b""
    while not data.endswith(BODY):
        data += await stream.receive_some()
    return data


@pytest.mark.parametrize("in_order", [True, False])
async def test_a_kept_connection_that_ends_is_replaced_only_where_that_is_safe(in_order):
    """An end in order says that nothing was taken; a connection that is cut off says nothing."""

    async def script(raw, stream):
        await request_on(stream)
        await stream.send_all(json_answer(ANSWER))
        if raw.connection_count == 1:
            await request_on(stream)
            if in_order:
                with contextlib.suppress(trio.BrokenResourceError):
                    await stream.unwrap()

    async with site() as plane:
        raw = RawIngress(script)
        await plane.nursery.start(raw.serve)
        machine = await plane.add_machine(answers(b""))
        plane.gates[0].open_for(attrs.evolve(machine.endpoint(0), port=raw.port), 1)
        client = await plane.client()
        await client.send(post(BODY))
        assert (await client.answer()).status == 200
        await client.send(post(BODY))
        got = await client.answer()
        await client.close()
        assert got.status == (200 if in_order else 500)
        assert len(plane.unproven) == (0 if in_order else 1)
    assert raw.connection_count == (2 if in_order else 1)


async def test_a_fresh_connection_that_ends_in_order_is_no_acceptance():
    async def script(_, stream):
        await request_on(stream)
        with contextlib.suppress(trio.BrokenResourceError):
            await stream.unwrap()

    async with site() as plane:
        raw = RawIngress(script)
        await plane.nursery.start(raw.serve)
        machine = await plane.add_machine(answers(json_answer(ANSWER)))
        there = machine.endpoint(0)
        plane.gates[0].open_for(attrs.evolve(there, port=raw.port), 1)
        plane.add_gate(there)
        for _ in range(3):
            assert (await plane.ask(post(BODY))).status == 200
        assert plane.unproven == []
    assert raw.connection_count > 0


async def test_an_answer_that_is_cut_off_in_tls_is_not_taken_for_complete():
    """Without a length only the end of the connection ends it, and that was not said."""

    async def script(_, stream):
        await request_on(stream)
        await stream.send_all(b"HTTP/1.1 200 OK\r\ncontent-type: text/plain\r\n\r\nhalf")

    async with site() as plane:
        raw = RawIngress(script)
        await plane.nursery.start(raw.serve)
        machine = await plane.add_machine(answers(b""))
        plane.gates[0].open_for(attrs.evolve(machine.endpoint(0), port=raw.port), 1)
        got = await plane.ask(post(BODY))
        assert got.body == b"half"
        assert not got.complete
        assert len(plane.unproven) == 1


async def test_an_end_in_the_middle_of_the_last_record_is_seen():
    """All that was enciphered is read before the end is."""

    async def script(_, stream):
        await request_on(stream)
        await stream.send_all(STREAM_HEAD + chunk(event("a")))
        await stream.send_all(chunk(DONE_EVENT) + LAST)

    async with site() as plane:
        raw = RawIngress(script)
        await plane.nursery.start(raw.serve)
        machine = await plane.add_machine(answers(b""))
        plane.gates[0].open_for(attrs.evolve(machine.endpoint(0), port=raw.port), 1)
        got = await plane.ask(post(BODY))
        assert (got.complete, got.body) == (True, event("a") + DONE_EVENT)
        assert plane.unproven == []


async def test_unknown_peers_that_say_nothing_do_not_keep_the_server_out(monkeypatch):
    monkeypatch.setattr("capyctl.dataplane.listener.HANDSHAKES_MAX", 2)
    async with site(answers(json_answer(ANSWER)), limits=Limits()) as plane:
        port = plane.machines[0].port
        streams = [await trio.open_tcp_stream("127.0.0.1", port) for _ in range(3)]
        assert await streams[0].receive_some() == b""
        assert (await plane.ask(post(BODY))).status == 200
        for stream in streams:
            await stream.aclose()
