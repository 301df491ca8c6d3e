"""The simulated vLLM answers as the real one was seen to."""

import pytest

pytestmark = pytest.mark.slow

CHAT, PLAIN = "/v1/chat/completions", "/v1/completions"


async def test_an_answer_and_its_exact_shape(machine):
    async with machine.vllm() as engine:
        reply = await engine.post(CHAT, engine.chat(model="n", max_tokens=3), x_request_id="r1")
        again = await engine.post(CHAT, engine.chat(model="m", max_tokens=3))
        natural = (await engine.post(CHAT, engine.chat())).json()
        other = (await engine.post(CHAT, engine.chat("bye", max_tokens=3))).json()

    body = reply.json()
    assert (reply.status, reply.headers["content-type"]) == (200, "application/json")
    assert list(body) == [
        "id", "object", "created", "model", "choices", "service_tier", "system_fingerprint",
        "usage", "prompt_logprobs", "prompt_token_ids", "kv_transfer_params",
    ]  # fmt: skip
    assert (body["id"], body["object"], body["model"]) == ("chatcmpl-r1", "chat.completion", "n")
    (choice,) = body["choices"]
    assert choice["finish_reason"] == "length"
    assert len(choice["message"]["content"].split()) == 3
    assert choice["message"]["reasoning"] is None
    assert body["usage"]["completion_tokens"] == 3
    assert again.json()["choices"] == body["choices"]
    assert natural["choices"][0]["finish_reason"] == "stop"
    assert natural["usage"]["completion_tokens"] >= 64
    assert other["choices"] != body["choices"]


async def test_a_chat_stream_chunk_by_chunk(machine):
    async with machine.vllm() as engine:
        request = engine.chat(
            model="m", max_tokens=2, stream=True, stream_options={"include_usage": True}
        )
        reply = await engine.post(CHAT, request)
        whole = (await engine.post(CHAT, engine.chat(max_tokens=2))).json()

    assert reply.headers["content-type"] == "text/event-stream; charset=utf-8"
    first, one, two, last, usage, done = reply.events()
    frame = {key: first[key] for key in ("id", "object", "created", "model")}
    assert frame["object"] == "chat.completion.chunk"
    assert first == frame | {
        "choices": [
            {
                "index": 0,
                "delta": {"role": "assistant", "content": ""},
                "logprobs": None,
                "finish_reason": None,
            }
        ],
        "prompt_token_ids": None,
    }
    assert one["choices"][0].keys() == {"index", "delta", "logprobs", "finish_reason", "token_ids"}
    said = one["choices"][0]["delta"]["content"] + two["choices"][0]["delta"]["content"]
    assert said == whole["choices"][0]["message"]["content"]
    assert last["choices"][0]["finish_reason"] == "length"
    assert last["choices"][0]["stop_reason"] is None
    assert usage == frame | {"choices": [], "usage": whole["usage"]}
    assert done == "[DONE]"


async def test_plain_completions_choices_and_seeds(machine):
    async with machine.vllm() as engine:
        reply = await engine.post(PLAIN, {"model": "m", "prompt": "x", "max_tokens": 4, "n": 2})
        seeded = await engine.post(PLAIN, {"prompt": "x", "max_tokens": 4, "seed": 9})
        stream = await engine.post(PLAIN, {"prompt": "x", "max_tokens": 1, "stream": True})
        long = await engine.post(PLAIN, {"prompt": "x", "max_tokens": 200, "ignore_eos": True})

    one, two = reply.json()["choices"]
    assert reply.json()["object"] == "text_completion"
    assert one["text"] != two["text"]
    assert seeded.json()["choices"][0]["text"] != one["text"]
    piece, last, done = stream.events()
    assert piece["choices"][0]["text"]
    assert (last["choices"][0]["finish_reason"], done) == ("length", "[DONE]")
    assert long.json()["usage"]["completion_tokens"] == 200


