"""The simulated llama-server answers, lingers and ends as the real one was seen to."""

import json
import signal
import socket

import pytest
import trio

from tests.simulated.test_vllm_ending import run
from tests.simulated.test_vllm_surface import CHAT, PLAIN

pytestmark = pytest.mark.slow


async def test_an_answer_and_its_exact_shape(machine):
    async with machine.llama() as engine:
        reply = await engine.post(CHAT, engine.chat(model="any", max_tokens=3))
        again = await engine.post(CHAT, engine.chat(max_tokens=3))
        plain = (await engine.post(PLAIN, {"prompt": "x", "max_tokens": 2})).json()

    body = reply.json()
    assert reply.headers["content-type"] == "application/json; charset=utf-8"
    assert reply.headers["server"] == "llama.cpp"
    assert list(body) == [
        "choices", "created", "id", "model", "system_fingerprint", "object", "usage", "timings",
    ]  # fmt: skip
    assert body["model"] == "any"
    (choice,) = body["choices"]
    assert list(choice) == ["finish_reason", "index", "message"]
    assert choice["message"].keys() == {"role", "content"}
    assert again.json()["choices"] == body["choices"]
    assert again.json()["model"] == "m"
    assert body["timings"]["predicted_n"] == 3
    assert plain["object"] == "text_completion"
    assert plain["choices"][0]["finish_reason"] == "length"


async def test_a_chat_stream_chunk_by_chunk(machine):
    async with machine.llama() as engine:
        request = engine.chat(max_tokens=2, stream=True, stream_options={"include_usage": True})
        reply = await engine.post(CHAT, request)
        bare = await engine.post(CHAT, engine.chat(max_tokens=1, stream=True))

    assert reply.headers["content-type"] == "text/event-stream"
    first, one, two, last, usage, done = reply.events()
    assert first["choices"] == [
        {"finish_reason": None, "index": 0, "delta": {"role": "assistant", "content": None}}
    ]
    assert [one["choices"][0]["delta"].keys(), two["choices"][0]["delta"].keys()] == [
        {"content"},
        {"content"},
    ]
    assert last["choices"] == [{"finish_reason": "length", "index": 0, "delta": {}}]
    assert "timings" not in last
    assert usage["choices"] == []
    assert usage["usage"]["completion_tokens"] == 2
    assert usage["timings"]["cache_n"] == 0
    assert done == "[DONE]"
    assert "timings" in bare.events()[-2]
    assert "usage" not in bare.events()[-2]


async def test_what_it_says_of_itself(machine):
    async with machine.llama("--metrics", "--slots", "--no-kv-unified") as engine:
        props = (await engine.get("/props")).json()
        models = (await engine.get("/v1/models")).json()
        slots = (await engine.get("/slots")).json()
        metrics = (await engine.get("/metrics")).body.decode()
        health = await engine.get("/health")

    assert (props["total_slots"], props["is_sleeping"]) == (2, False)
    assert props["endpoint_metrics"] is True
    assert props["endpoint_slots"] is True
    assert props["model_path"].endswith("model.gguf")
    (row,) = models["data"]
    assert (row["id"], row["owned_by"]) == ("m", "llamacpp")
    assert (row["meta"]["n_ctx"], row["meta"]["n_ctx_train"]) == (4_096, 32_768)
    assert [slot["is_processing"] for slot in slots] == [False, False]
    assert slots[0]["n_ctx"] == 4_096
    for name in ("requests_processing", "requests_deferred", "tokens_predicted_total"):
        assert f"llamacpp:{name} 0" in metrics
    assert (health.status, health.json()) == (200, {"status": "ok"})


async def test_the_context_is_never_longer_than_trained(machine):
    async with machine.llama("--ctx-size", "131072", "--parallel", "2") as engine:
        models = (await engine.get("/v1/models")).json()

    assert models["data"][0]["meta"]["n_ctx"] == 32_768


