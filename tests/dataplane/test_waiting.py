"""Requests that wait: for a model, for a slot; and how each wait ends."""

import json
import socket

import attrs
import pytest
import trio

from capyctl.dataplane.plane import Limits
from capyctl.domain.errors import InferenceRefusal
from tests.dataplane.engines import (
    DEPLOYMENT,
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
ANSWER = answers(json_answer(b"{}"))
COMMENTS = Limits(comment_interval_s=0.02)


class Held:
    """An engine that answers when it is told to."""

    def __init__(self, answer: bytes = json_answer(b"{}")) -> None:
        self.answer = answer
        self.go = trio.Event()
        self.arrived = trio.Event()

    async def __call__(self, connection) -> None:
        while await connection.request() is not None:
            self.arrived.set()
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._watch, connection, nursery.cancel_scope)
                await self.go.wait()
                nursery.cancel_scope.cancel()
            await connection.send(self.answer)

    async def _watch(self, connection, scope) -> None:
        await connection.closed()
        scope.cancel()


async def waiting(plane, count: int = 1) -> None:
    """Until so many requests wait."""
    while plane.admission.waiting_count != count:
        await trio.lowlevel.checkpoint()


async def test_a_request_for_a_model_that_is_not_ready_waits_for_it():
    async with world() as plane:
        engine = await plane.add_engine(ANSWER, ready=False)
        client, second = await plane.client(), await plane.client()
        await client.send(post(BODY))
        await waiting(plane)
        await second.send(post(BODY))
        await waiting(plane, 2)
        plane.admission.gates[0].open_for(engine.endpoint, 1)
        assert (await client.answer()).status == 200
        assert (await second.answer()).status == 200
        record = await plane.record()
    assert plane.nudges == [DEPLOYMENT]
    assert record.waited_s > 0


async def test_a_request_waits_for_a_slot_first_come_first_served():
    held = Held()
    bodies = [b'{"model":"m","n":%d}' % number for number in range(4)]
    async with world(held) as plane:
        plane.admission.running_max = 1
        clients = [await plane.client() for _ in bodies]
        await clients[0].send(post(bodies[0]))
        await held.arrived.wait()
        for number in range(1, 4):
            await clients[number].send(post(bodies[number]))
            await waiting(plane, number)
        held.go.set()
        for client in reversed(clients):
            assert (await client.answer()).status == 200
    assert [seen.body for seen in plane.engines[0].requests] == bodies
    assert plane.nudges == []


@pytest.mark.parametrize("streams", [False, True])
async def test_over_the_limits_a_request_is_refused_at_once(streams):
    held = Held()
    async with world(held) as plane:
        plane.admission.running_max = 1
        plane.admission.pending_max = 1
        first, second = await plane.client(), await plane.client()
        await first.send(post(BODY))
        await held.arrived.wait()
        await second.send(post(BODY))
        await waiting(plane)
        got = await plane.ask(post(STREAM_BODY if streams else BODY))
        held.go.set()
        assert (await first.answer()).status == (await second.answer()).status == 200
    assert got.status == 429
    assert got.header("retry-after") == "1"
    assert got.header("content-type") == "application/json"
    told = json.loads(got.body)
    assert (told["code"], told["retryable"]) == ("queue_full", True)


async def test_without_a_queue_the_model_is_asked_for_all_the_same():
    async with world() as plane:
        plane.admission.pending_max = 0
        got = await plane.ask(post(BODY))
        plane.admission.refusal = InferenceRefusal(code="deployment_stopped", message="stopped")
        stopped = await plane.ask(post(BODY))
    assert got.status == 429
    assert plane.nudges == [DEPLOYMENT]
    assert stopped.status == 409
    assert json.loads(stopped.body)["code"] == "deployment_stopped"


async def test_waiters_are_answered_by_a_refusal():
    async with world() as plane:
        client = await plane.client()
        await client.send(post(BODY))
        await waiting(plane)
        plane.admission.refuse_waiting(InferenceRefusal(code="activation_failed", message="no"))
        got = await client.answer()
        await client.send(post(BODY))
        await waiting(plane)
    assert (got.status, json.loads(got.body)["code"]) == (500, "activation_failed")


async def test_a_client_that_leaves_gives_up_only_its_own_place():
    async with world() as plane:
        engine = await plane.add_engine(ANSWER, ready=False)
        clients = [await plane.client() for _ in range(5)]
        for number, client in enumerate(clients, 1):
            await client.send(post(BODY))
            await waiting(plane, number)
        await clients[1].close()
        await waiting(plane, 4)
        await clients[3].close()
        await waiting(plane, 3)
        plane.admission.gates[0].open_for(engine.endpoint, 1)
        for number in (0, 2, 4):
            assert (await clients[number].answer()).status == 200
        await plane.record(5)
    outcomes = [record.outcome.value for record in plane.records]
    assert outcomes.count("client_closed") == 2
    assert [r.status for r in plane.records if r.outcome.value == "client_closed"] == [499, 499]
    assert plane.unproven == []
    assert plane.admission.running_count == 0