async def test_models_version_and_health(machine):
    async with machine.vllm("--max-model-len", "2k") as engine:
        models = (await engine.get("/v1/models")).json()
        health = await engine.get("/health")
        version = await engine.get("/version")
        long = await engine.post(PLAIN, {"prompt": "x", "max_tokens": 2_000})

    assert [row["id"] for row in models["data"]] == ["m", "n"]
    assert {row["max_model_len"] for row in models["data"]} == {2_000}
    assert models["data"][0]["root"].rstrip("/") == str(machine.folder / "v")
    assert (health.status, health.body) == (200, b"")
    assert version.json() == {"version": "0.32.0"}
    assert long.status == 400
    assert "maximum context length is 2000 tokens" in long.json()["error"]["message"]


async def test_errors(machine):
    async with machine.vllm() as engine:
        wrong = await engine.post(CHAT, engine.chat(model="x"))
        absent = await engine.get("/nothing")
        method = await engine.get(CHAT)
        empty = await engine.post(CHAT, {"messages": []})
        number = await engine.post(CHAT, [1])

    assert (wrong.status, wrong.json()) == (
        404,
        {
            "error": {
                "message": "The model `x` does not exist.",
                "type": "NotFoundError",
                "param": "model",
                "code": 404,
            }
        },
    )
    assert (absent.status, absent.json()) == (404, {"detail": "Not Found"})
    assert (method.status, method.json()) == (405, {"detail": "Method Not Allowed"})
    assert (empty.status, empty.json()["error"]["param"]) == (400, "messages")
    assert number.status == 400


async def test_embeddings_and_tokens(machine):
    async with machine.vllm("--runner", "pooling") as engine:
        reply = (await engine.post("/v1/embeddings", {"model": "m", "input": ["a", "b"]})).json()
        again = (await engine.post("/v1/embeddings", {"input": "a"})).json()
        tokens = (await engine.post("/tokenize", {"prompt": "four more words"})).json()
        text = await engine.post("/detokenize", {"tokens": [1, 2]})

    one, two = (row["embedding"] for row in reply["data"])
    assert one != two
    assert again["data"][0]["embedding"] == one
    assert abs(sum(number * number for number in one) - 1) < 1e-6
    assert (tokens["count"], len(tokens["tokens"])) == (4, 4)
    assert text.json()["prompt"]


async def test_a_model_that_generates_has_no_embeddings(machine):
    async with machine.vllm() as engine:
        assert (await engine.post("/v1/embeddings", {"model": "m", "input": "a"})).status == 404
    async with machine.vllm("--runner", "pooling") as engine:
        assert (await engine.post(CHAT, engine.chat())).status == 404


async def test_responses_and_messages_are_streams_of_named_events(machine):
    async with machine.vllm() as engine:
        asked = {"model": "m", "input": "x", "stream": True, "max_output_tokens": 2}
        response = (await engine.post("/v1/responses", asked)).body.decode()
        asked = engine.chat(model="m", stream=True, max_tokens=2)
        message = (await engine.post("/v1/messages", asked)).body.decode()
        count = (await engine.post("/v1/messages/count_tokens", engine.chat())).json()
        wrong = await engine.post("/v1/messages", engine.chat(model="x"))
        empty = await engine.post("/v1/responses", {"model": "m"})

    def names(text):
        return [line[7:] for line in text.splitlines() if line.startswith("event: ")]

    delta = "response.output_text.delta"
    assert names(response) == ["response.created", delta, delta, "response.completed"]
    begin, delta, end = "message_start", "content_block_delta", "message_stop"
    middle = ["content_block_start", delta, delta, "content_block_stop", "message_delta"]
    assert names(message) == [begin, *middle, end]
    assert count["input_tokens"] > 0
    assert (wrong.status, empty.status) == (404, 400)


async def test_its_own_key_guards_inference_only(machine):
    """The real one leaves its control routes open."""
    async with machine.vllm(env={"VLLM_API_KEY": "k"}) as engine:
        statuses = {
            path: (await engine.get(path)).status
            for path in ("/v1/models", "/metrics", "/health", "/is_sleeping")
        }
        bad = await engine.get("/v1/models", authorization="Bearer x")
        good = await engine.get("/v1/models", authorization="Bearer k")

    assert statuses == {"/v1/models": 401, "/metrics": 200, "/health": 200, "/is_sleeping": 200}
    assert (bad.status, bad.json()) == (401, {"error": "Unauthorized"})
    assert good.status == 200


