"""What reaches the engine, and what comes back, byte for byte."""

import json

import pytest
import trio
import trio.testing

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
    get,
    json_answer,
    post,
    world,
)

BODY = b'{"model":"m","messages":[], "x_custom": {"a":1.0}}'
ANSWER = b'{"id":"1","choices":[{"message":{"content":"hi"}}],"timings":{"x":1}}'


async def test_engine_gets_the_body_as_it_came_and_nothing_of_the_client():
    async with world(answers(json_answer(ANSWER))) as plane:
        request = post(
            BODY,
            "/v1/chat/completions?a=b%20c",
            headers=(
                "Accept: text/x",
                "X-Request-Id: mine",
                "X-Conversation-Id: c",
                "Cookie: c",
                "Accept-Encoding: br",
            ),
        )
        got = await plane.ask(request)

    seen = plane.engines[0].requests[0]
    assert got.body == ANSWER
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


async def test_answer_comes_back_with_the_engines_headers_and_our_ids():
    answer = (
        b"HTTP/1.1 200 OK\r\nServer: uvicorn\r\nConnection: keep-alive, X-Foo\r\nX-Foo: 1\r\n"
        b"Keep-Alive: timeout=5\r\nSet-Cookie: a\r\nSet-Cookie: b\r\nX-Request-Id: engine\r\n"
        b"Access-Control-Allow-Origin: *\r\nContent-Type: application/json\r\n"
        b"Content-Length: 2\r\n\r\n{}"
    )
    async with world(answers(answer)) as plane:
        got = await plane.ask(post(BODY, headers=("X-Request-Id: mine-1",)))
        record = await plane.record()

    names = [name.lower() for name, _ in got.headers]
    assert names.count("server") == 1
    assert names.count("set-cookie") == 2
    assert not {"connection", "keep-alive", "x-foo", "access-control-allow-origin"} & set(names)
    assert got.header("x-request-id") == "mine-1"
    assert len(got.header("x-capyctl-request-id")) == 26
    assert record.request_id == got.header("x-capyctl-request-id")
    assert record.client_request_id == "mine-1"


@pytest.mark.parametrize("bad", ["", "a b", "x" * 129, "\xe9"])
async def test_an_invalid_request_id_is_not_echoed(bad):
    async with world(answers(json_answer(ANSWER))) as plane:
        client = await plane.client()
        raw = post(BODY).replace(
            b"Host: test", b"Host: test\r\nX-Request-Id: " + bad.encode("latin-1")
        )
        await client.send(raw)
        got = await client.answer()
        await client.close()

    assert got.status == 200
    assert got.header("x-request-id") is None


async def test_a_stream_passes_unchanged_framing_included():
    parts = [
        ROLE_EVENT,
        event("日本🙂é"),
        b": comment\n\n",
        b"event: x\r\ndata: 1\r\n\r\n",
        DONE_EVENT,
    ]
    raw = b"".join(chunk(part) for part in parts) + LAST
    async with world(answers(STREAM_HEAD + raw)) as plane:
        got = await plane.ask(post(b'{"model":"m","stream":true}'))
        record = await plane.record()

    assert got.raw_body == raw
    assert got.header("content-type") == "text/event-stream; charset=utf-8"
    assert record.streamed
    assert record.outcome.value == "served"
    assert record.first_output_s is not None


@pytest.mark.slow
async def test_a_stream_split_anywhere_keeps_its_bytes():
    """Chunk lines, UTF-8 and events cut at every offset: the payload is the same, and whole."""
    payload = event("日🙂é") + DONE_EVENT
    whole = STREAM_HEAD + chunk(payload[:70]) + chunk(payload[70:]) + LAST

    async def script(connection):
        for at in range(len(whole)):
            if await connection.request() is None:
                return
            await connection.send(whole[:at])
            await trio.testing.wait_all_tasks_blocked(0.001)
            await connection.send(whole[at:])

    async with world(script) as plane:
        client = await plane.client()
        for at in range(len(whole)):
            await client.send(post(b'{"model":"m","stream":true}'))
            got = await client.answer()
            assert got.complete, at
            assert got.body == payload, at
        await client.close()
    assert plane.engines[0].connection_count == 1


