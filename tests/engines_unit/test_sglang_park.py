"""SGLang's park and wake against a scripted engine that dies of every misuse."""

import json

import pytest
import trio

from capyctl.contracts.engines import EngineBroken, NotReady, ParkRefused
from capyctl.engines import sglang_park
from capyctl.engines.sglang import Sglang
from tests.engines_unit.fake_server import Told
from tests.engines_unit.scenes import control, order, surroundings
from tests.engines_unit.scripted_sglang import ScriptedSglang

CANARY = json.dumps({"ids": [], "path": "/v1/chat/completions", "text": "one two three"})
PAUSE, CONTINUE = "POST /pause_generation", "POST /continue_generation"
RELEASE, RESUME = "POST /release_memory_occupation", "POST /resume_memory_occupation"
RELOAD, FLUSH = "POST /update_weights_from_disk", "POST /flush_cache"
CHAT = "POST /v1/chat/completions"


@pytest.fixture
def sglang():
    """Its own for each test: it remembers what was released."""
    return Sglang(surroundings=surroundings())


def control_calls(server):
    """What was asked that changes something, with its tags, in order."""
    told = []
    for one in server.asked:
        if one.method == "POST":
            tags = one.json().get("tags", []) if one.body else []
            told.append(" ".join([f"POST {one.path}", *tags]))
    return told


def calls_of(server, path):
    return [one for one in server.asked if one.path == path]


async def test_a_park_pauses_before_it_releases(serve, sglang):
    server = await serve(ScriptedSglang())
    await sglang.park(control(server.port, level=2))
    assert control_calls(server) == [PAUSE, f"{RELEASE} kv_cache weights"]
    keys = {one.path: one.headers["authorization"] for one in server.asked}
    assert keys["/pause_generation"] == keys["/release_memory_occupation"] == "Bearer admin-key"


async def test_with_a_copy_nothing_is_read_from_disk(serve, sglang):
    engine = ScriptedSglang(keeps_copy=True)
    server = await serve(engine)
    at = control(server.port, level=1)
    await sglang.park(at)
    server.asked.clear()
    await sglang.wake(at, canary=CANARY)
    assert control_calls(server) == [
        f"{RESUME} weights",
        f"{RESUME} kv_cache",
        FLUSH,
        CONTINUE,
        CHAT,
    ]
    assert engine.dead == ""


async def test_without_a_copy_weights_are_read_before_the_cache_comes_back(serve, sglang):
    engine = ScriptedSglang()
    server = await serve(engine)
    at = control(server.port, level=2)
    await sglang.park(at)
    server.asked.clear()
    await sglang.wake(at, canary=CANARY)
    assert control_calls(server) == [
        f"{RESUME} weights",
        RELOAD,
        f"{RESUME} kv_cache",
        FLUSH,
        CONTINUE,
        CHAT,
    ]


async def test_a_speculative_engine_keeps_its_weights(serve, sglang):
    engine = ScriptedSglang(settings={"speculative_algorithm": "EAGLE"})
    server = await serve(engine)
    at = control(server.port, level=2)
    await sglang.park(at)
    await sglang.wake(at, canary=CANARY)
    assert control_calls(server) == [
        PAUSE,
        f"{RELEASE} kv_cache",
        f"{RESUME} kv_cache",
        FLUSH,
        CONTINUE,
        CHAT,
    ]


@pytest.mark.parametrize("level", [1, 2])
async def test_cycle_after_cycle(serve, sglang, level):
    engine = ScriptedSglang(keeps_copy=level == 1)
    server = await serve(engine)
    for _ in range(3):
        await sglang.park(control(server.port, level=level))
        await sglang.wake(control(server.port, level=level), canary=CANARY)
    assert (engine.dead, engine.released, engine.paused) == ("", set(), False)


async def test_no_health_is_asked_for_while_it_is_parked(serve, sglang):
    engine = ScriptedSglang()
    server = await serve(engine)
    at = control(server.port, level=2)
    await sglang.park(at)
    await sglang.sample(at)
    await sglang.wake(at, canary=CANARY)
    assert calls_of(server, "/health") == calls_of(server, "/health_generate") == []


async def test_older_releases_without_flags_park_as_well(serve, sglang):
    server = await serve(ScriptedSglang(older=True))
    at = control(server.port, level=2)
    await sglang.park(at)
    await sglang.wake(at, canary=CANARY)


async def refused(serve, sglang, engine, level=2):
    server = await serve(engine)
    with pytest.raises(ParkRefused) as caught:
        await sglang.park(control(server.port, level=level))
    assert server.count("POST", "/release_memory_occupation") <= 1
    return server, str(caught.value)


