"""Connections to engines: reused when whole, replaced when stale, never a reason to wait."""

import json
import socket

import attrs
import pytest
import trio

from capyctl.dataplane.plane import Limits
from tests.dataplane.engines import (
    DONE_EVENT,
    LAST,
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


async def test_a_connection_is_reused_after_each_kind_of_whole_answer():
    kinds = [
        json_answer(b"{}"),
        STREAM_HEAD + chunk(event("a")) + LAST,
        json_answer(b"{}", b"400 Bad"),
        STREAM_HEAD + chunk(DONE_EVENT) + b"0\r\nTrailer: x\r\n\r\n",
        b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n",
    ]

    async def script(connection):
        for kind in kinds:
            await connection.request()
            await connection.send(kind)
        await connection.closed()

    async with world(script) as plane:
        for _ in kinds:
            await plane.ask(post(BODY))
    assert plane.engines[0].connection_count == 1


async def test_an_engine_that_wants_its_connection_closed_gets_a_new_one():
    answer = json_answer(b"{}").replace(b"server: uvicorn", b"connection: close")
    async with world(answers(answer)) as plane:
        for _ in range(3):
            assert (await plane.ask(post(BODY))).status == 200
    assert plane.engines[0].connection_count == 3


async def test_a_kept_connection_that_the_engine_closed_is_not_used():
    async def script(connection):
        await connection.request()
        await connection.send(json_answer(b"{}"))

    async with world(script) as plane:
        client = await plane.client()
        for _ in range(30):
            await client.send(post(BODY))
            assert (await client.answer()).status == 200
    assert len(plane.engines[0].requests) == 30


@pytest.mark.slow
async def test_an_engine_that_closes_idle_connections_at_any_moment():
    """Each request meets the closing of a kept connection at another offset: none fails."""

    async def script(connection):
        count = 0
        while True:
            with trio.move_on_after(0.003 if count else 5) as idle:
                if await connection.request() is None:
                    return
            if idle.cancelled_caught:
                return
            await connection.send(json_answer(b"{}"))
            count += 1

    async with world(script) as plane:
        client = await plane.client()
        for number in range(200):
            await client.send(post(BODY))
            assert (await client.answer()).status == 200
            await trio.sleep(0.0025 + number % 10 * 0.0001)
    assert len(plane.engines[0].requests) == 200
    assert plane.unproven == []


async def test_a_request_that_was_read_is_delivered_once():
    """The engine reads it on a kept connection, then closes: that is a failure, not a retry."""

    async def script(connection):
        await connection.request()
        await connection.send(json_answer(b"{}"))
        await connection.request()

    async with world(script) as plane:
        client = await plane.client()
        await client.send(post(BODY))
        assert (await client.answer()).status == 200
        await client.send(post(BODY))
        got = await client.answer()
    assert (got.status, json.loads(got.body)["code"]) == (500, "engine_error")
    assert len(plane.engines[0].requests) == 2


async def test_idle_connections_are_closed_before_an_engine_does_it():
    closed = trio.Event()

    async def script(connection):
        await connection.request()
        await connection.send(json_answer(b"{}"))
        await connection.closed()
        closed.set()

    async with world(script, limits=Limits(engine_idle_max_s=0.05)) as plane:
        client = await plane.client()
        await client.send(post(BODY))
        await client.answer()
        await closed.wait()


async def test_connections_of_an_earlier_launch_are_not_used():
    async with world(answers(json_answer(b'{"n":1}'))) as plane:
        other = await plane.add_engine(answers(json_answer(b'{"n":2}')), ready=False)
        gate = plane.admission.gates[0]
        assert (await plane.ask(post(BODY))).body == b'{"n":1}'
        gate.close("engine_exit")
        gate.open_for(other.endpoint, 2)
        assert (await plane.ask(post(BODY))).body == b'{"n":2}'


@pytest.mark.slow
async def test_three_hundred_streams_to_one_engine_all_begin():
    go = trio.Event()

    async def script(connection):
        if await connection.request() is not None:
            await connection.send(STREAM_HEAD + chunk(event("a")))
            await go.wait()
            await connection.send(chunk(DONE_EVENT) + LAST)
            await connection.closed()

    async with world(script) as plane:
        plane.admission.running_max = 400
        clients = [await plane.client() for _ in range(300)]
        for client in clients:
            await client.send(post(STREAM_BODY))
        for client in clients:
            await client.until(event("a"))
        go.set()
        for client in clients:
            await client.until(LAST)
    assert plane.engines[0].connection_count == 300


async def test_an_engine_that_does_not_answer_a_connect():
    """A full backlog: the connect is given up after its own, short time."""
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen(0)
        fillers = [socket.socket() for _ in range(3)]
        for filler in fillers:
            filler.setblocking(False)
            filler.connect_ex(silent.getsockname())
        async with world(answers(b""), limits=Limits(connect_timeout_s=0.05)) as plane:
            port = silent.getsockname()[1]
            endpoint = attrs.evolve(plane.engines[0].endpoint, port=port)
            plane.admission.gates[0].open_for(endpoint, 2)
            got = await plane.ask(post(BODY))
        for filler in fillers:
            filler.close()
    assert (got.status, json.loads(got.body)["code"]) == (500, "engine_error")
    assert plane.unproven == []
