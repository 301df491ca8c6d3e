"""What only a real socket shows: bytes, bodies that are refused, clients that do not read."""

from __future__ import annotations

import contextlib
import json
import socket as sockets

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from tests.api.clients import BEARER, CONFIG, JSON, PREFIX, action_body, served
from tests.api.fake_management import INCARNATION, FakeManagement

ULID = "01M5E0MPXN61STKHGZ6BTEFVM3"
CHANGE = [JSON, (b"idempotency-key", b"key")]
CREATE = json.dumps({"config": CONFIG, "activate": False}).encode()
RUNS = 40


async def test_escapes_in_an_id_are_seen_as_they_were_sent():
    body = json.dumps(action_body("stop")).encode()
    async with served() as server:
        escaped = await server.ask(
            "POST", f"/deployments/%30{ULID[1:]}/actions", headers=CHANGE, body=body
        )
        plain = await server.ask("POST", f"/deployments/{ULID}/actions", headers=CHANGE, body=body)
        border = await server.ask(
            "POST", f"/deployments/{ULID}%2Factions", headers=CHANGE, body=body
        )

    assert escaped.code == "invalid_request"
    assert plain.code == "not_found"
    assert border.code == "method_not_allowed"


async def test_headers_of_an_answer():
    async with served() as server:
        answer = await server.ask("GET", "/snapshot")

    names = [name for name, _ in answer.headers]
    assert sorted(names) == [
        b"cache-control",
        b"content-length",
        b"content-type",
        b"date",
        b"x-content-type-options",
    ]


async def test_head_has_no_body_and_options_is_refused():
    async with served() as server, await server.connect() as socket:
        await socket.send("HEAD", "/snapshot")
        status, headers = await socket.head()
        await socket.send("OPTIONS", "/snapshot")
        options = await socket.answer()

    assert status == 405
    assert dict(headers)[b"allow"] == b"GET"
    assert options.status == 405


@pytest.mark.parametrize(
    "sent",
    [
        b"nonsense\r\n\r\n",
        b"GET /management/v1/snapshot HTTP/1.1\r\n\r\n",
        b"GET /management/v1/snapshot HTTP/1.1\r\nhost: a\r\nhost: b\r\n\r\n",
        b"GET / HTTP/1.1\r\nhost: localhost\r\nx: " + b"y" * 70000 + b"\r\n\r\n",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        b"GET /\xff HTTP/1.1\r\nhost: localhost\r\n\r\n",
        b"POST /management/v1/deployments HTTP/1.1\r\nhost: localhost\r\ncontent-length: x\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00",
    ],
)
async def test_what_is_no_http_gets_the_envelope_as_well(sent):
    async with served() as server, await server.connect() as socket:
        await socket.stream.send_all(sent)
        answer = await socket.answer()
        rest = await socket.read_to_end()

    assert (answer.status, answer.code) == (400, "invalid_request")
    assert answer.values(b"cache-control") == [b"no-store"]
    assert answer.values(b"x-content-type-options") == [b"nosniff"]
    assert rest == b""


TO = b"POST /management/v1/deployments HTTP/1.1\r\nhost: localhost\r\n"


