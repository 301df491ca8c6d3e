"""Parking and waking the simulated vLLM, traps included."""

import pytest
import trio

from capyctl.domain.units import GIB, MIB
from tests.simulated.running import until
from tests.simulated.test_vllm_surface import CHAT, PLAIN, wait_metric

pytestmark = pytest.mark.slow

ASK = {"model": "m", "prompt": "canary", "max_tokens": 8, "temperature": 0}
PARKS = "--enable-sleep-mode"


async def said(engine):
    return (await engine.post(PLAIN, ASK)).json()["choices"][0]["text"]


async def test_level_one_keeps_the_weights_in_host_memory(machine):
    async with machine.vllm(PARKS) as engine:
        before = await said(engine)
        parked = await engine.post("/sleep?level=1")
        asleep = (await engine.get("/is_sleeping")).json()
        (drawn,) = machine.drawn()
        health, models = await engine.get("/health"), await engine.get("/v1/models")
        woken = await engine.post("/wake_up")
        after = await said(engine)
        (back,) = machine.drawn()

    assert parked.json() == {"status": "sleeping", "level": 1}
    assert asleep == {"is_sleeping": True}
    assert (drawn["bytes"], drawn["ram_bytes"]) == (512 * MIB, 2 * GIB)
    assert (health.status, models.status) == (200, 200)
    assert woken.json() == {"status": "awake", "tags": None}
    assert after == before
    assert (back["bytes"], back["ram_bytes"]) == (3 * GIB, 0)


async def test_level_two_in_the_right_order(machine):
    async with machine.vllm(PARKS) as engine:
        before = await said(engine)
        checksum = (await engine.post("/weight_checker", {"action": "checksum"})).json()
        await engine.post("/sleep?level=2")
        (drawn,) = machine.drawn()
        state = await engine.get("/metrics")
        weights = await engine.post("/wake_up?tags=weights")
        reload = await engine.post("/collective_rpc", {"method": "reload_weights"})
        cache = await engine.post("/wake_up?tags=kv_cache")
        reset = await engine.post("/reset_prefix_cache")
        compare = {"action": "compare", "baseline": checksum}
        compared = await engine.post("/weight_checker", compare)
        after = await said(engine)

    assert (drawn["bytes"], drawn["ram_bytes"]) == (512 * MIB, 0)
    assert b'sleep_state="discard_all"} 1' in state.body
    assert weights.json() == {"status": "sleeping", "tags": ["weights"]}
    assert reload.json() == {"results": [None]}
    assert cache.json() == {"status": "awake", "tags": ["kv_cache"]}
    assert reset.json() == {"success": True}
    assert compared.json() == {"match": True, "mismatches": []}
    assert after == before


async def test_level_two_without_a_reload_is_gibberish(machine):
    async with machine.vllm(PARKS) as engine:
        checksum = (await engine.post("/weight_checker", {"action": "checksum"})).json()
        await engine.post("/sleep?level=2")
        woken = await engine.post("/wake_up?tags=weights&tags=kv_cache")
        compared = await engine.post(
            "/weight_checker", {"action": "compare", "baseline": checksum["checksums"]}
        )
        after = await said(engine)

    assert woken.json() == {"status": "awake", "tags": ["weights", "kv_cache"]}
    assert after == "!!!!!!!!"
    assert compared.json() == {"match": False, "mismatches": ["model.embed_tokens.weight"]}


async def test_without_the_switch_it_says_yes_and_frees_nothing(machine):
    async with machine.vllm() as engine:
        before = await said(engine)
        parked = await engine.post("/sleep?level=2")
        (drawn,) = machine.drawn()
        await engine.post("/wake_up")
        after = await said(engine)

    assert (parked.status, parked.json()) == (200, {"status": "sleeping", "level": 2})
    assert drawn["bytes"] == 3 * GIB
    assert after == before


async def test_requests_to_a_sleeping_engine_hang_and_are_not_counted(machine):
    async with machine.vllm(PARKS) as engine:
        await engine.post("/sleep")
        async with engine.open("POST", PLAIN, ASK) as asked:
            metrics = (await engine.get("/metrics")).body.decode()
            with trio.move_on_after(0.2) as waited:
                await asked.reply()
            await engine.post("/wake_up")
            reply = await asked.reply()

    assert waited.cancelled_caught
    assert 'vllm:num_requests_waiting{engine="0",model_name="m"} 0' in metrics
    assert 'vllm:num_requests_running{engine="0",model_name="m"} 0' in metrics
    assert reply.status == 200


