"""Through a host's ingress: the same bytes as without it, and nothing that is not open."""

import json
import socket

import attrs
import pytest
import trio

from capyctl.dataplane.listener import bind
from capyctl.dataplane.plane import Limits
from capyctl.gates.gate import HOST_SESSION
from tests.dataplane import certificates
from tests.dataplane.engines import (
    DEPLOYMENT,
    DONE_EVENT,
    ENGINE_KEY,
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
from tests.dataplane.ingresses import HOST, SERVER, call, http, launch, passed, site

BODY = b'{"model":"m","messages":[], "x_custom": {"a":1.0}}'
STREAM_BODY = b'{"model":"m","stream":true}'
ANSWER = b'{"id":"1","choices":[{"message":{"content":"hi"}}],"timings":{"x":1}}'


async def test_the_engine_gets_its_key_and_nothing_of_ours():
    async with site(answers(json_answer(ANSWER))) as plane:
        request = post(
            BODY, "/v1/chat/completions?a=b%20c", headers=("Accept: text/x", "Cookie: c")
        )
        got = await plane.ask(request)

    seen = plane.engines[0].requests[0]
    assert (got.status, got.body) == (200, ANSWER)
    assert seen.body == BODY
    assert seen.line == "POST /v1/chat/completions?a=b%20c HTTP/1.1"
    assert seen.headers == {
        "host": f"127.0.0.1:{plane.engines[0].port}",
        "accept": "text/x",
        "accept-encoding": "identity",
        "content-type": "application/json",
        "content-length": str(len(BODY)),
        "authorization": f"Bearer {ENGINE_KEY}",
    }


@pytest.mark.parametrize("secure", [True, False])
async def test_the_client_sees_what_it_would_see_on_one_machine(secure):
    scripts = {
        "json": answers(json_answer(ANSWER)),
        "stream": answers(STREAM_HEAD + chunk(event("a")) + chunk(DONE_EVENT) + LAST),
        "refused": answers(json_answer(b'{"error":{"message":"too long"}}', b"400 Bad Request")),
        "broken": answers(json_answer(b'{"detail":"oh"}', b"500 Internal Server Error")),
    }
    for name, script in scripts.items():
        body = STREAM_BODY if name == "stream" else BODY
        async with world(script) as near:
            alone = await near.ask(post(body))
        async with site(script, secure=secure) as far:
            through = await far.ask(post(body))
            await far.record()

        assert through.status == alone.status, name
        assert through.body == alone.body, name
        assert through.raw_body == alone.raw_body, name
        ours = ("x-capyctl-request-id",)
        kept = [[h for h in got.headers if h[0] not in ours] for got in (alone, through)]
        assert kept[0] == kept[1], name
        assert far.unproven == [] or name == "broken"
        assert far.admission.running_count == (1 if name == "broken" else 0)


async def test_a_stream_passes_byte_for_byte_wherever_it_is_cut():
    payload = ROLE_EVENT + event("日🙂é") + DONE_EVENT
    whole = STREAM_HEAD + chunk(payload[:70]) + chunk(payload[70:]) + LAST

    async def script(connection):
        for at in range(0, len(whole), 3):
            if await connection.request() is None:
                return
            await connection.send(whole[:at])
            await trio.testing.wait_all_tasks_blocked(0.001)
            await connection.send(whole[at:])

    async with site(script) as plane:
        client = await plane.client()
        for at in range(0, len(whole), 3):
            await client.send(post(STREAM_BODY))
            got = await client.answer()
            assert got.complete, at
            assert got.body == payload, at
        await client.close()
    assert plane.engines[0].connection_count == 1


@pytest.mark.parametrize("size", [100 * 1024, pytest.param(5_000_000, marks=pytest.mark.slow)])
async def test_large_bodies_pass_both_ways(size):
    body = b'{"model":"m","x":"' + bytes(97 + n % 26 for n in range(1024)) * (size // 1024) + b'"}'

    async def script(connection):
        while (seen := await connection.request()) is not None:
            await connection.send(json_answer(seen.body))

    async with site(script) as plane:
        client = await plane.client()
        for _ in range(3):
            await client.send(post(body))
            got = await client.answer()
            assert got.body == body
        await client.close()
    assert [seen.body for seen in plane.engines[0].requests] == [body] * 3


async def test_connections_are_kept_on_both_sides():
    async with site(answers(json_answer(ANSWER))) as plane:
        for _ in range(3):
            assert (await plane.ask(post(BODY))).status == 200
        assert plane.machines[0].ingress.active_count == 0
    assert plane.engines[0].connection_count == 1


async def test_one_connection_serves_every_launch_of_its_host():
    async with site(answers(json_answer(ANSWER))) as plane:
        machine = plane.machines[0]
        stream = await call(machine, certificates.of(SERVER))
        client = http(stream)
        machine.ingress.launches.open(launch(5), plane.engines[0].endpoint, generation=7)
        for index, generation in ((0, 1), (5, 7)):
            await client.send(passed(BODY, index=index, generation=generation))
            assert (await client.answer()).body == ANSWER
        await stream.aclose()
    assert [seen.body for seen in plane.engines[0].requests] == [BODY, BODY]


@pytest.mark.parametrize(
    ("index", "generation", "closes", "status", "word"),
    [
        (1, 1, False, 503, "unknown_launch"),
        (0, 2, False, 409, "stale_generation"),
        (0, 0, False, 409, "stale_generation"),
        (0, 1, True, 503, "closed"),
    ],
)
async def test_what_is_not_open_is_refused_in_words(index, generation, closes, status, word):
    async with site(answers(json_answer(ANSWER))) as plane:
        machine = plane.machines[0]
        if closes:
            machine.ingress.launches.close(launch(0))
        stream = await call(machine, certificates.of(SERVER))
        client = http(stream)
        await client.send(passed(BODY, index=index, generation=generation))
        got = await client.answer()

        assert (got.status, got.header("x-capyctl-ingress")) == (status, word)
        assert json.loads(got.body)["code"] == word
        # The connection is good for the next request.
        machine.ingress.launches.open(launch(0), plane.engines[0].endpoint, generation=3)
        await client.send(passed(BODY, generation=3))
        assert (await client.answer()).status == 200
        await stream.aclose()
    assert len(plane.engines[0].requests) == 1


@pytest.mark.parametrize(
    "lines",
    [
        (),
        ("x-capyctl-launch: 01J00000000000000000000000",),
        ("x-capyctl-launch: ../etc", "x-capyctl-generation: 1"),
        ("x-capyctl-launch: 01J00000000000000000000000", "x-capyctl-generation: -1"),
        (
            "x-capyctl-launch: 01J00000000000000000000000",
            "x-capyctl-launch: 01J00000000000000000000001",
            "x-capyctl-generation: 1",
        ),
    ],
)
async def test_a_request_names_one_launch_and_its_generation(lines):
    async with site(answers(json_answer(ANSWER))) as plane:
        stream = await call(plane.machines[0], certificates.of(SERVER))
        client = http(stream)
        await client.send(post(BODY, headers=lines))
        got = await client.answer()
        await stream.aclose()
    assert got.status == 400
    assert plane.engines[0].requests == []


@pytest.mark.parametrize(
    ("line", "status"),
    [
        ("GET /v1/models", 404),
        ("GET /health", 404),
        ("POST /sleep", 404),
        ("GET /v1/chat/completions", 405),
    ],
)
async def test_only_inference_routes_are_there(line, status):
    async with site(answers(json_answer(ANSWER))) as plane:
        stream = await call(plane.machines[0], certificates.of(SERVER))
        client = http(stream)
        request = passed(BODY).replace(b"POST /v1/chat/completions", line.encode(), 1)
        await client.send(request)
        got = await client.answer()
        await stream.aclose()
    assert got.status == status
    assert plane.engines[0].requests == []


async def test_a_request_that_no_ingress_takes_is_503_and_holds_nothing():
    async with site(answers(json_answer(ANSWER))) as plane:
        plane.machines[0].ingress.launches.close(launch(0))
        got = await plane.ask(post(BODY))

        told = json.loads(got.body)
        assert (got.status, told["code"], told["retryable"]) == (503, "unavailable", True)
        assert "takes no requests now" in told["message"]
        assert plane.admission.running_count == 0
        assert plane.unproven == []


@pytest.mark.parametrize("streams", [False, True])
async def test_a_request_that_one_ingress_does_not_take_goes_to_another(streams):
    async with site(answers(json_answer(ANSWER)), answers(json_answer(ANSWER))) as plane:
        plane.machines[0].ingress.launches.close(launch(0))
        plane.machines[1].ingress.launches.open(launch(1), plane.engines[1].endpoint, generation=1)
        for _ in range(4):
            got = await plane.ask(post(STREAM_BODY if streams else BODY))
            assert (got.status, got.body) == (200, ANSWER)

        assert plane.unproven == []
        assert plane.admission.running_count == 0
    assert [len(engine.requests) for engine in plane.engines] == [0, 4]


async def test_an_engine_that_is_gone_is_no_engine_that_took_it():
    async with site(answers(json_answer(ANSWER)), answers(json_answer(ANSWER))) as plane:
        with bind("127.0.0.1", 0) as free:
            gone = attrs.evolve(plane.engines[0].endpoint, port=free.getsockname()[1])
        plane.machines[0].ingress.launches.open(launch(0), gone, generation=1)
        for _ in range(2):
            assert (await plane.ask(post(BODY))).status == 200
        assert plane.unproven == []


async def test_an_engine_that_took_it_and_died_is_asked_no_second_time():
    async def script(connection):
        await connection.request()

    async with site(script, script) as plane:
        got = await plane.ask(post(BODY))
        told = json.loads(got.body)
        assert (got.status, told["code"]) == (500, "engine_error")
        assert told["message"].startswith("the engine failed before its answer: ")
        assert len(plane.unproven) == 1
    assert sum(len(engine.requests) for engine in plane.engines) == 1


async def test_an_engine_that_dies_in_a_stream_leaves_no_end_of_it():
    async def script(connection):
        await connection.request()
        await connection.send(STREAM_HEAD + chunk(event("a")))

    async with site(script) as plane:
        got = await plane.ask(post(STREAM_BODY))
    first, _, last = got.body.partition(b"\n\n")
    assert first + b"\n\n" == event("a")
    assert b'"code":"engine_error"' in last
    assert last.count(b"data:") == 1
    assert b"[DONE]" not in got.body
    assert len(plane.unproven) == 1


async def test_a_client_that_leaves_takes_the_engines_work_with_it():
    left = trio.Event()

    async def script(connection):
        await connection.request()
        await connection.send(STREAM_HEAD + chunk(event("a")))
        await connection.closed()
        left.set()

    async with site(script) as plane:
        client = await plane.client()
        await client.send(post(STREAM_BODY))
        await client.until(b"\n\n\r\n")
        assert plane.machines[0].ingress.launches.in_flight(launch(0)) == 1
        await client.close()
        await left.wait()
        await plane.record()
        assert [who.deployment for who, *_ in plane.unproven] == [DEPLOYMENT]
        while plane.machines[0].ingress.active_count:
            await trio.lowlevel.checkpoint()
        assert plane.machines[0].ingress.launches.in_flight(launch(0)) == 0


async def test_a_slow_client_holds_the_engine_up():
    """What lies between them is bounded: sockets' buffers, and a few pieces in two planes."""
    sent = 0
    piece = chunk(event("x" * 60_000))

    async def script(connection):
        nonlocal sent
        await connection.request()
        await connection.send(STREAM_HEAD)
        while True:
            await connection.send(piece)
            sent += len(piece)

    async with site(script, limits=Limits(client_stall_max_s=1000.0)) as plane:
        client = await plane.client()
        await client.send(post(STREAM_BODY))
        await client.until(b"\n\n\r\n")
        before = -1
        while sent != before:
            before = sent
            await trio.testing.wait_all_tasks_blocked(0.05)
        assert sent < 64 * 1024 * 1024
        stuck = sent
        seen = 0
        while seen < stuck + 1024 * 1024:
            seen += len(await client.stream.receive_some(1024 * 1024))
        assert sent > stuck
        await client.close()


async def test_an_answer_that_ends_its_connection_is_sent_whole_to_a_slow_server():
    """What the kernel has not taken when the answer is done is not lost with the connection."""
    body = b"x" * 60_000
    listening = bind("127.0.0.1", 0)
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
    async with site() as plane:
        machine = await plane.add_machine(answers(json_answer(body)), where=listening)
        tcp = trio.socket.socket()
        tcp.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        await tcp.connect(("127.0.0.1", machine.port))
        stream = await call(machine, certificates.of(SERVER), tcp=tcp)
        await stream.send_all(passed(BODY, headers=("Connection: close",)))
        while not plane.engines[0].requests or machine.ingress.active_count:
            await trio.lowlevel.checkpoint()
        got = await http(stream).answer()
        assert got.header("connection") == "close"
        assert (got.complete, got.body) == (True, body)
        await trio.aclose_forcefully(stream)


async def test_a_kept_connection_that_its_engine_has_not_read_is_replaced():
    async def script(connection):
        await connection.request()
        await connection.send(json_answer(ANSWER))
        if connection.engine.connection_count == 1:
            await trio.lowlevel.wait_readable(connection.stream.socket)
            return
        await connection.request()

    async with site(script) as plane:
        for _ in range(2):
            assert (await plane.ask(post(BODY))).status == 200
        assert plane.unproven == []
        # The second connection read its second request and closed: that is a failure.
        assert (await plane.ask(post(BODY))).status == 500
    assert plane.engines[0].connection_count == 2
    assert len(plane.engines[0].requests) == 3


async def test_a_silent_host_gets_no_more_requests_and_keeps_those_it_has():
    go = trio.Event()

    async def script(connection):
        while await connection.request() is not None:
            await connection.send(STREAM_HEAD + chunk(event("a")))
            await go.wait()
            await connection.send(chunk(DONE_EVENT) + LAST)

    async with site(script) as plane:
        runs, waits = await plane.client(), await plane.client()
        await runs.send(post(STREAM_BODY))
        await runs.until(b"\n\n\r\n")
        plane.gates[0].close(HOST_SESSION)
        plane.plane.close_host(HOST, cut=False)
        await waits.send(post(STREAM_BODY))
        await plane.until(lambda: bool(plane.nudges))
        assert plane.admission.waiting_count == 1
        go.set()
        await runs.until(LAST)
        plane.gates[0].reopen(HOST_SESSION)
        assert (await waits.answer()).body == event("a") + DONE_EVENT
        assert plane.unproven == []
        await runs.close()
        await waits.close()


async def test_a_host_that_stops_says_so_and_finishes_what_it_has():
    go = trio.Event()

    async def script(connection):
        while await connection.request() is not None:
            await connection.send(STREAM_HEAD + chunk(event("a")))
            await go.wait()
            await connection.send(chunk(DONE_EVENT) + LAST)

    async with site(script) as plane:
        ingress = plane.machines[0].ingress
        client = await plane.client()
        await client.send(post(STREAM_BODY))
        await client.until(b"\n\n\r\n")
        ingress.begin_shutdown()
        got = await plane.ask(post(BODY))
        assert (got.status, json.loads(got.body)["code"]) == (503, "unavailable")
        assert not await ingress.wait_idle(0)
        go.set()
        await client.until(LAST)
        assert await ingress.wait_idle(10)
        await client.close()


async def test_a_host_that_cuts_breaks_answers_off():
    async def script(connection):
        await connection.request()
        await connection.send(STREAM_HEAD + chunk(event("a")))
        await connection.closed()

    async with site(script) as plane:
        client = await plane.client()
        await client.send(post(STREAM_BODY))
        await client.until(b"\n\n\r\n")
        assert plane.machines[0].ingress.cut() == 1
        rest = await client.until(b'"engine_error"}}\n\n')
        assert b"[DONE]" not in rest
        await plane.record()
        assert len(plane.unproven) == 1