async def test_an_engine_that_sends_byte_by_byte():
    payload = event("hi") + DONE_EVENT
    pieces = [bytes((byte,)) for byte in STREAM_HEAD + chunk(payload) + LAST]
    async with world(answers(b"", pieces=pieces)) as plane:
        got = await plane.ask(post(b'{"model":"m","stream":true}'))
    assert (got.complete, got.body) == (True, payload)


async def test_old_clients_get_the_payload_without_chunks():
    payload = event("hi") + DONE_EVENT
    async with world(answers(STREAM_HEAD + chunk(payload) + LAST)) as plane:
        request = post(b'{"model":"m","stream":true}').replace(b"HTTP/1.1", b"HTTP/1.0", 1)
        got = await plane.ask(request)
    assert got.body == payload
    assert got.header("connection") == "close"
    assert got.header("transfer-encoding") is None


async def test_an_answer_that_ends_with_the_engines_connection_is_framed():
    async def script(connection):
        await connection.request()
        await connection.send(b"HTTP/1.0 200 OK\r\ncontent-type: application/json\r\n\r\n")
        await connection.send(ANSWER)

    async with world(script) as plane:
        got = await plane.ask(post(BODY))
    assert (got.complete, got.body) == (True, ANSWER)
    assert plane.unproven == []


async def test_informational_answers_are_passed_over():
    async with world(
        answers(b"HTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\n" + json_answer(ANSWER))
    ) as plane:
        got = await plane.ask(post(BODY))
    assert got.body == ANSWER


async def test_a_second_name_is_replaced_in_the_body_and_nothing_else():
    async with world(answers(json_answer(ANSWER))) as plane:
        plane.route("m", "org/other:7b")
        body = b'{ "nested":{"model":"org/other:7b"},"model" : "org/other:7b", "n":1e3 }'
        await plane.ask(post(body))
    seen = plane.engines[0].requests[0]
    assert seen.body == b'{ "nested":{"model":"org/other:7b"},"model" : "m", "n":1e3 }'


async def test_a_chunked_request_reaches_the_engine_with_its_length():
    raw = (
        b"5\r\n"
        + BODY[:5]
        + b"\r\n"
        + b"%x;ext=1\r\n" % (len(BODY) - 5)
        + BODY[5:]
        + b"\r\n0\r\nT: 1\r\n\r\n"
    )
    async with world(answers(json_answer(ANSWER))) as plane:
        client = await plane.client()
        request = post(raw, headers=("Transfer-Encoding: chunked",))
        for at in range(0, len(request), 7):
            await client.send(request[at : at + 7])
        assert (await client.answer()).body == ANSWER
        await client.send(post(BODY))
        assert (await client.answer()).body == ANSWER
        await client.close()
    first, second = plane.engines[0].requests
    assert first.body == second.body == BODY
    assert "transfer-encoding" not in first.headers


@pytest.mark.slow
async def test_large_bodies_pass_both_ways():
    body = b'{"model":"m","x":"' + b"a" * 20_000_000 + b'"}'
    async with world(answers(json_answer(body))) as plane:
        got = await plane.ask(post(body))
    assert plane.engines[0].requests[0].body == body
    assert got.body == body


async def test_pipelined_requests_are_answered_in_order():
    async def script(connection):
        while (seen := await connection.request()) is not None:
            await connection.send(json_answer(seen.body))

    bodies = [b'{"model":"m","n":%d}' % n for n in range(5)]
    async with world(script) as plane:
        client = await plane.client()
        await client.send(b"".join(post(body) for body in bodies))
        got = [(await client.answer()).body for _ in bodies]
        await client.close()
    assert got == bodies
    assert plane.engines[0].connection_count == 1