@pytest.mark.parametrize(
    ("settings", "level", "why"),
    [
        ({"enable_memory_saver": False}, 2, "memory saver"),
        ({"enable_memory_saver": None}, 2, "memory saver"),
        ({"weight_cache_mode": "daemon"}, 2, "shared"),
        ({"enable_weights_cpu_backup": False}, 1, "no copy"),
        ({"delete_ckpt_after_loading": True}, 2, "deletes its checkpoint"),
    ],
)
async def test_without_evidence_of_the_saver_nothing_is_asked(serve, sglang, settings, level, why):
    """Such a park would be answered with 200 and free nothing, or could not be undone."""
    server, told = await refused(serve, sglang, ScriptedSglang(settings=settings), level)
    assert why in told
    assert control_calls(server) == []


async def test_settings_that_cannot_be_read_are_not_told_further(serve, sglang):
    secret = Told(status=500, body={"api_key": "inference-key"})
    server, told = await refused(
        serve, sglang, ScriptedSglang(overrides={"GET /server_info": secret})
    )
    assert "inference-key" not in told
    assert control_calls(server) == []


@pytest.mark.slow
async def test_a_busy_engine_is_never_asked_to_release(serve, sglang, monkeypatch):
    monkeypatch.setattr(sglang_park, "IDLE_WITHIN_S", 0.3)
    server, told = await refused(serve, sglang, ScriptedSglang(running=1))
    assert "idle" in told
    assert control_calls(server) == []


@pytest.mark.slow
async def test_a_busy_engine_is_parked_once_its_gauges_fall(serve, sglang):
    engine = ScriptedSglang(running=1)
    server = await serve(engine)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(sglang.park, control(server.port, level=2))
        await server.wait_asked("GET", "/metrics", 2)
        assert control_calls(server) == []
        engine.running = 0
    assert control_calls(server) == [PAUSE, f"{RELEASE} kv_cache weights"]


@pytest.mark.parametrize("failing", [PAUSE, RELEASE])
async def test_an_error_before_anything_was_released_leaves_it_serving(serve, sglang, failing):
    engine = ScriptedSglang(overrides={failing: Told(status=500)})
    server, told = await refused(serve, sglang, engine)
    assert "500" in told
    assert control_calls(server)[-2:] == [CONTINUE, CHAT]
    assert not engine.paused
    engine.overrides = {}
    await sglang.park(control(server.port, level=2))


async def broken_park(serve, sglang, engine):
    server = await serve(engine)
    with pytest.raises(EngineBroken) as caught:
        await sglang.park(control(server.port, level=2))
    assert caught.value.code == "park_failed"
    return server, caught.value.detail


@pytest.mark.parametrize("lost", [PAUSE, RELEASE])
async def test_a_lost_answer_while_parking_breaks_it(serve, sglang, lost):
    engine = ScriptedSglang(overrides={lost: Told(hang_up=True)})
    server, told = await broken_park(serve, sglang, engine)
    assert "unknown" in told
    assert control_calls(server).count(lost.replace(RELEASE, f"{RELEASE} kv_cache weights")) == 1
    assert CONTINUE not in control_calls(server)


async def test_an_engine_that_will_not_go_on_is_broken(serve, sglang):
    overrides = {RELEASE: Told(status=500), CONTINUE: Told(status=500)}
    await broken_park(serve, sglang, ScriptedSglang(overrides=overrides))


async def test_a_paused_engine_that_should_serve_is_broken(serve, sglang):
    server, _ = await broken_park(serve, sglang, ScriptedSglang(paused=True))
    assert control_calls(server) == []


async def test_an_unhealthy_engine_is_not_parked(serve, sglang):
    engine = ScriptedSglang(overrides={"GET /ping": Told(status=503)})
    server, _ = await refused(serve, sglang, engine)
    assert control_calls(server) == []


async def test_a_release_that_did_not_stay_paused_is_no_park(serve, sglang):
    class Unpausing(ScriptedSglang):
        def _release_memory_occupation(self, asked):
            told = super()._release_memory_occupation(asked)
            self.paused = False
            return told

    _, told = await broken_park(serve, sglang, Unpausing())
    assert "not paused" in told


async def test_nothing_is_released_twice(serve, sglang):
    server = await serve(ScriptedSglang())
    at = control(server.port, level=2)
    await sglang.park(at)
    with pytest.raises(EngineBroken, match="released already"):
        await sglang.park(at)
    assert server.count("POST", "/release_memory_occupation") == 1


async def parked(serve, sglang, engine, level=2):
    server = await serve(engine)
    at = control(server.port, level=level)
    await sglang.park(at)
    server.asked.clear()
    return server, at


@pytest.mark.parametrize("tag", ["weights", "kv_cache"])
async def test_a_lost_answer_to_a_resume_is_never_asked_for_again(serve, sglang, tag):
    engine = ScriptedSglang()
    server, at = await parked(serve, sglang, engine)
    engine.overrides = {f"{RESUME} {tag}": Told(hang_up=True)}
    with pytest.raises(EngineBroken) as caught:
        await sglang.wake(at, canary=CANARY)
    assert (caught.value.code, "unknown" in caught.value.detail) == ("wake_failed", True)
    engine.overrides = {}
    with pytest.raises(EngineBroken):
        await sglang.wake(at, canary=CANARY)
    assert control_calls(server).count(f"{RESUME} {tag}") == 1
    assert engine.dead == ""


