"""The simulated SGLang: its surface, its keys, and how it parks, traps included."""

import itertools
import os
import signal

import pytest
import trio

from capyctl.domain.units import GIB, MIB
from capyctl.simulated.usage import read_draws
from tests.simulated.running import until

pytestmark = pytest.mark.slow

CHAT = "/v1/chat/completions"
PLAIN = "/v1/completions"
ASK = {"model": "m", "prompt": "canary", "max_tokens": 8, "temperature": 0}
SAVER = "--enable-memory-saver"
BACKUP = "--enable-weights-cpu-backup"
METRICS = "--enable-metrics"
RELEASE, RESUME = "/release_memory_occupation", "/resume_memory_occupation"
BOTH = {"tags": ["kv_cache", "weights"]}


async def said(engine):
    return (await engine.post(PLAIN, ASK)).json()["choices"][0]["text"]


async def park(engine):
    assert (await engine.post("/pause_generation", {"mode": "abort"})).status == 200
    released = await engine.post(RELEASE, BOTH)
    assert (released.status, released.body) == (200, b"null")


async def killed(engine):
    """The exit code of an engine whose scheduler raised; nothing of it may be left."""
    code = await engine.wait_exit()
    await until(lambda: engine.children() == [])
    return code


async def test_its_surface(machine):
    async with machine.sglang(METRICS) as engine:
        models = (await engine.get("/v1/models")).json()
        whole = (await engine.post(CHAT, engine.chat(max_tokens=3))).json()
        native = (await engine.post("/generate", {"text": "canary"})).json()
        loads = (await engine.get("/v1/loads?include=core")).json()
        metrics = (await engine.get("/metrics")).body.decode()
        health, ready = await engine.get("/health"), await engine.get("/ready")

    assert [row["id"] for row in models["data"]] == ["m"]
    assert whole["choices"][0]["finish_reason"] == "length"
    assert whole["choices"][0]["message"]["reasoning_content"] is None
    assert native["meta_info"]["finish_reason"] == {"type": "stop"}
    assert loads["loads"][0]["max_running_requests"] == 256
    assert 'sglang:num_running_reqs{engine_type="unified",model_name="m"' in metrics
    assert (health.status, ready.status) == (200, 200)


async def test_a_stream_ends_with_its_usage(machine):
    async with machine.sglang() as engine:
        request = engine.chat(stream=True, max_tokens=2, stream_options={"include_usage": True})
        events = (await engine.post(CHAT, request)).events()

    assert events[0]["choices"][0]["delta"]["role"] == "assistant"
    assert events[0]["usage"] is None
    assert events[-2]["choices"] == []
    assert events[-2]["usage"]["completion_tokens"] == 2
    assert events[-1] == "[DONE]"


async def test_the_native_stream_is_cumulative(machine):
    async with machine.sglang() as engine:
        request = {"text": "x", "stream": True, "sampling_params": {"max_new_tokens": 3}}
        events = (await engine.post("/generate", request)).events()

    texts = [event["text"] for event in events[:-1]]
    assert all(later.startswith(former) for former, later in itertools.pairwise(texts))
    assert len(texts[0]) < len(texts[-1])


async def test_without_the_switch_there_are_no_metrics(machine):
    async with machine.sglang() as engine:
        assert (await engine.get("/metrics")).status == 404


async def test_keys_of_the_entry_open_what_they_should(machine):
    keys = {"CAPYCTL_ENGINE_API_KEY": "inference", "CAPYCTL_SGLANG_ADMIN_KEY": "admin"}
    async with machine.sglang(METRICS, env=keys) as engine:
        tried = {}
        for path in ("/v1/models", "/server_info", "/health", "/metrics", "/ready"):
            tried[path] = [
                (await engine.get(path, **headers)).status
                for headers in ({}, {"authorization": "Bearer inference"})
            ]
        control = [
            (await engine.post("/continue_generation", {}, **headers)).status
            for headers in (
                {},
                {"authorization": "Bearer inference"},
                {"authorization": "Bearer admin"},
            )
        ]

    assert tried == {
        "/v1/models": [401, 200],
        "/server_info": [401, 200],
        "/health": [200, 200],
        "/metrics": [200, 200],
        "/ready": [200, 200],
    }
    assert control == [401, 401, 200]


async def test_it_prints_and_tells_its_keys_in_clear(machine):
    keys = {"CAPYCTL_ENGINE_API_KEY": "inference", "CAPYCTL_SGLANG_ADMIN_KEY": "admin-secret"}
    async with machine.sglang(env=keys) as engine:
        info = await engine.get("/server_info", authorization="Bearer inference")
    assert "'admin_api_key': 'admin-secret'" in engine.log
    assert info.json()["admin_api_key"] == "admin-secret"


