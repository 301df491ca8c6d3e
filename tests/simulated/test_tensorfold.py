"""The simulated TensorFold: its surface, its figures, its ending."""

import pytest

from capyctl.domain.units import GIB
from tests.simulated.running import until

pytestmark = pytest.mark.slow

CHAT = "/v1/chat/completions"


async def test_its_surface(machine):
    async with machine.tensorfold() as engine:
        health = (await engine.get("/health")).json()
        models = (await engine.get("/v1/models")).json()
        whole = (await engine.post(CHAT, engine.chat(max_tokens=3))).json()
        metrics = (await engine.get("/metrics")).body.decode()
        tokens = (await engine.post("/tokenize", {"content": "some words"})).json()

    assert health == {"ok": True, "requests_running": 0, "busy": False}
    assert [row["id"] for row in models["data"]] == ["m"]
    assert whole["choices"][0]["finish_reason"] == "length"
    assert set(whole["tensorfold"]) == {
        "time_to_first_token",
        "prefill_seconds",
        "tokens_per_second",
    }
    assert "tensorfold:requests_running 0\n" in metrics
    assert tokens["count"] == len(tokens["tokens"])


async def test_usage_comes_with_the_last_event_without_being_asked_for(machine):
    async with machine.tensorfold() as engine:
        events = (await engine.post(CHAT, engine.chat(stream=True, max_tokens=2))).events()
    *_, last, done = events
    assert last["choices"][0]["finish_reason"] == "length"
    assert last["usage"]["completion_tokens"] == 2
    assert done == "[DONE]"


@pytest.mark.parametrize(
    ("method", "path"), [("GET", "/is_sleeping"), ("POST", "/sleep?level=2"), ("POST", "/wake_up")]
)
async def test_it_cannot_sleep(machine, method, path):
    async with machine.tensorfold() as engine:
        assert (await engine.call(method, path)).status == 404


async def test_busy_is_told_while_something_runs(machine):
    async with machine.tensorfold("--parallel", "1", tokens_per_s=20.0) as engine:
        async with engine.open("POST", CHAT, engine.chat(stream=True)) as stream:
            await stream.wait_body('"content":" ')
            health = (await engine.get("/health")).json()
        idle = engine.chat(max_tokens=1)
        assert (await engine.post(CHAT, idle)).status == 200
    assert health == {"ok": True, "requests_running": 1, "busy": True}


async def test_its_memory_stays_under_the_limit(machine):
    limit = {"TENSORFOLD_CUDA_MEMORY_LIMIT_GB": "2.5"}
    async with machine.tensorfold("--context", "4096", env=limit):
        (drawn,) = machine.drawn()
    assert 2 * GIB < drawn["bytes"] <= 2.5 * GIB


async def test_told_to_end_it_cuts_its_streams(machine):
    async with machine.tensorfold(tokens_per_s=20.0) as engine:
        async with engine.open("POST", CHAT, engine.chat(stream=True)) as stream:
            await stream.wait_body('"content":" ')
            engine.process.terminate()
            assert not (await stream.reply()).complete
        assert await engine.wait_exit() == 0
        await until(lambda: engine.children() == [])


@pytest.mark.parametrize("words", [["--nonsense"], ["--parallel", "many"]])
async def test_a_bad_command_line_is_refused(machine, words):
    async with machine.tensorfold(*words, wait=False) as engine:
        assert await engine.wait_exit() == 2
    assert "tensorfold serve: error" in engine.log
