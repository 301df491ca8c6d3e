"""Streams and bodies: bytes are relayed as they are, whatever an engine thinks of next."""

import hashlib
import json

import pytest
import trio

from capyctl.dataplane.plane import Limits
from tests.dataplane.engines import (
    LAST,
    STREAM_HEAD,
    answers,
    chunk,
    json_answer,
    post,
    world,
)

STREAM = b'{"model":"m","stream":true}'
MESSAGES = (
    b'event: message_start\r\ndata: {"type":"message_start"}\r\n\r\n'
    b'event: ping\r\ndata: {"type": "ping"}\r\n\r\n'
    b'event: content_block_delta\ndata: {"type":"content_block_delta",\ndata: "index":0}\n\n'
    b": a comment\n\nid: 7\nretry: 10\ndata: {}\n\n"
    b'event: message_stop\ndata: {"type":"message_stop"}'
)
"""Both line ends, a comment, an event of several lines, and no blank line at the end."""
RESPONSES = b"".join(
    b'event: response.%b\ndata: {"type":"response.%b","sequence_number":%d}\n\n' % (name, name, n)
    for n, name in enumerate((b"created", b"output_text.delta", b"output_text.done", b"completed"))
)
CHOICES = b"".join(
    b"data: %b\n\n" % json.dumps(delta, ensure_ascii=False).encode()
    for delta in (
        {"choices": [{"index": 1, "delta": {"content": "é"}}]},
        {"choices": [{"index": 0, "delta": {"tool_calls": [{"index": 2, "id": "c"}]}}]},
        {"choices": [{"index": 0, "delta": {"tool_calls": [{"index": 0, "id": "a"}]}}]},
        {"choices": [{"index": 1, "delta": {"new_thing": {"deep": [1.0, 1e30]}}}]},
        {"choices": [], "timings": {"x": 1}, "x_custom": None},
    )
)


@pytest.mark.parametrize(
    ("path", "payload"),
    [
        ("/v1/messages", MESSAGES),
        ("/v1/responses", RESPONSES),
        ("/v1/chat/completions", CHOICES),
    ],
    ids=["messages", "responses", "choices"],
)
async def test_events_of_any_shape_arrive_as_they_were_sent(path, payload):
    """Names, comments, order, unknown keys: nothing is put together again."""
    third = len(payload) // 3
    pieces = (payload[:third], payload[third : 2 * third], payload[2 * third :])
    raw = STREAM_HEAD + b"".join(map(chunk, pieces)) + LAST
    async with world(answers(raw)) as plane:
        got = await plane.ask(post(STREAM, path))
        record = await plane.record()

    assert hashlib.sha256(got.body).digest() == hashlib.sha256(payload).digest()
    assert got.complete
    assert record.outcome.value == "served"


async def test_fields_that_nobody_knows_stay_in_a_whole_answer():
    answer = b'{"id":"1", "timings":{"predicted_ms":1.50},"x_custom":[1e400],"choices":[]}'
    async with world(answers(json_answer(answer))) as plane:
        got = await plane.ask(post(b'{"model":"m"}'))

    assert got.body == answer


async def test_an_engine_that_thinks_for_long_before_its_head_is_waited_for():
    """Only the request's deadline ends that; the short bounds are for connecting."""

    async def script(connection):
        await connection.request()
        await trio.sleep(0.3)
        await connection.send(json_answer(b"{}"))

    limits = Limits(connect_timeout_s=0.05, head_timeout_s=0.1, body_pause_max_s=0.1)
    async with world(script, limits=limits) as plane:
        got = await plane.ask(post(b'{"model":"m"}'))

    assert got.status == 200


async def test_a_client_that_left_is_told_as_that_and_as_no_error():
    arrived = trio.Event()

    async def silent(connection):
        await connection.request()
        arrived.set()
        await connection.closed()

    async with world(silent) as plane:
        client = await plane.client()
        await client.send(post(STREAM))
        await arrived.wait()
        await client.close()
        record = await plane.record()

    assert record.outcome.value == "client_closed"
    assert record.code is None