async def test_abort_ends_streams_with_a_last_chunk(machine):
    async with machine.vllm(PARKS, tokens_per_s=20.0) as engine:
        async with engine.open("POST", CHAT, engine.chat(stream=True)) as stream:
            await stream.wait_body('"content":" ')
            await engine.post("/sleep")
            events = (await stream.reply()).events()
        metrics = await engine.get("/metrics")

    assert events[-2]["choices"][0]["finish_reason"] == "abort"
    assert events[-1] == "[DONE]"
    assert b'finished_reason="abort"} 1' in metrics.body


async def test_wait_lets_running_requests_finish_and_holds_new_ones(machine):
    async with machine.vllm(PARKS, tokens_per_s=100.0) as engine:
        request = engine.chat(stream=True, max_tokens=30)
        async with engine.open("POST", CHAT, request) as running:
            await running.wait_body('"content":" ')
            parked = await engine.post("/sleep?mode=wait")
            finished = await running.reply()
        asleep = (await engine.get("/is_sleeping")).json()

    assert parked.status == 200
    assert finished.events()[-2]["choices"][0]["finish_reason"] == "length"
    assert asleep == {"is_sleeping": True}


async def test_keep_freezes_and_goes_on_after_the_wake(machine):
    async with machine.vllm(PARKS, tokens_per_s=50.0) as engine:
        whole = (await engine.post(CHAT, engine.chat(max_tokens=20))).json()
        async with engine.open("POST", CHAT, engine.chat(stream=True, max_tokens=20)) as kept:
            await kept.wait_body('"content":" ')
            await engine.post("/sleep?mode=keep")
            with trio.move_on_after(0.3) as frozen:
                await kept.reply()
            await engine.post("/wake_up")
            events = (await kept.reply()).events()

    assert frozen.cancelled_caught
    pieces = [event["choices"][0]["delta"].get("content", "") for event in events[:-1]]
    assert "".join(pieces) == whole["choices"][0]["message"]["content"]


async def test_a_second_sleep_aborts_what_was_kept(machine):
    async with machine.vllm(PARKS, tokens_per_s=50.0) as engine:
        async with engine.open("POST", CHAT, engine.chat(stream=True)) as kept:
            await kept.wait_body('"content":" ')
            await engine.post("/sleep?mode=keep")
            second = await engine.post("/sleep?level=2")
            events = (await kept.reply()).events()
        (drawn,) = machine.drawn()
        await engine.wait_line("Executor is already sleeping.")

    assert second.json() == {"status": "sleeping", "level": 2}
    assert events[-2]["choices"][0]["finish_reason"] == "abort"
    # Still level 1: the copy in host memory is kept.
    assert drawn["ram_bytes"] == 2 * GIB


async def test_tags_and_levels_that_there_are_not(machine):
    async with machine.vllm(PARKS) as engine:
        level = await engine.post("/sleep?level=3")
        mode = await engine.post("/sleep?mode=never")
        awake = await engine.post("/wake_up")
        await engine.post("/sleep?level=1")
        unknown = await engine.post("/wake_up?tags=everything")
        still = (await engine.get("/is_sleeping")).json()

    assert (level.status, mode.status) == (400, 400)
    assert awake.json() == {"status": "awake", "tags": None}
    assert (unknown.status, unknown.json()) == (
        200,
        {"status": "sleeping", "tags": ["everything"]},
    )
    assert still == {"is_sleeping": True}


async def test_level_zero_only_pauses(machine):
    async with machine.vllm(PARKS) as engine:
        await engine.post("/sleep?level=0")
        (drawn,) = machine.drawn()
        released = await engine.post("/release_kv_cache_memory")
        woken = await engine.post("/wake_up?tags=kv_cache")
        resumed = await engine.post("/wake_up?tags=scheduling")
        refused = await engine.post("/release_kv_cache_memory")
        answer = await engine.post(PLAIN, ASK)

    assert drawn["bytes"] == 3 * GIB
    assert released.json() == {"status": "kv_cache_released"}
    assert woken.json()["tags"] == ["kv_cache"]
    assert resumed.json()["status"] == "awake"
    assert refused.status == 500
    assert "requires a completed pause first" in refused.json()["error"]["message"]
    assert answer.status == 200