async def test_errors_and_switches_that_are_off(machine):
    async with machine.llama("--no-slots") as engine:
        absent = await engine.get("/nothing")
        metrics = await engine.get("/metrics")
        slots = await engine.get("/slots")
        embeddings = await engine.post("/v1/embeddings", {"input": "x"})
        empty = await engine.post(CHAT, {"messages": []})
        long = await engine.post(PLAIN, {"prompt": "x" * 40_000})

    assert absent.json() == {
        "error": {"message": "File Not Found", "type": "not_found_error", "code": 404}
    }
    assert [reply.status for reply in (metrics, slots, embeddings)] == [501] * 3
    assert empty.json()["error"]["type"] == "invalid_request_error"
    assert (long.status, "4096 tokens" in long.body.decode()) == (400, True)


async def test_embeddings_when_on(machine):
    async with machine.llama("--embeddings") as engine:
        body = (await engine.post("/v1/embeddings", {"input": ["a", "b"]})).json()

    assert [row["index"] for row in body["data"]] == [0, 1]


async def test_loading_is_said(machine):
    async with machine.llama(wait=False, load_s=0.6) as engine:
        await engine.wait_line("loading model")
        health, models = await engine.get("/health"), await engine.get("/v1/models")
        await engine.wait_line("listening")
        after = await engine.get("/health")

    loading = {"error": {"message": "Loading model", "type": "unavailable_error", "code": 503}}
    assert (health.status, health.json()) == (503, loading)
    assert (models.status, models.json()) == (503, loading)
    assert after.status == 200


async def test_keys(machine, tmp_path):
    keys = tmp_path / "keys"
    keys.write_text("one\ntwo\n")
    async with machine.llama("--api-key-file", str(keys)) as engine:
        health = await engine.get("/health")
        none = await engine.get("/v1/models")
        bearer = await engine.get("/v1/models", authorization="Bearer two")
        header = await engine.get("/v1/models", x_api_key="one")

    assert (health.status, bearer.status, header.status) == (200, 200, 200)
    assert (none.status, none.json()["error"]["message"]) == (401, "Invalid API Key")


async def wait_slots(engine, count: int) -> None:
    """Until so many slots are busy, by the gauge: polling the slots would disturb."""
    wanted = f"llamacpp:requests_processing {count}\n".encode()
    while wanted not in (await engine.get("/metrics")).body:
        pass


async def test_more_requests_than_slots_wait(machine):
    async with machine.llama("--metrics", "--parallel", "1", tokens_per_s=20.0) as engine:
        async with engine.open("POST", CHAT, engine.chat(stream=True)) as one:
            await one.wait_body("content")
            async with engine.open("POST", CHAT, engine.chat(stream=True)):
                while b"llamacpp:requests_deferred 1" not in (await engine.get("/metrics")).body:
                    pass
                full = await engine.get("/slots?fail_on_no_slot=1")
                (slot,) = (await engine.get("/slots")).json()

    assert full.status == 503
    assert slot["is_processing"] is True
    assert slot["id_task"] >= 1


@pytest.mark.parametrize("stream", [True, False])
async def test_a_hang_up_is_noticed_late(machine, stream):
    async with machine.llama("--metrics", tokens_per_s=10.0) as engine:
        request = engine.chat(stream=stream, max_tokens=64)
        async with engine.open("POST", CHAT, request):
            await wait_slots(engine, 1)
        began = trio.current_time()
        await wait_slots(engine, 0)

    assert 0.4 <= trio.current_time() - began <= 10


async def test_polled_slots_keep_a_dead_request_alive(machine):
    async with machine.llama("--metrics", tokens_per_s=10.0) as engine:
        async with engine.open("POST", CHAT, engine.chat(max_tokens=64)):
            await wait_slots(engine, 1)
        began = trio.current_time()
        while trio.current_time() - began < 2.5:
            busy = [slot["is_processing"] for slot in (await engine.get("/slots")).json()]
            await trio.sleep(0.3)
        await wait_slots(engine, 0)

    assert busy.count(True) == 1