async def test_the_guard_has_two_keys(machine):
    env = {"CAPYCTL_ENGINE_API_KEY": "use", "CAPYCTL_VLLM_ADMIN_KEY": "rule"}
    paths = ("/v1/models", "/metrics", "/is_sleeping", "/load", "/health", "/ping", "/version")
    async with machine.vllm(env=env) as engine:
        found = {
            key: [(await engine.get(path, authorization=f"Bearer {key}")).status for path in paths]
            for key in ("use", "rule", "none")
        }
        tokens = await engine.post("/tokenize", {"prompt": "x"}, authorization="Bearer use")

    assert found == {
        "use": [200, 200, 401, 401, 200, 200, 200],
        "rule": [200] * 7,
        "none": [401, 401, 401, 401, 200, 200, 200],
    }
    assert tokens.status == 200


async def test_metrics_follow_the_requests(machine):
    async with machine.vllm("--max-num-seqs", "1", tokens_per_s=50.0) as engine:
        request = engine.chat(stream=True, max_tokens=1_000, ignore_eos=True)
        async with engine.open("POST", CHAT, request) as one:
            await one.wait_body("content")
            async with engine.open("POST", CHAT, request):
                metrics = await wait_metric(engine, "vllm:num_requests_waiting", 1)
        await wait_metric(engine, "vllm:num_requests_running", 0)
        after = await engine.get("/metrics")

    assert 'vllm:num_requests_running{engine="0",model_name="m"} 1' in metrics
    assert 'vllm:kv_cache_usage_perc{engine="0",model_name="m"} 1' in metrics
    assert 'sleep_state="awake"} 1' in metrics
    # A hang-up is not counted as an abort.
    assert b'finished_reason="abort"} 0' in after.body


async def wait_metric(engine, name: str, value: int) -> str:
    """Ask until a gauge has the value; the test's own bound ends this otherwise."""
    while True:
        text = (await engine.get("/metrics")).body.decode()
        if f'{name}{{engine="0",model_name="m"}} {value}' in text:
            return text


async def test_load_counts_only_when_asked(machine):
    async with machine.vllm("--enable-server-load-tracking", tokens_per_s=10.0) as engine:
        async with engine.open("POST", CHAT, engine.chat(stream=True)) as one:
            await one.wait_body("content")
            busy = (await engine.get("/load")).json()

    async with machine.vllm(tokens_per_s=10.0) as engine:
        async with engine.open("POST", CHAT, engine.chat(stream=True)) as one:
            await one.wait_body("content")
            blind = (await engine.get("/load")).json()

    assert (busy, blind) == ({"server_load": 1}, {"server_load": 0})


async def test_control_routes_need_dev_mode(machine):
    async with machine.vllm(dev=False) as engine:
        sleep = await engine.post("/sleep")
        paths = (await engine.get("/openapi.json")).json()["paths"]

    assert sleep.status == 404
    assert "/sleep" not in paths
    assert "/v1/chat/completions" in paths


async def test_nobody_answers_while_it_loads(machine):
    """The port is taken early, and connections are refused until it is up."""
    async with machine.vllm(wait=False, load_s=600) as engine:
        await engine.wait_line("Starting to load")
        with pytest.raises(OSError, match="all attempts to connect"):
            await engine.get("/health")


async def test_requests_one_after_the_other_on_one_connection(machine):
    import http.client

    import trio

    def talk(port):
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
        statuses = []
        for _ in range(3):
            connection.request("GET", "/health")
            with connection.getresponse() as response:
                response.read()
                statuses.append(response.status)
            statuses.append(connection.sock is not None)
        connection.close()
        return statuses

    async with machine.vllm() as engine:
        statuses = await trio.to_thread.run_sync(talk, engine.port)

    assert statuses == [200, True] * 3