async def test_pause_and_resume(machine):
    async with machine.vllm(PARKS) as engine:
        paused = await engine.post("/pause")
        states = [(await engine.get(path)).json() for path in ("/is_paused", "/is_sleeping")]
        resumed = await engine.post("/resume")
        answer = await engine.post(PLAIN, ASK)

    assert (paused.json(), resumed.json()) == ({"status": "paused"}, {"status": "resumed"})
    assert states == [{"is_paused": True}, {"is_sleeping": True}]
    assert answer.status == 200


async def test_resuming_a_sleeping_engine_breaks_it(machine):
    async with machine.vllm(PARKS) as engine:
        await engine.post("/sleep")
        await engine.post("/resume")
        states = [(await engine.get(path)).json() for path in ("/is_paused", "/is_sleeping")]
        reply = await engine.post(PLAIN, ASK)
        health = await engine.get("/health")
        exit_code = await engine.wait_exit()

    assert states == [{"is_paused": False}, {"is_sleeping": True}]
    assert (reply.status, health.status, exit_code) == (500, 503, 0)
    assert "illegal memory access" in engine.log


async def test_dummy_weights_cannot_be_reloaded(machine):
    async with machine.vllm(PARKS, "--load-format", "dummy") as engine:
        reload = await engine.post("/collective_rpc", {"method": "reload_weights"})
        missing = await engine.post("/collective_rpc", {})
        unknown = await engine.post("/collective_rpc", {"method": "x"})

    assert (reload.status, missing.status, unknown.status) == (500, 400, 500)


async def test_a_wake_without_room_kills_it(machine):
    async with machine.vllm(PARKS) as engine:
        await engine.post("/sleep?level=2")
        async with machine.llama("--ctx-size", "256", extra=20 * GIB):
            woken = await engine.post("/wake_up?tags=weights")
            health = await engine.get("/health")
            exit_code = await engine.wait_exit()

    assert (woken.status, health.status, exit_code) == (500, 503, 0)
    assert "CUDA out of memory. Tried to allocate 3.00 GiB" in woken.json()["error"]["message"]


async def test_memory_may_come_free_later_than_the_answer(machine):
    async with machine.vllm(PARKS, release_lag_s=0.3) as engine:
        await engine.post("/sleep")
        (at_once,) = machine.drawn()
        await until(lambda: machine.drawn()[0]["bytes"] == 512 * MIB)

    assert at_once["bytes"] == 3 * GIB


@pytest.mark.parametrize(
    ("fault", "text"),
    [("park_frees_nothing", None), ("gibberish_after_wake", "!!!!!!!!")],
)
async def test_faults_of_a_cycle(machine, fault, text):
    async with machine.vllm(PARKS, faults={fault: True}) as engine:
        before = await said(engine)
        parked = await engine.post("/sleep?level=1")
        (drawn,) = machine.drawn()
        await engine.post("/wake_up")
        after = await said(engine)

    assert parked.status == 200
    assert (drawn["bytes"] == 3 * GIB) is (fault == "park_frees_nothing")
    assert after == (text or before)


async def test_a_park_that_is_refused(machine):
    async with machine.vllm(PARKS, faults={"refuses_park": True}) as engine:
        refused = await engine.post("/sleep")
        answer = await engine.post(PLAIN, ASK)

    assert (refused.status, answer.status) == (500, 200)


async def test_a_wake_that_hangs(machine):
    async with machine.vllm(PARKS, faults={"hangs_on_wake": True}) as engine:
        await engine.post("/sleep")
        with trio.move_on_after(0.3) as waited:
            await engine.post("/wake_up")
        health = await engine.get("/health")

    assert waited.cancelled_caught
    assert health.status == 200


async def test_a_wake_that_kills(machine):
    async with machine.vllm(PARKS, faults={"dies_on_wake": True, "exit_code": 3}) as engine:
        await engine.post("/sleep")
        reply = await engine.post("/wake_up")
        exit_code = await engine.wait_exit()

    assert (reply.status, exit_code) == (0, 3)


async def test_a_drained_engine_shows_idle_gauges(machine):
    async with machine.vllm(PARKS, tokens_per_s=50.0) as engine:
        async with engine.open("POST", CHAT, engine.chat(stream=True)) as stream:
            await stream.wait_body("content")
            await wait_metric(engine, "vllm:num_requests_running", 1)
        await wait_metric(engine, "vllm:num_requests_running", 0)
