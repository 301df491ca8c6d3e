"""Orderly ends: what runs is finished, what waits is told, what is left is cut."""

import json

import trio

from capyctl.dataplane.plane import Limits
from tests.dataplane.engines import (
    LAST,
    STREAM_HEAD,
    answers,
    chunk,
    event,
    get,
    json_answer,
    post,
    world,
)

BODY = b'{"model":"m"}'
STREAM_BODY = b'{"model":"m","stream":true}'


def assert_shutting_down(got) -> None:
    told = json.loads(got.body)
    assert (got.status, told["code"], told["retryable"]) == (503, "shutting_down", True)
    assert got.header("retry-after") == "5"
    assert got.header("cache-control") == "no-store"
    assert got.header("connection") == "close"


async def test_new_requests_and_health_are_503():
    async with world(answers(json_answer(b"{}"))) as plane:
        plane.plane.begin_shutdown()
        assert_shutting_down(await plane.ask(post(BODY)))
        assert_shutting_down(await plane.ask(get("/v1/models")))
        assert_shutting_down(await plane.ask(get("/health", key=None)))
        assert (await plane.ask(post(BODY, key=b"wrong"))).status == 401
        assert await plane.plane.wait_idle(0)


async def test_idle_connections_are_answered_once_more_and_waiting_requests_told():
    async with world() as plane:
        idle, waits = await plane.client(), await plane.client()
        await idle.send(get("/v1/models"))
        await idle.answer()
        await waits.send(post(BODY))
        while not plane.admission.waiting_count:
            await trio.lowlevel.checkpoint()
        plane.plane.begin_shutdown()
        assert_shutting_down(await waits.answer())
        await idle.send(post(BODY))
        assert_shutting_down(await idle.answer())
        assert await idle.ended()
        assert plane.admission.waiting_count == 0


async def test_a_stream_is_drained():
    go = trio.Event()

    async def script(connection):
        await connection.request()
        await connection.send(STREAM_HEAD + chunk(event("a")))
        await go.wait()
        await connection.send(LAST)

    async with world(script, limits=Limits(linger_s=0.05)) as plane:
        client = await plane.client()
        await client.send(post(STREAM_BODY))
        await client.until(event("a"))
        plane.plane.begin_shutdown()
        assert not await plane.plane.wait_idle(0.01)
        assert plane.plane.active_count == 1
        go.set()
        assert await plane.plane.wait_idle(5)
        await client.until(LAST)


async def test_streams_that_are_cut_say_so():
    async def script(connection):
        await connection.request()
        await connection.send(STREAM_HEAD + chunk(event("a")))
        await connection.closed()

    async with world(script, limits=Limits(linger_s=0.05)) as plane:
        client = await plane.client()
        await client.send(post(STREAM_BODY))
        await client.until(event("a"))
        plane.plane.begin_shutdown()
        assert plane.plane.cut() == 1
        assert await plane.plane.wait_idle(5)
        await client.until(b"data: ")
        told = json.loads((await client.until(b"\n\n")).decode())
        await client.until(b"\r\n")
        assert await client.ended()
        record = await plane.record()
    assert told["error"]["code"] == "shutting_down"
    assert record.outcome.value == "cut"
    assert len(plane.unproven) == 1


async def test_cancelling_the_server_gives_back_every_lease_and_place():
    arrived = trio.Event()

    async def script(connection):
        await connection.request()
        arrived.set()
        await connection.closed()

    async with world(script) as plane:
        plane.admission.running_max = 1
        running, waits = await plane.client(), await plane.client()
        await running.send(post(BODY))
        await arrived.wait()
        await waits.send(post(BODY))
        while not plane.admission.waiting_count:
            await trio.lowlevel.checkpoint()
    assert plane.admission.waiting_count == 0
    assert plane.admission.gates[0].lease_count == 0
    assert plane.admission.gates[0].unproven_count == 1
    assert plane.bounds.waiting_count == 0


async def test_a_bug_in_one_connection_is_told_and_the_others_go_on():
    bugs: list[Exception] = []
    async with world(answers(json_answer(b"{}")), on_bug=bugs.append) as plane:
        good = plane.table
        plane.table = None
        got = await plane.ask(post(BODY))
        plane.table = good
        fine = await plane.ask(post(BODY))
    assert (got.status, json.loads(got.body)["code"]) == (500, "internal")
    assert isinstance(bugs[0], AttributeError)
    assert fine.status == 200
