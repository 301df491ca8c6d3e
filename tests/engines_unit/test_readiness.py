import pytest
import trio

from capyctl.contracts.engines import NotReady
from capyctl.engines.activity import Activity, look
from capyctl.engines.llama_cpp import LlamaCpp
from capyctl.engines.questions import same_canary
from capyctl.engines.vllm import Vllm
from tests.engines_unit.fake_server import Told
from tests.engines_unit.scenes import ScriptedVllm, control, order, surroundings

VLLM = Vllm(surroundings=surroundings())
LLAMA = LlamaCpp(surroundings=surroundings("bare"))
CHAT = "POST /v1/chat/completions"


async def test_a_parking_engine_gives_its_canary(serve):
    server = await serve(ScriptedVllm())
    canary = await VLLM.wait_ready(control(server.port, level=2), order())
    assert server.calls() == ["GET /health", "GET /load", "GET /v1/models", CHAT, CHAT]
    fixed = server.asked[-1].json()
    assert (fixed["temperature"], fixed["max_tokens"]) == (0, 8)
    assert same_canary(canary, await VLLM.wait_ready(control(server.port, level=2), None))
    assert not same_canary(canary, canary.replace("12", "13"))


async def test_an_engine_that_never_parks_gives_none(serve):
    server = await serve(ScriptedVllm())
    assert await VLLM.wait_ready(control(server.port), order()) is None
    health, guard, models = server.asked[:3]
    assert health.headers["authorization"] == "Bearer admin-key"
    assert "authorization" not in guard.headers
    assert models.headers["authorization"] == "Bearer inference-key"


@pytest.mark.parametrize("status", [200, 404])
async def test_control_routes_that_anyone_may_call_are_not_believed(serve, status):
    detail = await never_ready(serve, {"GET /load": Told(status=status)}, "launch_failed")
    assert f"answered {status} without it" in detail


@pytest.mark.slow
async def test_loading_and_hang_ups_are_waited_out(serve):
    engine = ScriptedVllm(overrides={"GET /health": Told(hang_up=True)})
    server = await serve(engine)

    async def come_up():
        await server.wait_asked("GET", "/health", 1)
        engine.overrides = {"GET /health": Told(status=503)}
        await server.wait_asked("GET", "/health", 3)
        engine.overrides = {CHAT: Told(status=503)}
        await server.wait_asked("POST", "/v1/chat/completions", 2)
        engine.overrides = {}

    async with trio.open_nursery() as nursery:
        nursery.start_soon(come_up)
        await VLLM.wait_ready(control(server.port), order())


async def never_ready(serve, overrides, code, **engine):
    server = await serve(ScriptedVllm(overrides=overrides, **engine))
    with pytest.raises(NotReady) as caught:
        await VLLM.wait_ready(control(server.port), order())
    assert caught.value.code == code
    return caught.value.detail


async def test_another_name_is_a_mismatch(serve):
    models = Told(body={"data": [{"id": "other"}]})
    detail = await never_ready(serve, {"GET /v1/models": models}, "effective_args_mismatch")
    assert "other" in detail
    assert "m" in detail


async def test_a_refused_key_is_told(serve):
    told = Told(status=401, body={"error": "Unauthorized"})
    detail = await never_ready(serve, {"GET /v1/models": told}, "launch_failed")
    assert "401" in detail


async def test_a_model_that_cannot_answer_is_not_ready(serve):
    detail = await never_ready(
        serve, {CHAT: Told(status=500, body={"error": "CUDA"})}, "launch_failed"
    )
    assert "CUDA" in detail
    empty = Told(body={"choices": [{"message": {"content": ""}}]})
    await never_ready(serve, {CHAT: empty}, "launch_failed")


@pytest.mark.parametrize("field", ["reasoning_content", "reasoning"])
async def test_reasoning_counts_as_an_answer(serve, field):
    told = Told(body={"choices": [{"message": {"content": None, field: "Hm."}}]})
    server = await serve(ScriptedVllm(overrides={CHAT: told}))
    await VLLM.wait_ready(control(server.port), order())


async def test_a_base_model_is_asked_for_a_plain_completion(serve):
    overrides = {
        CHAT: Told(status=400, body={"error": {"message": "no default chat template is allowed"}}),
        "POST /v1/completions": Told(body={"choices": [{"text": " there"}]}),
    }
    server = await serve(ScriptedVllm(overrides=overrides))
    canary = await VLLM.wait_ready(control(server.port, level=1), order())
    assert server.calls()[-2:] == ["POST /v1/completions"] * 2
    assert '"path":"/v1/completions"' in canary


def llama(n_ctx=4096, n_ctx_train=8192, **props):
    told = {"total_slots": 4, "endpoint_metrics": True, "endpoint_slots": True, **props}
    meta = {"n_ctx": n_ctx, "n_ctx_train": n_ctx_train}

    def answer(asked):
        return {
            "/health": Told(body={"status": "ok"}),
            "/v1/models": Told(body={"data": [{"id": "m", "meta": meta}]}),
            "/props": Told(body=told),
            "/v1/chat/completions": Told(body={"choices": [{"message": {"content": "Hi"}}]}),
        }[asked.path]

    return answer


async def test_llama_cpp_is_compared_with_its_order(serve):
    server = await serve(llama())
    at = control(server.port, admin_key=None)
    assert await LLAMA.wait_ready(at, order("llamacpp")) is None
    assert [one.path for one in server.asked] == [
        "/health",
        "/v1/models",
        "/props",
        "/v1/chat/completions",
    ]


async def test_the_context_is_capped_at_the_trained_one(serve):
    server = await serve(llama(n_ctx=2000, n_ctx_train=2000))
    await LLAMA.wait_ready(control(server.port), order("llamacpp"))


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"total_slots": 1}, "total_slots"),
        ({"endpoint_metrics": False}, "endpoint_metrics"),
        ({"endpoint_slots": False}, "endpoint_slots"),
        ({"n_ctx": 512}, "n_ctx"),
    ],
)
async def test_other_settings_than_ordered_are_a_mismatch(serve, changes, named):
    server = await serve(llama(**changes))
    with pytest.raises(NotReady, match=f"^effective_args_mismatch: {named} is"):
        await LLAMA.wait_ready(control(server.port), order("llamacpp"))
    # An engine that is found again is not compared.
    await LLAMA.wait_ready(control(server.port), None)


async def test_what_an_engine_is_doing(serve):
    engine = ScriptedVllm()
    server = await serve(engine)
    at = control(server.port)
    assert await look(VLLM, at) is Activity.IDLE
    engine.running = 2
    assert await look(VLLM, at) is Activity.BUSY
    engine.overrides = {"GET /metrics": Told(status=500)}
    assert await look(VLLM, at) is Activity.SILENT
    engine.overrides = {"GET /health": Told(status=503)}
    assert await look(VLLM, at) is Activity.GONE
    with trio.socket.socket() as free:
        await free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    assert await look(VLLM, control(port)) is Activity.GONE