async def test_leaving_in_the_step_of_the_grant_gives_the_lease_back():
    """The client is gone and the gate opens before the request's task runs again."""
    async with world() as plane:
        engine = await plane.add_engine(ANSWER, ready=False)
        client = await plane.client()
        await client.send(post(BODY))
        await waiting(plane)
        exchange = next(iter(plane.plane.state.requests))
        exchange._client.lose("closed")
        plane.admission.gates[0].open_for(engine.endpoint, 1)
        assert plane.admission.running_count == 1
        await plane.record()
    assert plane.admission.running_count == 0
    assert plane.engines[0].requests == []


@pytest.mark.parametrize(
    ("running", "status", "code"), [(0, 503, "unavailable"), (1, 429, "queue_full")]
)
async def test_a_wait_past_the_deadline(running, status, code):
    held = Held()
    async with world(held) as plane:
        if running:
            plane.admission.running_max = 1
            client = await plane.client()
            await client.send(post(BODY))
            await held.arrived.wait()
        else:
            plane.admission.gates[0].close("park")
        plane.route("m", request_deadline_s=0.05)
        got = await plane.ask(post(BODY))
        held.go.set()
    told = json.loads(got.body)
    assert (got.status, told["code"], told["retryable"]) == (status, code, True)
    assert plane.admission.waiting_count == 0


async def test_a_waiting_stream_gets_comments_and_then_its_answer():
    payload = event("hi") + DONE_EVENT
    script = answers(STREAM_HEAD + chunk(payload) + LAST)
    async with world(limits=COMMENTS) as plane:
        engine = await plane.add_engine(script, ready=False)
        client = await plane.client()
        await client.send(post(STREAM_BODY))
        head = await client.until(b"\r\n\r\n")
        for _ in range(2):
            await client.until(chunk(b": keep-alive\n\n"))
        plane.admission.gates[0].open_for(engine.endpoint, 1)
        rest = await client.until(LAST)
        await client.send(post(STREAM_BODY))
        again = await client.answer()
    assert head.startswith(b"HTTP/1.1 200 OK\r\n")
    assert b"text/event-stream" in head
    assert b"x-capyctl-request-id: " in head
    assert rest.endswith(chunk(payload) + LAST)
    assert again.body == payload


async def test_other_answers_get_no_comments():
    async with world(limits=COMMENTS) as plane:
        plane.route("m", request_deadline_s=0.1)
        plain = await plane.ask(post(BODY))
        embedding = await plane.ask(post(STREAM_BODY, "/v1/embeddings"))
    assert (plain.status, embedding.status) == (503, 503)


async def test_comments_can_be_turned_off():
    async with world(limits=Limits(comment_interval_s=None)) as plane:
        plane.route("m", request_deadline_s=0.1)
        assert (await plane.ask(post(STREAM_BODY))).status == 503


async def test_after_a_comment_a_refusal_is_an_event():
    async with world(limits=COMMENTS) as plane:
        client = await plane.client()
        await client.send(post(STREAM_BODY))
        await client.until(b": keep-alive\n\n")
        plane.admission.refuse_waiting(InferenceRefusal(code="insufficient_resources", message="x"))
        await client.until(b"data: ")
        told = json.loads((await client.until(b"\n\n")).decode())
        assert await client.until(b"\r\n") == b"\r\n"
        assert await client.ended()
        record = await plane.record()
    assert told["error"]["code"] == told["code"] == "insufficient_resources"
    assert (record.status, record.code) == (200, "insufficient_resources")


async def test_an_engine_error_after_a_comment_is_an_event():
    held = Held(json_answer(b'{"error":{"message":"bad"}}', b"400 Bad Request"))
    async with world(held, limits=COMMENTS) as plane:
        client = await plane.client()
        await client.send(post(STREAM_BODY))
        await client.until(b": keep-alive\n\n")
        held.go.set()
        await client.until(b"data: ")
        told = json.loads((await client.until(b"\n\n")).decode())
    assert (told["code"], told["message"]) == ("engine_rejected", "bad")


async def test_old_clients_that_wait_get_plain_comments():
    payload = event("hi") + DONE_EVENT
    async with world(limits=COMMENTS) as plane:
        engine = await plane.add_engine(answers(STREAM_HEAD + chunk(payload) + LAST), ready=False)
        client = await plane.client()
        await client.send(post(STREAM_BODY).replace(b"HTTP/1.1", b"HTTP/1.0"))
        await client.until(b": keep-alive\n\n")
        plane.admission.gates[0].open_for(engine.endpoint, 1)
        got = await client.until(DONE_EVENT)
        assert await client.ended()
    assert got.endswith(payload)
    assert b"\r\n" not in got


async def test_fail_over_only_before_an_engine_accepted():
    async with world(ANSWER) as plane:
        plane.admission.gates[0].open_for(
            attrs.evolve(plane.engines[0].endpoint, port=closed_port()), 2
        )
        second = await plane.add_engine(ANSWER)
        for _ in range(3):
            assert (await plane.ask(post(BODY))).status == 200
    assert len(second.requests) == 3
    assert plane.unproven == []
    assert plane.admission.running_count == 0


async def test_no_instance_accepts_connections():
    async with world(ANSWER) as plane:
        plane.admission.gates[0].open_for(
            attrs.evolve(plane.engines[0].endpoint, port=closed_port()), 2
        )
        got = await plane.ask(post(BODY))
    assert (got.status, json.loads(got.body)["code"]) == (500, "engine_error")
    assert plane.unproven == []
    assert plane.admission.running_count == 0


def closed_port() -> int:
    """A port that nobody listens on: it was free a moment ago."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]