async def test_with_a_copy_it_parks_and_wakes(machine):
    async with machine.sglang(SAVER, BACKUP) as engine:
        before = await said(engine)
        (drawn,) = machine.drawn()
        scheduler, _ = engine.children()
        await park(engine)
        (parked,) = machine.drawn()
        ping, ready = await engine.get("/ping"), await engine.get("/ready")
        await engine.post(RESUME, {"tags": ["weights"]})
        await engine.post(RESUME, {"tags": ["kv_cache"]})
        await engine.post("/flush_cache")
        await engine.post("/continue_generation", {})
        after = await said(engine)
        (back,) = machine.drawn()

    assert drawn["pid"] == scheduler
    assert (drawn["bytes"], parked["bytes"], back["bytes"]) == (3 * GIB, 512 * MIB, 3 * GIB)
    assert (parked["ram_bytes"], back["ram_bytes"]) == (2 * GIB, 0)
    assert (ping.status, ready.status) == (200, 503)
    assert after == before


@pytest.mark.parametrize("reload", [True, False])
async def test_without_a_copy_weights_are_garbage_until_read_again(machine, reload):
    async with machine.sglang(SAVER) as engine:
        before = await said(engine)
        sums = [(await engine.post("/weights_checker", {"action": "checksum"})).body]
        await park(engine)
        await engine.post(RESUME, {"tags": ["weights"]})
        if reload:
            wrong = await engine.post("/update_weights_from_disk", {"model_path": "/other"})
            done = await engine.post(
                "/update_weights_from_disk", {"model_path": str(machine.folder / "v")}
            )
            assert (wrong.status, wrong.json()["success"]) == (400, False)
            assert (done.status, done.json()["success"]) == (200, True)
        await engine.post(RESUME, {"tags": ["kv_cache"]})
        await engine.post("/continue_generation", {})
        after = await said(engine)
        sums.append((await engine.post("/weights_checker", {"action": "checksum"})).body)

    assert (after == before) is reload
    assert (sums[0] == sums[1]) is reload
    assert reload or after == "!!!!!!!!"


async def test_without_the_switch_it_says_yes_and_frees_nothing(machine):
    async with machine.sglang() as engine:
        (before,) = machine.drawn()
        await park(engine)
        (after,) = machine.drawn()
        assert (await engine.post(RESUME, BOTH)).status == 200
    assert after["bytes"] == before["bytes"]


async def test_memory_may_come_free_after_the_answer(machine):
    async with machine.sglang(SAVER, release_lag_s=0.3) as engine:
        (before,) = machine.drawn()
        await park(engine)
        (at_once,) = machine.drawn()
        await until(lambda: machine.drawn()[0]["bytes"] == 512 * MIB)
    assert at_once["bytes"] == before["bytes"]


async def test_a_busy_release_kills_the_server(machine):
    async with machine.sglang(SAVER, tokens_per_s=20.0) as engine:
        async with engine.open("POST", CHAT, engine.chat(stream=True)) as stream:
            await stream.wait_body('"content":" ')
            answer = await engine.post(RELEASE, BOTH)
            cut = await stream.reply()
        code = await killed(engine)

    assert (answer.complete, cut.complete) == (False, False)
    assert code == -signal.SIGKILL
    assert "only when server is idle" in engine.log


async def test_pausing_first_makes_a_release_safe(machine):
    async with machine.sglang(SAVER, tokens_per_s=20.0) as engine:
        async with engine.open("POST", CHAT, engine.chat(stream=True)) as stream:
            await stream.wait_body('"content":" ')
            await park(engine)
            events = (await stream.reply()).events()
    assert events[-2]["choices"][0]["finish_reason"] == "abort"


async def test_a_frozen_request_is_no_idle_server(machine):
    async with machine.sglang(SAVER, tokens_per_s=20.0) as engine:
        async with engine.open("POST", CHAT, engine.chat(stream=True)) as stream:
            await stream.wait_body('"content":" ')
            await engine.post("/pause_generation", {"mode": "retract"})
            await engine.post(RELEASE, BOTH)
            code = await killed(engine)
    assert code == -signal.SIGKILL


@pytest.mark.parametrize("tags", [["cuda_graph"], ["weights", "kv_cache", "cuda_graph"], []])
async def test_resuming_what_is_not_released_kills_the_server(machine, tags):
    async with machine.sglang(SAVER) as engine:
        await park(engine)
        await engine.post(RESUME, {"tags": tags})
        assert await killed(engine) == -signal.SIGKILL
    assert "KeyError: 'cuda_graph'" in engine.log


async def test_the_same_resume_again_kills_the_server(machine):
    async with machine.sglang(SAVER) as engine:
        await park(engine)
        assert (await engine.post(RESUME, BOTH)).status == 200
        await engine.post(RESUME, BOTH)
        assert await killed(engine) == -signal.SIGKILL


async def test_weights_released_twice_kill_the_server(machine):
    async with machine.sglang(SAVER) as engine:
        await park(engine)
        await engine.post(RELEASE, {"tags": ["weights"]})
        assert await killed(engine) == -signal.SIGKILL


async def test_a_request_to_a_released_engine_that_is_not_paused_kills_it(machine):
    async with machine.sglang(SAVER) as engine:
        await engine.post(RELEASE, BOTH)
        assert not (await engine.post(PLAIN, ASK)).complete
        assert await killed(engine) == -signal.SIGKILL
    assert "illegal memory access" in engine.log