async def test_a_slow_resume_is_not_asked_for_again(serve, sglang, monkeypatch):
    monkeypatch.setattr(sglang_park, "RESUME_WITHIN_S", 0.1)
    engine = ScriptedSglang()
    server, at = await parked(serve, sglang, engine)
    engine.overrides = {RESUME: Told(silent=True)}
    with pytest.raises(EngineBroken, match="unknown"):
        await sglang.wake(at, canary=CANARY)
    assert server.count("POST", "/resume_memory_occupation") == 1


@pytest.mark.parametrize(
    ("path", "told"),
    [
        (RESUME, Told(status=500)),
        (RELOAD, Told(status=400, body={"success": False, "message": "no"})),
        (RELOAD, Told(body={"success": False, "message": "no"})),
        (RELOAD, Told(body=b"null")),
        (RELOAD, Told(hang_up=True)),
        (FLUSH, Told(status=400)),
        (CONTINUE, Told(status=500)),
        (CONTINUE, Told(hang_up=True)),
        (CHAT, Told(status=500)),
        ("GET /ping", Told(status=503)),
        ("GET /ready", Told(status=200)),
        ("GET /ping", Told(hang_up=True)),
    ],
)
async def test_whatever_fails_in_a_wake_breaks_it(serve, sglang, path, told):
    engine = ScriptedSglang()
    server, at = await parked(serve, sglang, engine)
    engine.overrides = {path: told}
    with pytest.raises(EngineBroken) as caught:
        await sglang.wake(at, canary=CANARY)
    assert caught.value.code == "wake_failed"
    assert engine.dead == ""
    counts = [control_calls(server).count(call) for call in set(control_calls(server))]
    assert max(counts, default=1) == 1


async def test_no_request_reaches_it_before_everything_is_back(serve, sglang):
    engine = ScriptedSglang()
    server, at = await parked(serve, sglang, engine)
    await sglang.wake(at, canary=CANARY)
    calls = control_calls(server)
    assert calls.index(CHAT) > calls.index(CONTINUE) > calls.index(f"{RESUME} kv_cache")


async def test_gibberish_is_noticed(serve, sglang):
    class Forgetful(ScriptedSglang):
        def _update_weights_from_disk(self, asked):
            return Told(body={"success": True})

    _server, at = await parked(serve, sglang, Forgetful())
    with pytest.raises(EngineBroken) as caught:
        await sglang.wake(at, canary=CANARY)
    assert caught.value.code == "wake_mismatch"


async def test_after_a_restart_of_the_daemon_it_is_woken_all_the_same(serve, sglang):
    engine = ScriptedSglang()
    _server, at = await parked(serve, sglang, engine)
    restarted = Sglang(surroundings=surroundings())
    await restarted.wake(at, canary=CANARY)
    assert (engine.dead, engine.released) == ("", set())


async def test_another_launch_on_the_same_port_has_released_nothing(serve, sglang):
    server, _at = await parked(serve, sglang, ScriptedSglang())
    engine = ScriptedSglang()
    server.handler = engine
    await sglang.park(control(server.port, level=2, admin_key="another"))
    assert engine.released == {"kv_cache", "weights"}


async def test_without_the_saver_nothing_is_asked(serve, sglang):
    server = await serve(ScriptedSglang())
    with pytest.raises(ParkRefused):
        await sglang.park(control(server.port, level=None))
    with pytest.raises(EngineBroken):
        await sglang.wake(control(server.port, level=None), canary=None)
    assert server.asked == []


async def test_readiness_and_its_canary(serve, sglang):
    server = await serve(ScriptedSglang())
    canary = await sglang.wait_ready(control(server.port, level=2), order("sglang"))
    assert server.calls() == ["GET /health", "GET /v1/models", CHAT, CHAT]
    assert json.loads(canary)["text"] == "one two three"


async def test_another_name_is_a_mismatch(serve, sglang):
    wrong = {"GET /v1/models": Told(body={"data": [{"id": "other"}]})}
    server = await serve(ScriptedSglang(overrides=wrong))
    with pytest.raises(NotReady) as caught:
        await sglang.wait_ready(control(server.port), order("sglang"))
    assert caught.value.code == "effective_args_mismatch"


async def test_the_running_limit_is_asked_for_once(serve, sglang):
    server = await serve(ScriptedSglang(running=3))
    at = control(server.port, level=2)
    seen = [await sglang.sample(at) for _ in range(3)]
    assert [(one.running, one.waiting, one.kv_usage_ratio) for one in seen] == [(3, 0, 0.25)] * 3
    assert [one.running_limit_count for one in seen] == [48] * 3
    assert server.count("GET", "/v1/loads") == 1


@pytest.mark.parametrize(
    "told", [Told(status=404), Told(body=b"sglang:num_running_reqs nonsense"), Told(hang_up=True)]
)
async def test_no_sample_without_both_gauges(serve, sglang, told):
    server = await serve(ScriptedSglang(overrides={"GET /metrics": told}))
    assert await sglang.sample(control(server.port)) is None
