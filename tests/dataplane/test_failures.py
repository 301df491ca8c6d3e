"""Engines that fail, clients that leave: nobody takes a broken answer for a whole one."""

import json

import pytest
import trio

from capyctl.dataplane.framing import ChunkReader
from capyctl.dataplane.plane import Limits
from tests.dataplane.engines import (
    DONE_EVENT,
    LAST,
    ROLE_EVENT,
    STREAM_HEAD,
    answers,
    chunk,
    event,
    json_answer,
    post,
    world,
)

BODY = b'{"model":"m"}'
STREAM_BODY = b'{"model":"m","stream":true}'


def sends_then_closes(*pieces: bytes):
    async def script(connection):
        if await connection.request() is not None:
            for piece in pieces:
                await connection.send(piece)

    return script


def sends_then_waits(*pieces: bytes):
    """Sends, then waits until the plane closes; says so."""
    closed = trio.Event()
    sent = trio.Event()

    async def script(connection):
        if await connection.request() is not None:
            for piece in pieces:
                await connection.send(piece)
            sent.set()
            await connection.closed()
            closed.set()

    script.closed, script.sent = closed, sent
    return script


@pytest.mark.parametrize("status", [b"400 Bad Request", b"413 Too Large", b"422 Unprocessable"])
@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b'{"error":{"message":"no such thing","type":"x"}}', "no such thing"),
        (b'{"object":"error","message":"too long"}', "too long"),
        (b'{"detail":"bad"}', "bad"),
        (b'{"detail":[{"loc":1}]}', '{"detail":[{"loc":1}]}'),
        (b'{"error":"' + b"x" * 600 + b'"}', "x" * 512),
    ],
)
async def test_an_engines_rejection_is_passed_on(status, body, message):
    async with world(answers(json_answer(body, status))) as plane:
        for sent in (BODY, STREAM_BODY):
            got = await plane.ask(post(sent))
            told = json.loads(got.body)
            assert got.status == int(status[:3])
            assert (told["code"], told["message"]) == ("engine_rejected", message)
            assert "retryable" not in told
    assert plane.unproven == []
    assert plane.engines[0].connection_count == 1


@pytest.mark.parametrize(
    "answer",
    [
        json_answer(b'{"error":"x"}', b"500 Internal"),
        json_answer(b"{}", b"503 Busy"),
        json_answer(b"{}", b"404 Not Found"),
        json_answer(b"not json", b"400 Bad"),
        b"HTTP/1.1 302 Found\r\nLocation: http://x\r\nContent-Length: 0\r\n\r\n",
        b"HTTP/1.1 101 Switching\r\nUpgrade: x\r\nConnection: upgrade\r\n\r\n",
        b"nonsense\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nA: " + b"x" * 70_000,
        b"HTTP/1.1 200 OK\r\n",
        b"",
    ],
)
async def test_other_failures_before_the_head_are_500_and_unproven(answer):
    async with world(sends_then_closes(answer)) as plane:
        got = await plane.ask(post(STREAM_BODY))
        record = await plane.record()
    told = json.loads(got.body)
    assert (got.status, told["code"]) == (500, "engine_error")
    assert got.header("content-type") == "application/json"
    assert len(plane.engines[0].requests) == 1
    assert [(str(who)[-1], generation) for who, generation, _ in plane.unproven] == [("0", 1)]
    assert plane.admission.running_count == 1
    assert record.outcome.value == "engine_failed"


async def test_an_engine_that_dies_in_a_stream():
    pieces = [STREAM_HEAD, chunk(event("a")), chunk(event("b")), chunk(event("c"))]
    async with world(sends_then_closes(*pieces)) as plane:
        client = await plane.client()
        await client.send(post(STREAM_BODY))
        got = await client.answer()
        record = await plane.record()
    sent = event("a") + event("b") + event("c")
    assert not got.complete
    assert got.body.startswith(sent)
    last = got.body[len(sent) :]
    assert last.startswith(b"data: ")
    assert last.endswith(b"\n\n")
    told = json.loads(last[6:])
    assert told["error"]["code"] == "engine_error"
    assert b"[DONE]" not in got.body
    assert b"finish_reason" not in got.body
    assert plane.unproven
    assert (record.status, record.outcome.value) == (200, "engine_failed")


@pytest.mark.parametrize(
    ("last", "done"),
    [(DONE_EVENT, True), (event("a"), False), (event("data: [DONE]"), False)],
)
async def test_a_client_that_has_read_the_last_event_may_leave(last, done):
    """Its slot is free at once, though the end of the body has not come yet."""

    async def script(connection):
        await connection.request()
        await connection.send(STREAM_HEAD + chunk(event("a")) + chunk(last))
        await connection.closed()

    async with world(script) as plane:
        client = await plane.client()
        await client.send(post(STREAM_BODY))
        await client.until(last)
        await client.close()
        record = await plane.record()

    assert record.outcome.value == "client_closed"
    assert (plane.unproven == []) is done
    assert (plane.admission.running_count == 0) is done