async def test_a_conversation_outlives_its_client(machine):
    async with machine.llama("--metrics", tokens_per_s=10.0) as engine:
        request = engine.chat(stream=True, max_tokens=40)
        async with engine.open("POST", CHAT, request, x_conversation_id="c") as stream:
            await stream.wait_body('"content":" ')
        with trio.move_on_after(1.8):
            await wait_slots(engine, 0)
        still = (await engine.get("/slots")).json()[0]["is_processing"]
        again = await engine.get("/v1/stream?conv_id=c&from=0")
        ended = await engine.call("DELETE", "/v1/stream?conv_id=c")
        gone = await engine.get("/v1/stream?conv_id=c")

    assert still is True
    assert len(again.events()) == 43
    assert again.events()[-1] == "[DONE]"
    assert (ended.status, gone.status) == (204, 404)


async def test_a_deleted_conversation_stops(machine):
    async with machine.llama("--metrics", tokens_per_s=10.0) as engine:
        request = engine.chat(stream=True, max_tokens=60)
        async with engine.open("POST", CHAT, request, x_conversation_id="c") as stream:
            await stream.wait_body('"content":" ')
            await engine.call("DELETE", "/v1/stream?conv_id=c")
            cut = await stream.reply()
        await wait_slots(engine, 0)

    assert not cut.complete


async def test_told_to_end(machine):
    async with machine.llama() as engine:
        engine.process.terminate()
        idle = await engine.wait_exit()
    async with machine.llama(tokens_per_s=10.0) as engine:
        async with engine.open("POST", CHAT, engine.chat(stream=True)) as stream:
            await stream.wait_body('"content":" ')
            engine.process.terminate()
            cut = await stream.reply()
        busy = await engine.wait_exit()
    async with machine.llama(wait=False, load_s=600) as engine:
        await engine.wait_line("loading model")
        engine.process.terminate()
        loading = await engine.process.wait()

    assert (idle, busy, loading) == (0, 0, -signal.SIGTERM)
    assert not cut.complete
    assert b"[DONE]" not in cut.body


async def test_errors_in_a_stream_are_not_followed_by_done(machine):
    async with machine.llama(faults={"error_event_at_token": 2}) as engine:
        broken = await engine.post(CHAT, engine.chat(stream=True))
    async with machine.llama(faults={"error_event_at_token": 1}) as engine:
        at_once = await engine.post(CHAT, engine.chat(stream=True))

    assert broken.complete
    assert "error" in broken.events()[-1]
    assert at_once.status == 500


async def test_health_before_it_is_ready(machine):
    faults = {"health_too_early": True}
    async with machine.llama(wait=False, load_s=600, faults=faults) as engine:
        await engine.wait_line("loading model")
        health, models = await engine.get("/health"), await engine.get("/v1/models")

    assert (health.status, models.status) == (200, 503)


def test_bad_usage(machine):
    model = machine.model("l", format="gguf")
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        busy = run("llamacpp", "-m", model, "--port", taken.getsockname()[1])
    unknown = run("llamacpp", "-m", model, "--no-such-option")
    joined = run("llamacpp", f"--model={model}")
    missing = run("llamacpp", "-m", "/absent.gguf", "--port", "0")
    version = run("llamacpp", "--version")

    assert [ended.returncode for ended in (busy, unknown, joined, missing)] == [1] * 4
    assert unknown.stderr == "error: invalid argument: --no-such-option\n"
    assert "couldn't bind HTTP server socket" in busy.stderr
    assert "failed to open /absent.gguf" in missing.stderr
    assert (version.returncode, version.stderr[:19]) == (0, "version: 0.6.0-dev ")


async def test_faults_are_chosen_by_model(machine):
    machine.document["models"] = {"m": {"faults": {"wrong_model_name": True}}, "other": {}}
    async with machine.llama() as engine:
        named = (await engine.get("/v1/models")).json()["data"][0]["id"]
    path = json.dumps({"models": {"model.gguf": {"load_s": 0.01}}})
    async with machine.llama(env={"CAPYCTL_SIMULATED": path}) as engine:
        plain = (await engine.get("/v1/models")).json()["data"][0]["id"]

    assert (named, plain) == ("not-m", "m")
