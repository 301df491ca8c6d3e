"""vLLM's park and wake against a scripted engine: order, proof after each step, no repeats."""

import json

import pytest
import trio

from capyctl.contracts.engines import EngineBroken, ParkRefused
from capyctl.engines.vllm import Vllm
from tests.engines_unit.fake_server import Told
from tests.engines_unit.scenes import ScriptedVllm, control, surroundings

VLLM = Vllm(surroundings=surroundings())
CANARY = json.dumps({"ids": [11, 12, 13], "path": "/v1/chat/completions", "text": "one two three"})
STATE = "GET /is_sleeping"


def control_calls(server):
    """What was asked, without the gauges, whose number depends on when they fell."""
    return [call for call in server.calls() if call != "GET /metrics"]


async def test_a_park_asks_before_and_after(serve):
    server = await serve(ScriptedVllm())
    await VLLM.park(control(server.port, level=2))
    assert control_calls(server) == [STATE, "POST /sleep?level=2&mode=wait", STATE]
    keys = {one.path: one.headers["authorization"] for one in server.asked}
    assert keys["/sleep"] == keys["/is_sleeping"] == "Bearer admin-key"
    assert keys["/metrics"] == "Bearer inference-key"


async def test_level_one_copies_back_and_reads_nothing_from_disk(serve):
    server = await serve(ScriptedVllm())
    at = control(server.port, level=1)
    await VLLM.park(at)
    server.asked.clear()
    await VLLM.wake(at, canary=CANARY)
    assert control_calls(server) == [
        STATE,
        "POST /wake_up?tags=weights",
        STATE,
        "POST /wake_up?tags=kv_cache",
        STATE,
        "POST /reset_prefix_cache",
        "POST /v1/chat/completions",
    ]


async def test_level_two_reads_the_weights_between_the_tags(serve):
    server = await serve(ScriptedVllm())
    at = control(server.port, level=2)
    await VLLM.park(at)
    server.asked.clear()
    await VLLM.wake(at, canary=CANARY)
    assert control_calls(server)[1:5] == [
        "POST /wake_up?tags=weights",
        STATE,
        "POST /collective_rpc",
        "POST /wake_up?tags=kv_cache",
    ]


@pytest.mark.parametrize("level", [1, 2])
async def test_older_builds_answer_with_nothing(serve, level):
    server = await serve(ScriptedVllm(terse=True))
    at = control(server.port, level=level)
    await VLLM.park(at)
    await VLLM.wake(at, canary=CANARY)


async def refused(serve, engine, level=1):
    server = await serve(engine)
    with pytest.raises(ParkRefused) as caught:
        await VLLM.park(control(server.port, level=level))
    return server, str(caught.value)


async def broken_park(serve, engine, level=1):
    server = await serve(engine)
    with pytest.raises(EngineBroken) as caught:
        await VLLM.park(control(server.port, level=level))
    assert caught.value.code == "park_failed"
    assert server.count("POST", "/sleep") <= 1
    return server, caught.value.detail


async def test_nothing_is_sent_when_the_state_cannot_be_read(serve):
    for told in (Told(status=404), Told(body={"is_sleeping": "no"}), Told(hang_up=True)):
        server, _ = await refused(serve, ScriptedVllm(overrides={STATE: told}))
        assert server.count("POST", "/sleep") == 0


async def test_an_engine_that_sleeps_already_is_not_put_to_sleep(serve):
    server, _ = await broken_park(serve, ScriptedVllm(asleep={"weights"}))
    assert server.count("POST", "/sleep") == 0


async def test_without_sleep_mode_nothing_is_asked(serve):
    server = await serve(ScriptedVllm())
    with pytest.raises(ParkRefused):
        await VLLM.park(control(server.port, level=None))
    with pytest.raises(EngineBroken):
        await VLLM.wake(control(server.port, level=None), canary=None)
    assert server.asked == []


@pytest.mark.slow
async def test_a_busy_engine_is_parked_once_its_gauges_fall(serve):
    engine = ScriptedVllm(running=1)
    server = await serve(engine)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(VLLM.park, control(server.port, level=1))
        await server.wait_asked("GET", "/metrics", 2)
        assert server.count("POST", "/sleep") == 0
        engine.running = 0
    assert server.count("POST", "/sleep") == 1


@pytest.mark.slow
async def test_a_busy_engine_is_not_parked(serve, monkeypatch):
    monkeypatch.setattr("capyctl.engines.vllm_sleep.IDLE_WITHIN_S", 0.3)
    server, why = await refused(serve, ScriptedVllm(running=1))
    assert "idle" in why
    assert server.count("POST", "/sleep") == 0