async def test_a_form_is_routed_by_its_model_field():
    def form(model: bytes) -> bytes:
        return (
            b'--B\r\nContent-Disposition: form-data; name="file"; filename="a.wav"\r\n\r\n'
            b"\x00\xff\r\n"
            b'--B\r\nContent-Disposition: form-data; name="model"\r\n\r\n'
            + model
            + b"\r\n--B--\r\n"
        )

    headers = ("Content-Type: multipart/form-data; boundary=B",)
    async with world(answers(json_answer(ANSWER))) as plane:
        plane.route("m", "whisper")
        for model in (b"m", b"whisper"):
            got = await plane.ask(post(form(model), "/v1/audio/transcriptions", headers=headers))
            assert got.status == 200
        wrong = await plane.ask(post(BODY, "/v1/audio/transcriptions"))
    assert [seen.body for seen in plane.engines[0].requests] == [form(b"m"), form(b"m")]
    assert plane.engines[0].requests[0].headers["content-type"] == "multipart/form-data; boundary=B"
    assert wrong.status == 400


async def test_figures_only_where_they_are_asked_for():
    answer = json_answer(
        b'{"usage":{"prompt_tokens_details":{"cached_tokens":3}},"metrics":{"queue_time_ms":1.23456,"time_to_first_token_ms":10,"mean_itl_ms":20.0}}\n'
    )
    async with world(answers(answer)) as plane:
        plain = await plane.ask(post(BODY))
        asked = await plane.ask(post(BODY, headers=("X-CapyCTL-Metrics: on",)))
    assert b"capyctl" not in plain.body
    assert json.loads(asked.body)["capyctl"] == {
        "metrics": {
            "ttft_ms": {"value": 11.235, "source": "engine"},
            "queue_ms": {"value": 1.235, "source": "engine"},
            "prefill_ms": {"value": 10, "source": "engine"},
            "decode_tokens_per_second": {"value": 50.0, "source": "engine"},
            "cached_tokens": {"value": 3, "source": "engine"},
        }
    }
    assert asked.body.startswith(
        b'{"usage":{"prompt_tokens_details":{"cached_tokens":3}},"metrics"'
    )


async def test_figures_of_a_stream_come_before_its_end():
    usage = b'data: {"choices":[],"usage":{"completion_tokens":3}}\n\n'
    parts = [ROLE_EVENT, event("a"), event("b"), usage, DONE_EVENT]
    raw = STREAM_HEAD + b"".join(chunk(part) for part in parts) + LAST
    async with world(answers(raw)) as plane:
        got = await plane.ask(
            post(b'{"model":"m","stream":true}', headers=("X-CapyCTL-Metrics: on",))
        )
    before, comment, after = got.body.partition(b": x-capyctl-metrics ")
    assert got.complete
    assert before == b"".join(parts[:-1])
    told, _, end = after.partition(b"\n\n")
    assert comment
    assert end == DONE_EVENT
    assert json.loads(told)["ttft_ms"]["source"] == "router"


async def test_timing_header_and_comment():
    raw = STREAM_HEAD + chunk(event("a") + DONE_EVENT) + LAST
    async with world(answers(raw), timing_header=True) as plane:
        got = await plane.ask(post(b'{"model":"m","stream":true}'))
    assert set(json.loads(got.header("x-capyctl-timing"))) == {"queue_ms", "engine_ms"}
    assert b"\n\n: x-capyctl-timing {" in got.body
    assert b"x-capyctl-metrics" not in got.body


async def test_usage_is_in_the_record():
    answer = json_answer(b'{"usage":{"prompt_tokens":7,"completion_tokens":9}}')
    async with world(answers(answer)) as plane:
        await plane.ask(post(BODY))
        record = await plane.record()
    assert (record.prompt_tokens, record.completion_tokens) == (7, 9)
    assert record.deployment == DEPLOYMENT
    assert record.model == "m"
    assert record.request_body_bytes == len(BODY)


async def test_models_are_listed_without_any_engine():
    async with world() as plane:
        plane.route("b", "a/x")
        got = await plane.ask(get("/v1/models"))
        head = await plane.ask(get("/v1/models", method="HEAD"), head_only=True)
    assert json.loads(got.body) == {
        "object": "list",
        "data": [{"id": "b", "object": "model"}, {"id": "a/x", "object": "model"}],
    }
    assert head.header("content-length") == str(len(got.body))
    assert plane.nudges == []
