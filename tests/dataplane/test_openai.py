"""The client library that most programs use, against the plane."""

import functools
import json

import openai
import pytest
import trio

from capyctl.domain.errors import InferenceRefusal
from tests.dataplane.engines import (
    DONE_EVENT,
    KEY,
    LAST,
    ROLE_EVENT,
    STREAM_HEAD,
    chunk,
    json_answer,
    world,
)

pytestmark = pytest.mark.slow
CHAT = {
    "id": "1",
    "object": "chat.completion",
    "created": 1,
    "model": "m",
    "choices": [
        {"index": 0, "message": {"role": "assistant", "content": "hello"}, "finish_reason": "stop"}
    ],
    "usage": {"prompt_tokens": 1, "completion_tokens": 2, "total_tokens": 3},
}


async def engine(connection):
    while (seen := await connection.request()) is not None:
        asked = json.loads(seen.body)
        if asked.get("stream"):
            await connection.send(STREAM_HEAD + chunk(ROLE_EVENT))
            for text in ("日本", "🙂", "é"):
                delta = {"choices": [{"index": 0, "delta": {"content": text}}]}
                await connection.send(chunk(b"data: " + json.dumps(delta).encode() + b"\n\n"))
            if asked.get("user") == "break":
                return
            await connection.send(chunk(DONE_EVENT) + LAST)
        else:
            await connection.send(json_answer(json.dumps(CHAT).encode()))


async def call(plane, what, *, key: str = KEY.decode()):
    """Run ``what(client)`` in a thread, without the library's own retries."""

    def run():
        base = f"http://127.0.0.1:{plane.port}/v1"
        with openai.OpenAI(base_url=base, api_key=key, max_retries=0) as client:
            return what(client)

    return await trio.to_thread.run_sync(run)


def chat(client, model: str = "m", **more):
    return client.chat.completions.create(
        model=model, messages=[{"role": "user", "content": "hi"}], **more
    )


async def test_chat_models_and_stream():
    def stream(client):
        return "".join(
            part.choices[0].delta.content or ""
            for part in chat(client, stream=True)
            if part.choices
        )

    async with world(engine) as plane:
        answer = await call(plane, chat)
        models = await call(plane, lambda client: [m.id for m in client.models.list()])
        text = await call(plane, stream)
    assert answer.choices[0].message.content == "hello"
    assert models == ["m"]
    assert text == "日本🙂é"


async def test_a_broken_stream_raises():
    async with world(engine) as plane:
        with pytest.raises(openai.APIError, match="engine failed"):
            await call(plane, lambda client: list(chat(client, stream=True, user="break")))


@pytest.mark.parametrize(
    ("kind", "code", "refusal"),
    [
        (openai.ConflictError, "deployment_stopped", "deployment_stopped"),
        (openai.RateLimitError, "queue_full", "queue_full"),
        (openai.InternalServerError, "unavailable", "unavailable"),
    ],
)
async def test_typed_errors_of_a_deployment(kind, code, refusal):
    async with world(engine) as plane:
        plane.admission.refusal = InferenceRefusal(code=refusal, message="because")
        with pytest.raises(kind) as raised:
            await call(plane, chat)
    assert raised.value.code == code
    assert raised.value.body["message"] == "because"


async def test_typed_errors_of_a_request():
    async with world(engine) as plane:
        with pytest.raises(openai.AuthenticationError):
            await call(plane, chat, key="wrong")
        with pytest.raises(openai.NotFoundError) as missing:
            await call(plane, functools.partial(chat, model="nope"))
    assert missing.value.code == "unknown_model"
    assert missing.value.param == "model"