@pytest.mark.parametrize(
    "sent",
    [
        TO + b"content-length: 5\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n",
        TO + b"transfer-encoding: chunked\r\nContent-Length: 5\r\n\r\n0\r\n\r\n",
        TO + b"content-length: 2\r\ncontent-length: 2\r\n\r\n{}",
        TO + b"content-length: 2\r\nContent-Length:2\r\n\r\n{}",
        TO + b"content-length: 2, 2\r\n\r\n{}",
        TO + b"content-length:\r\n 2\r\n\r\n{}",
        TO.replace(b"1.1", b"1.0") + b"transfer-encoding: chunked\r\n\r\n0\r\n\r\n",
        TO.replace(b"\r", b"") + b"content-length: 2\n\n{}",
        TO + b"content-length: 2\nx: y\r\n\r\n{}",
        TO + b"content-length: 2\r\n\n{}",
        TO + b"x: y\r\n folded\r\ncontent-length: 2\r\n\r\n{}",
    ],
)
@pytest.mark.parametrize("pieces_count", [1, 3])
async def test_what_two_readers_could_read_in_two_ways_is_refused(sent, pieces_count):
    size = -(-len(sent) // pieces_count)
    async with served() as server, await server.connect() as socket:
        await socket.send("GET", "/snapshot")
        before = await socket.answer()
        for start in range(0, len(sent), size):
            await socket.stream.send_all(sent[start : start + size])
            await wait_all_tasks_blocked(0.01)
        answer = await socket.answer()
        rest = await socket.read_to_end()

    assert before.status == 200
    assert (answer.status, answer.code) == (400, "invalid_request")
    assert rest == b""


async def test_requests_sent_in_one_piece_are_each_read_as_they_are():
    one = TO + b"content-length: 4\r\n\r\na\n\nb"
    async with served() as server, await server.connect() as socket:
        await socket.stream.send_all(one + one + one.replace(b"\r", b""))
        answers = [await socket.answer() for _ in range(3)]

    assert [answer.code for answer in answers] == [
        "unauthenticated",
        "unauthenticated",
        "invalid_request",
    ]


@pytest.mark.parametrize(
    "wish",
    [
        [
            (b"connection", b"upgrade"),
            (b"upgrade", b"websocket"),
            (b"sec-websocket-version", b"13"),
        ],
        [
            (b"connection", b"upgrade, http2-settings"),
            (b"upgrade", b"h2c"),
            (b"http2-settings", b"AA"),
        ],
    ],
)
async def test_a_wish_for_another_protocol_is_not_heard(wish):
    async with served() as server:
        without_token = await server.ask("GET", f"{PREFIX}/snapshot", headers=wish, plain=True)
        with_token = await server.ask("GET", "/snapshot", headers=wish)

    assert without_token.code == "unauthenticated"
    assert with_token.status == 200


async def test_a_connection_serves_many_requests():
    async with served() as server, await server.connect() as socket:
        statuses = []
        for path in ("/snapshot", "/nowhere", "/snapshot", "/metrics/load"):
            await socket.send("GET", path)
            statuses.append((await socket.answer()).status)

    assert statuses == [200, 404, 200, 200]


@pytest.mark.parametrize("requests", [0, 1, 2])
async def test_a_silent_connection_is_closed(requests):
    async with served(idle_s_max=0.05) as server, await server.connect() as socket:
        for _ in range(requests):
            await socket.send("GET", "/snapshot")
            await socket.answer()

        assert await socket.read_to_end() == b""


async def test_no_more_connections_than_allowed():
    async with served(connections_max=1) as server, await server.connect() as first:
        await first.send("GET", "/snapshot")
        await first.answer()
        async with await server.connect() as second:
            assert await second.read_to_end() == b""
        await first.send("GET", "/snapshot")
        assert (await first.answer()).status == 200


async def test_many_connections_above_it_are_one_line_of_the_log(caplog):
    async with served(connections_max=1) as server, await server.connect() as first:
        await first.send("GET", "/snapshot")
        await first.answer()
        for _ in range(20):
            async with await server.connect() as other:
                assert await other.read_to_end() == b""

    told = [record for record in caplog.records if record.name == "capyctl.api.serve"]
    assert len(told) == 1


async def test_a_connection_that_its_client_closed_counts_no_more():
    async with served(connections_max=1) as server:
        for _ in range(2):
            async with await server.connect() as socket:
                await socket.send("GET", "/snapshot")
                assert (await socket.answer()).status == 200
                await wait_all_tasks_blocked(0.01)
            await wait_all_tasks_blocked(0.01)


@pytest.mark.slow
async def test_a_refusal_before_the_body_is_seen_by_a_client_that_sends_on():
    """Closing with bytes unread would reset the connection, and the 401 be lost now and then."""
    body = b"x" * 5_000_000
    async with served() as server:
        for _ in range(RUNS):
            answer = await server.ask(
                "POST", f"{PREFIX}/deployments", headers=CHANGE, body=body, plain=True
            )
            assert answer.status == 401


async def test_a_body_too_large_is_413_and_the_connection_goes_on():
    async with served() as server, await server.connect() as socket:
        await socket.send("POST", "/deployments", headers=CHANGE, body=b" " * (1048576 + 1))
        large = await socket.answer()
        await socket.send("GET", "/snapshot")
        after = await socket.answer()

    assert (large.status, large.code) == (413, "body_too_large")
    assert after.status == 200


async def test_a_body_without_a_length_is_cut_at_a_megabyte():
    async with served(drain_bytes_max=3_000_000) as server, await server.connect() as socket:
        await socket.send(
            "POST", "/deployments", headers=[*CHANGE, (b"transfer-encoding", b"chunked")]
        )
        piece = b"10000\r\n" + b" " * 65536 + b"\r\n"
        async with trio.open_nursery() as nursery:
            nursery.start_soon(send_until_refused, socket.stream, piece)
            answer = await socket.answer()
            await socket.read_to_end()

    assert answer.code == "body_too_large"


async def send_until_refused(stream, piece):
    try:
        for _ in range(1000):
            await stream.send_all(piece)
    except trio.BrokenResourceError:
        return
    raise AssertionError("the server took 64 MiB")


async def test_a_body_that_stops_half_way_is_504_and_frees_its_slot():
    async with served(body_s_max=0.05, drain_s_max=0.05, changes_max=1) as server:
        async with await server.connect() as socket:
            head = [*CHANGE, (b"content-length", b"100")]
            await socket.send("POST", "/deployments", headers=head)
            await socket.stream.send_all(b"{")
            answer = await socket.answer()
            rest = await socket.read_to_end()
        after = await server.ask("POST", "/deployments", headers=CHANGE, body=CREATE)

    assert (answer.status, answer.code) == (504, "deadline_exceeded")
    assert rest == b""
    assert after.status == 202


async def test_a_head_that_trickles_in_is_given_up_like_silence():
    async with served(idle_s_max=0.3) as server, await server.connect() as socket:
        ended = trio.Event()

        async def trickle():
            await socket.stream.send_all(b"GET /management/v1/snapshot HTTP/1.1\r\nx: ")
            with contextlib.suppress(trio.BrokenResourceError):
                while not ended.is_set():
                    await socket.stream.send_all(b"y")
                    await trio.sleep(0.01)  # as slowly as such a client would

        async with trio.open_nursery() as nursery:
            nursery.start_soon(trickle)
            rest = await socket.read_to_end()
            ended.set()

    assert rest == b""


async def test_many_slow_bodies_hold_no_more_than_the_places_there_are():
    async with served(drain_s_max=0.05) as server, contextlib.AsyncExitStack() as clients:

        async def begin():
            socket = await clients.enter_async_context(await server.connect())
            await socket.send("POST", "/deployments", headers=[*CHANGE, (b"content-length", b"9")])
            await socket.stream.send_all(b"{")
            return socket

        async def change():
            return (await server.ask("POST", "/deployments", headers=CHANGE, body=CREATE)).code

        first = [await begin() for _ in range(2)]
        while await change() != "queue_full":
            pass
        others = [await (await begin()).answer() for _ in range(50)]
        read = await server.ask("GET", "/snapshot")
        for socket in first:
            await trio.aclose_forcefully(socket.stream)
        while await change() is not None:
            pass

    assert {answer.code for answer in others} == {"queue_full"}
    assert read.status == 200


@pytest.mark.parametrize("keys_count", [1, 3])
async def test_a_storm_under_few_keys_changes_as_much_as_there_are_keys(keys_count):
    fake = FakeManagement()
    answers: dict[bytes, set[bytes]] = {}
    statuses = []
    async with served(fake) as server:

        async def ask(number):
            key = b"key-%d" % (number % keys_count)
            body = json.dumps(
                {"config": {**CONFIG, "name": f"m{number % keys_count}"}, "activate": False}
            ).encode()
            answer = await server.ask(
                "POST", "/deployments", headers=[JSON, (b"idempotency-key", key)], body=body
            )
            statuses.append(answer.status)
            if answer.status == 202:
                answers.setdefault(key, set()).add(answer.body)

        async with trio.open_nursery() as nursery:
            for number in range(120):
                nursery.start_soon(ask, number)
        for number in range(keys_count):
            await ask(number)

    assert set(statuses) <= {202, 429}
    assert [len(found) for found in answers.values()] == [1] * keys_count
    assert len(fake.operations) == keys_count


async def test_an_answer_that_meets_the_end_of_its_connection_is_no_fault(caplog):
    head = [*CHANGE, (b"host", b"elsewhere"), (b"content-length", b"100")]
    sent = b"".join(name + b": " + value + b"\r\n" for name, value in head)
    async with served() as server:
        for _ in range(RUNS):
            async with await server.connect() as socket:
                text = b"POST /management/v1/deployments HTTP/1.1\r\n" + sent + b"\r\n{"
                await socket.stream.send_all(text)
                await socket.stream.send_eof()
                await socket.read_to_end()
        after = await server.ask("POST", "/deployments", headers=CHANGE, body=CREATE)

    assert [record.getMessage() for record in caplog.records] == []
    assert after.status == 202


async def test_a_client_that_disconnects_keeps_its_slot_and_its_effect():
    fake = FakeManagement()
    held = fake.hold("create")
    async with served(fake, changes_max=1) as server:
        socket = await server.connect()
        async with socket:
            await socket.send("POST", "/deployments", headers=CHANGE, body=CREATE)
            await held.wait_arrived(1)
        other = [JSON, (b"idempotency-key", b"other")]
        refused = await server.ask("POST", "/deployments", headers=other, body=CREATE)
        async with await server.connect() as later:
            held.open()
            await later.send("GET", "/snapshot")
            await later.answer()
        again = await server.ask("POST", "/deployments", headers=CHANGE, body=CREATE)

    assert refused.code == "queue_full"
    assert again.status == 202
    assert fake.calls["create"] == 1


async def test_an_answer_larger_than_all_buffers_arrives_whole():
    fake = FakeManagement()
    large = json.dumps({"pad": "x" * 8_000_000}).encode()

    async def snapshot():
        return large

    fake.snapshot = snapshot
    async with served(fake) as server:
        answer = await server.ask("GET", "/snapshot")

    assert answer.body == large


async def narrow_stream(port):
    """A client's end that takes little before it is read."""
    socket = trio.socket.socket()
    socket.setsockopt(sockets.SOL_SOCKET, sockets.SO_RCVBUF, 4096)
    await socket.connect(("127.0.0.1", port))
    return trio.SocketStream(socket)


@pytest.mark.slow
async def test_a_client_that_does_not_read_is_closed_and_goes_on_without_a_gap():
    fake = FakeManagement()
    count = 4000
    async with served(fake, send_s_max=0.2) as server, await server.connect() as reader:
        stalled = type(reader)(await narrow_stream(server.port))
        async with stalled:
            for socket in (reader, stalled):
                await socket.send("GET", "/events")
                await socket.read_until(b"\r\n\r\n")
            for number in range(count):
                fake.emit("ready_committed", pad="x" * 500, number=str(number))
            seen = await read_ids(reader, count)
            await fake.subscriptions[1].closed.wait()
            part = whole_ids(await stalled.read_to_end())
        last = part[-1]
        async with await server.connect() as resumed:
            await resumed.send("GET", f"/events?after={INCARNATION}:{last}")
            await resumed.read_until(b"\r\n\r\n")
            rest = await read_ids(resumed, count - last)

    assert seen == [*range(1, count + 1)]
    assert 0 < len(part) < count
    assert part + rest == seen


async def read_ids(socket, count):
    ids = []
    held = b""
    while len(ids) < count:
        held += await socket.chunk()
        whole, _, held = held.rpartition(b"\n\n")
        ids += whole_ids(whole + b"\n\n")
    return ids


def whole_ids(data):
    """The ids of frames that came whole; how a body is cut into chunks does not matter."""
    return [
        int(frame.partition(b"\nevent")[0].rpartition(b":")[2])
        for frame in data.split(b"id: ")[1:]
        if b"\n\n" in frame
    ]


async def test_the_stream_is_pushed_over_a_socket():
    fake = FakeManagement()
    fake.emit("ready_committed")
    async with served(fake, heartbeat_s=0.03) as server, await server.connect() as socket:
        await socket.send("GET", f"/events?after={INCARNATION}:1")
        status, headers = await socket.head()
        beat = await socket.chunk()
        fake.emit("parked_committed")
        frame = b""
        while not frame.startswith(b"id: "):
            frame = await socket.chunk()

    assert status == 200
    assert (b"content-type", b"text/event-stream") in headers
    assert beat == b": heartbeat\n\n"
    assert frame.startswith(b"id: 01M5E0M1C4VQT1DXDZNMJ75NRN:2\nevent: parked_committed\n")


async def test_the_token_goes_with_every_request_of_a_connection():
    async with served() as server, await server.connect() as socket:
        await socket.send("GET", f"{PREFIX}/snapshot", headers=[BEARER], plain=True)
        with_token = await socket.answer()
        await socket.send("GET", f"{PREFIX}/snapshot", plain=True)
        without = await socket.answer()

    assert (with_token.status, without.status) == (200, 401)