@pytest.mark.parametrize("cut_at", [3, 20, 60])
async def test_an_engine_that_dies_inside_a_chunk_still_gets_its_error_told(cut_at):
    async with world(sends_then_closes(STREAM_HEAD, chunk(event("a" * 60))[:cut_at])) as plane:
        got = await plane.ask(post(STREAM_BODY))
    assert not got.complete
    told = json.loads(got.body[got.body.rindex(b"data: ") + 6 :])
    assert told["code"] == "engine_error"
    assert b"\n\ndata: " in b"\n\n" + got.body


async def test_an_answer_shorter_than_promised_is_not_complete():
    short = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 1000\r\n\r\n{"
    async with world(sends_then_closes(short)) as plane:
        got = await plane.ask(post(BODY))
    assert not got.complete
    assert got.body == b"{"
    assert plane.unproven


async def test_a_broken_answer_without_framing_is_reset():
    """An old client could take the end of the connection for the end of the body."""
    short = (
        b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ntransfer-encoding: chunked\r\n\r\n"
    )
    async with world(sends_then_closes(short + chunk(b"{"))) as plane:
        client = await plane.client()
        await client.send(post(BODY).replace(b"HTTP/1.1", b"HTTP/1.0"))
        await client.until(b"\r\n\r\n")
        with pytest.raises(trio.BrokenResourceError):
            await receive_all(client.stream)


async def receive_all(stream):
    while await stream.receive_some():
        pass


async def test_malformed_chunks_with_the_head_are_500():
    async with world(sends_then_closes(STREAM_HEAD + b"zz\r\nabc\r\n")) as plane:
        got = await plane.ask(post(STREAM_BODY))
    assert (got.status, json.loads(got.body)["code"]) == (500, "engine_error")


async def test_malformed_chunks_in_a_stream_end_it():
    go = trio.Event()

    async def script(connection):
        await connection.request()
        await connection.send(STREAM_HEAD + chunk(event("a")))
        await go.wait()
        await connection.send(b"zz\r\nabc\r\n")

    async with world(script) as plane:
        client = await plane.client()
        await client.send(post(STREAM_BODY))
        await client.until(event("a") + b"\r\n")
        go.set()
        await client.until(b"data: ")
        told = await client.until(b"\n\n")
        await client.until(b"\r\n")
        assert await client.ended()
    assert b"engine_error" in told


async def test_bytes_after_an_answer_reach_nobody():
    """And the connection is not used again."""
    async with world(answers(json_answer(b"{}") + b"HTTP/1.1 200 OK\r\n")) as plane:
        client = await plane.client()
        for _ in range(3):
            await client.send(post(BODY))
            assert (await client.answer()).body == b"{}"
        assert client.rest == b""
    assert plane.engines[0].connection_count == 3


async def test_a_client_that_leaves_in_a_stream_cancels_it():
    script = sends_then_waits(STREAM_HEAD, chunk(event("a")))
    async with world(script) as plane:
        client = await plane.client()
        await client.send(post(STREAM_BODY))
        await client.until(event("a"))
        await client.close()
        await script.closed.wait()
        record = await plane.record()
    assert record.outcome.value == "client_closed"
    assert record.code is None
    assert plane.admission.running_count == 1
    assert plane.admission.gates[0].unproven_count == 1
    assert len(plane.unproven) == 1


@pytest.mark.parametrize("body", [BODY, STREAM_BODY])
async def test_a_client_that_leaves_before_the_first_byte_cancels_it(body):
    script = sends_then_waits()
    async with world(script) as plane:
        client = await plane.client()
        await client.send(post(body))
        await script.sent.wait()
        await client.close()
        await script.closed.wait()
        record = await plane.record()
    assert (record.status, record.outcome.value) == (499, "client_closed")


async def test_a_client_that_leaves_with_more_bytes_unread_is_noticed():
    """It pipelined more than is read ahead, then closed."""
    script = sends_then_waits(STREAM_HEAD)
    async with world(script) as plane:
        client = await plane.client()
        await client.send(post(STREAM_BODY))
        await script.sent.wait()
        await client.send(b"x" * 200_000)
        await client.close()
        await script.closed.wait()


async def test_a_hundred_resets_harm_nobody():
    """Clients that reset their connections in every phase; the server goes on."""
    script = answers(STREAM_HEAD + chunk(event("a") * 50) + chunk(DONE_EVENT) + LAST)
    async with world(script, limits=Limits(engine_idle_max_s=0.2)) as plane:
        plane.admission.pending_max = 200
        for number in range(120):
            client = await plane.client()
            client.stream.setsockopt(1, 13, b"\1\0\0\0\0\0\0\0")
            await client.send(post(STREAM_BODY)[: number * 3])
            client.stream.socket.close()
            if plane.admission.gates[0].unproven_count:
                plane.admission.gates[0].settle_unproven()
        got = await plane.ask(post(STREAM_BODY))
    assert got.complete
    assert got.body.endswith(DONE_EVENT)


async def test_a_cancelled_answer_never_reaches_the_next_request():
    """The half-read connection of a client that left is closed, not used again."""
    marks = iter(range(1000))

    async def script(connection):
        while await connection.request() is not None:
            mark = b"%d" % next(marks)
            await connection.send(STREAM_HEAD + chunk(event(f"first-{mark.decode()}")))
            await trio.lowlevel.checkpoint()
            await connection.send(chunk(event(f"last-{mark.decode()}")) + LAST)

    async with world(script) as plane:
        for number in range(60):
            client = await plane.client()
            await client.send(post(STREAM_BODY))
            if number % 2:
                await client.until(b"\r\n\r\n")
                await client.close()
                continue
            got = await client.answer()
            names = {
                part.split(b'"')[0].split(b"-")[1] for part in got.body.split(b'content":"')[1:]
            }
            assert got.complete
            assert len(names) == 1
            await client.close()
            plane.admission.gates[0].settle_unproven()


@pytest.mark.slow
async def test_a_client_that_does_not_read_is_cut_and_holds_little():
    sent = 0

    async def script(connection):
        nonlocal sent
        if await connection.request() is None:
            return
        await connection.send(STREAM_HEAD)
        while True:
            await connection.send(chunk(b"data: " + b"x" * 60_000 + b"\n\n"))
            sent += 60_000

    async with world(script, limits=Limits(client_stall_max_s=0.3)) as plane:
        client = await plane.client()
        await client.send(post(STREAM_BODY))
        record = await plane.record()
    assert record.outcome.value == "client_closed"
    assert sent < 32 * 1024 * 1024
    assert "stalled" in plane.unproven[0][2]


@pytest.mark.slow
async def test_a_slow_client_gets_everything():
    body = b"".join(chunk(b"data: %06d " % n + b"x" * 5000 + b"\n\n") for n in range(2000)) + LAST
    async with world(answers(STREAM_HEAD + body), limits=Limits(client_stall_max_s=5)) as plane:
        client = await plane.client()
        await client.send(post(STREAM_BODY))
        await client.until(b"\r\n\r\n")
        while not client.rest.endswith(LAST):
            client.rest += await client.stream.receive_some(50_000)
            await trio.lowlevel.checkpoint()
        assert ChunkReader().feed(client.rest) == ChunkReader().feed(body)
        record = await plane.record()
    assert record.outcome.value == "served"


async def test_no_output_in_time_before_the_head():
    script = sends_then_waits()
    async with world(script) as plane:
        plane.route("m", request_deadline_s=0.05)
        got = await plane.ask(post(BODY))
        await script.closed.wait()
    assert (got.status, json.loads(got.body)["code"]) == (500, "engine_error")
    assert plane.unproven


async def test_a_role_only_opening_is_no_output():
    script = sends_then_waits(STREAM_HEAD, chunk(ROLE_EVENT))
    async with world(script) as plane:
        plane.route("m", request_deadline_s=0.05)
        got = await plane.ask(post(STREAM_BODY))
    assert not got.complete
    assert got.body.startswith(ROLE_EVENT + b"data: ")
    assert b"engine_error" in got.body


async def test_after_output_the_deadline_is_over_and_pauses_count():
    """Comments are no progress; the request's own deadline does not matter any more."""

    async def script(connection):
        if await connection.request() is None:
            return
        await connection.send(STREAM_HEAD + chunk(event("a")))
        while True:
            await connection.send(chunk(b": ping\n\n"))
            await trio.sleep(0.01)

    async with world(script) as plane:
        plane.route("m", request_deadline_s=0.03, stream_idle_max_s=0.15)
        got = await plane.ask(post(STREAM_BODY))
        record = await plane.record()
    assert not got.complete
    assert b"engine_error" in got.body
    assert b"sent nothing for 0.15 s" in got.body
    assert 0.1 < record.duration_s < 5


async def test_an_error_event_of_the_engine_passes_as_it_came():
    raw = chunk(event("a")) + chunk(b'data: {"error":{"message":"x","code":500}}\n\n') + LAST
    async with world(answers(STREAM_HEAD + raw)) as plane:
        got = await plane.ask(post(STREAM_BODY))
    assert got.raw_body == raw


async def test_an_engine_that_answers_before_it_has_read_the_request():
    """It refuses a large body early: its answer counts, the connection does not."""

    async def script(connection):
        await connection.stream.receive_some(1000)
        await connection.send(json_answer(b'{"message":"too large"}', b"413 Too Large"))
        await connection.closed()

    async with world(script) as plane:
        got = await plane.ask(post(b'{"model":"m","x":"' + b"a" * 8_000_000 + b'"}'))
    assert (got.status, json.loads(got.body)["code"]) == (413, "engine_rejected")