@pytest.mark.parametrize("status", [400, 404, 500])
async def test_an_error_that_did_nothing_leaves_it_serving(serve, status):
    server, why = await refused(serve, ScriptedVllm(overrides={"POST /sleep": Told(status=status)}))
    assert str(status) in why
    assert server.calls()[-2:] == [STATE, "POST /v1/chat/completions"]


async def test_an_error_after_which_it_answers_no_more_breaks_it(serve):
    failing = {"POST /sleep": Told(status=500), "POST /v1/chat/completions": Told(status=500)}
    await broken_park(serve, ScriptedVllm(overrides=failing))


async def test_an_error_after_which_it_sleeps_breaks_it(serve):
    engine = ScriptedVllm()
    real = engine._sleep

    def half_done(asked):
        real(asked)
        return Told(status=500)

    engine._sleep = half_done
    await broken_park(serve, engine)


@pytest.mark.parametrize(
    "told",
    [
        Told(hang_up=True),
        # 200, yet not asleep: only its own word afterwards counts.
        Told(body={"status": "sleeping", "level": 1}),
        Told(),
        Told(body={"status": "sleeping", "level": 2}),
        Told(body={"status": "awake", "level": 1}),
        Told(body=b"OK"),
    ],
)
async def test_a_park_that_is_not_proven_breaks_the_engine(serve, told):
    await broken_park(serve, ScriptedVllm(overrides={"POST /sleep": told}))


async def parked(serve, level=2, **overrides):
    engine = ScriptedVllm()
    server = await serve(engine)
    at = control(server.port, level=level)
    await VLLM.park(at)
    server.asked.clear()
    engine.overrides = {f"POST {path}": told for path, told in overrides.items()}
    return engine, server, at


async def fails_to_wake(at, code="wake_failed", canary=CANARY):
    with pytest.raises(EngineBroken) as caught:
        await VLLM.wake(at, canary=canary)
    assert caught.value.code == code
    return caught.value.detail


UNKNOWN_TAG = Told(body={"status": "sleeping", "tags": ["kv_cache"]})


@pytest.mark.parametrize(
    ("path", "told"),
    [
        ("/wake_up?tags=weights", Told(status=500)),
        ("/wake_up?tags=weights", Told(hang_up=True)),
        ("/wake_up?tags=weights", Told(body={"status": "awake", "tags": ["weights"]})),
        ("/wake_up?tags=weights", Told(body={"status": "sleeping", "tags": ["scheduling"]})),
        ("/collective_rpc", Told(status=500, body={"error": "no loader"})),
        ("/collective_rpc", Told(body={"results": []})),
        ("/collective_rpc", Told()),
        ("/collective_rpc", Told(hang_up=True)),
        ("/wake_up?tags=kv_cache", UNKNOWN_TAG),
        ("/wake_up?tags=kv_cache", Told()),
        ("/wake_up?tags=kv_cache", Told(body={"status": "awake", "tags": ["kv_cache"]})),
        ("/reset_prefix_cache", Told(body={"success": False})),
        ("/v1/chat/completions", Told(status=500)),
        ("/v1/chat/completions", Told(hang_up=True)),
    ],
)
async def test_a_step_that_is_not_proven_ends_the_wake(serve, path, told):
    _, server, at = await parked(serve, **{path: told})
    await fails_to_wake(at)
    calls = [call for call in server.calls() if call.startswith("POST")]
    assert len(calls) == len(set(calls)), "no call is repeated"
    assert calls[-1] == f"POST {path}", "nothing is sent after the step that failed"


async def test_an_awake_engine_is_not_woken(serve):
    engine, server, at = await parked(serve)
    engine.asleep = set()
    await fails_to_wake(at)
    assert server.calls() == [STATE]


async def test_other_tokens_are_a_mismatch(serve):
    engine, _, at = await parked(serve)
    engine.ids = (11, 12, 99)
    await fails_to_wake(at, "wake_mismatch")


async def test_without_token_ids_the_text_decides(serve):
    engine, _, at = await parked(serve)
    engine.ids = None
    await VLLM.wake(at, canary=CANARY)
    await VLLM.park(at)
    engine.text = "one two four"
    await fails_to_wake(at, "wake_mismatch")


async def test_gibberish_after_a_reload_that_did_nothing(serve):
    _, _, at = await parked(serve, **{"/collective_rpc": Told(body={"results": [None]})})
    await fails_to_wake(at, "wake_mismatch")


async def test_without_a_canary_any_answer_will_do(serve):
    engine, _, at = await parked(serve)
    engine.text = "something else"
    await VLLM.wake(at, canary=None)