async def test_continuing_before_memory_is_back_kills_it_with_the_held_request(machine):
    async with machine.sglang(SAVER) as engine:
        await park(engine)
        async with engine.open("POST", PLAIN, ASK) as held:
            with trio.move_on_after(0.2) as waited:
                await held.reply()
            assert waited.cancelled_caught
            await engine.post("/continue_generation", {})
            assert await killed(engine) == -signal.SIGKILL


async def test_health_of_a_released_engine_kills_it(machine):
    async with machine.sglang(SAVER) as engine:
        await engine.post(RELEASE, BOTH)
        await engine.get("/health")
        assert await killed(engine) == -signal.SIGKILL


async def test_health_of_a_paused_engine_hangs_and_leaves_it_unhealthy(machine):
    async with machine.sglang(SAVER, env={"SGLANG_HEALTH_CHECK_TIMEOUT": "0.3"}) as engine:
        await park(engine)
        before = await engine.get("/ping")
        health = await engine.get("/health")
        after = await engine.get("/ping")
    assert (before.status, health.status, after.status) == (200, 503, 503)


async def test_without_generation_health_does_no_harm(machine):
    variable = {"SGLANG_ENABLE_HEALTH_ENDPOINT_GENERATION": "0"}
    async with machine.sglang(SAVER, env=variable) as engine:
        await park(engine)
        assert (await engine.get("/health")).status == 200
        assert (await engine.get("/ping")).status == 200


async def test_a_resume_without_memory_kills_the_server(machine):
    large = machine.model("large", weights_bytes=21 * GIB, format="safetensors")
    async with machine.sglang(SAVER) as engine:
        await park(engine)
        async with machine.sglang("--max-total-tokens", "1", model=large):
            await engine.post(RESUME, {"tags": ["weights"]})
            assert await killed(engine) == -signal.SIGKILL
    assert "CUresult error: 2" in engine.log


async def test_its_children_die_with_it(machine):
    async with machine.sglang() as engine:
        assert len(engine.children()) == 2
        engine.process.kill()
        await engine.process.wait()
        await until(lambda: engine.children() == [])
        await until(lambda: not read_draws(machine.usage))


async def test_a_lost_scheduler_takes_everything_along(machine):
    async with machine.sglang() as engine:
        scheduler, _ = engine.children()
        os.kill(scheduler, signal.SIGKILL)
        assert await killed(engine) == -signal.SIGKILL


async def test_told_to_end_it_waits_for_requests_however_long(machine):
    async with machine.sglang(tokens_per_s=20.0) as engine:
        request = engine.chat(stream=True, max_tokens=30)
        async with engine.open("POST", CHAT, request) as stream:
            await stream.wait_body('"content":" ')
            engine.process.terminate()
            await engine.wait_line("Gracefully exiting")
            assert (await engine.get("/health")).status == 503
            events = (await stream.reply()).events()
        code = await engine.wait_exit()
    assert (code, events[-1]) == (0, "[DONE]")


async def test_told_to_end_while_parked_it_waits_for_what_it_holds(machine):
    async with machine.sglang(SAVER) as engine:
        await park(engine)
        async with engine.open("POST", PLAIN, ASK) as held:
            with trio.move_on_after(0.2):
                await held.reply()
            engine.process.terminate()
            await engine.wait_line("Gracefully exiting")
            with trio.move_on_after(0.4) as waited:
                await engine.process.wait()
            assert waited.cancelled_caught


async def test_forced_it_ends_at_once(machine):
    async with machine.sglang(tokens_per_s=5.0, env={"SGL_FORCE_SHUTDOWN": "1"}) as engine:
        async with engine.open("POST", CHAT, engine.chat(stream=True)) as stream:
            await stream.wait_body('"content":" ')
            engine.process.terminate()
            assert not (await stream.reply()).complete
        assert await engine.wait_exit() == 0


async def test_told_to_end_while_loading_it_dies(machine):
    async with machine.sglang(wait=False, load_s=600) as engine:
        await engine.wait_line("Load weight begin")
        engine.process.terminate()
        assert await engine.process.wait() == -signal.SIGTERM


async def test_a_hang_up_is_noticed_later(machine):
    async with machine.sglang(
        "--max-running-requests", "1", METRICS, tokens_per_s=5.0, faults={"slow_disconnect_s": 0.1}
    ) as engine:
        async with engine.open("POST", CHAT, engine.chat(stream=True)) as stream:
            await stream.wait_body('"content":" ')
        answer = await engine.post(PLAIN, {"prompt": "x", "max_tokens": 1})
    assert answer.status == 200


@pytest.mark.parametrize("words", [["--nonsense"], ["--port"], ["--max"]])
async def test_a_bad_command_line_is_refused(machine, words):
    async with machine.sglang(*words, wait=False) as engine:
        assert await engine.wait_exit() == 2
    assert "sglang serve: error" in engine.log


async def test_server_args_are_one_line(machine):
    async with machine.sglang() as engine:
        pass
    (line,) = [line for line in engine.log.splitlines() if "server_args=" in line]
    assert "'served_model_name': 'm'" in line
