import pytest

from capyctl.contracts.engines import EngineBroken, ParkRefused
from capyctl.domain.specs import ModelTask
from capyctl.engines.families import families
from capyctl.engines.llama_cpp import SLOTS_EVERY_S, LlamaCpp
from capyctl.engines.vllm import Vllm
from tests.engines_unit.fake_server import Told
from tests.engines_unit.scenes import ScriptedVllm, control, surroundings

GENERATING = {
    "/v1/chat/completions",
    "/v1/completions",
    "/v1/responses",
    "/v1/messages",
    "/v1/messages/count_tokens",
    "/tokenize",
}


async def test_vllms_gauges_are_summed_over_its_engines(serve):
    lines = [
        'vllm:num_requests_running{engine="0"} 2.0',
        'vllm:num_requests_running{engine="1"} 3.0',
        'vllm:num_requests_waiting{engine="0"} 0.0',
        'vllm:num_requests_waiting{engine="1"} 4.0',
        'vllm:kv_cache_usage_perc{engine="0"} 0.1',
        'vllm:kv_cache_usage_perc{engine="1"} 0.7',
        'vllm:num_requests_waiting_by_reason{reason="x"} oops',
    ]
    server = await serve(lambda asked: Told(body="\n".join(lines).encode()))
    clock = surroundings(monotonic_s=lambda: 12.5)
    sample = await Vllm(surroundings=clock).sample(control(server.port))
    assert (sample.at_s, sample.running, sample.waiting, sample.kv_usage_ratio) == (12.5, 5, 4, 0.7)


@pytest.mark.parametrize(
    "told",
    [
        Told(status=500),
        Told(hang_up=True),
        Told(body=b""),
        Told(body=b"vllm:num_requests_running 1\nvllm:num_requests_waiting NaN"),
        Told(body=b"vllm:num_requests_running x\nvllm:num_requests_waiting 0"),
        Told(body=b"vllm:num_requests_running -1\nvllm:num_requests_waiting 0"),
    ],
)
async def test_what_cannot_be_read_is_no_sample(serve, told):
    server = await serve(ScriptedVllm(overrides={"GET /metrics": told}))
    assert await Vllm(surroundings=surroundings()).sample(control(server.port)) is None


METRICS = b"llamacpp:requests_processing 1\nllamacpp:requests_deferred 2\n"
SLOTS = [{"n_ctx": 100, "is_processing": True, "n_prompt_tokens": 50}]


async def test_llama_cpps_slots_are_read_rarely(serve):
    now_s = [100.0]
    family = LlamaCpp(surroundings=surroundings("bare", monotonic_s=lambda: now_s[0]))

    def answer(asked):
        return Told(body=METRICS) if asked.path == "/metrics" else Told(body=SLOTS)

    server = await serve(answer)
    at = control(server.port)
    for _ in range(5):
        sample = await family.sample(at)
        assert (sample.running, sample.waiting, sample.kv_usage_ratio) == (1, 2, 0.5)
        now_s[0] += 0.9
    assert server.count("GET", "/slots") == 1
    now_s[0] = 100.0 + SLOTS_EVERY_S
    await family.sample(at)
    assert server.count("GET", "/slots") == 2


async def test_a_failed_look_at_the_slots_is_not_repeated_at_once(serve):
    family = LlamaCpp(surroundings=surroundings("bare", monotonic_s=lambda: 1.0))

    def answer(asked):
        return Told(body=METRICS) if asked.path == "/metrics" else Told(hang_up=True)

    server = await serve(answer)
    for _ in range(2):
        sample = await family.sample(control(server.port))
        assert (sample.running, sample.kv_usage_ratio) == (1, None)
    assert server.count("GET", "/slots") == 1


async def test_llama_cpp_never_parks():
    family = LlamaCpp(surroundings=surroundings("bare"))
    assert not family.parks
    with pytest.raises(ParkRefused):
        await family.park(control(1))
    with pytest.raises(EngineBroken):
        await family.wake(control(1), canary=None)


def test_the_registry():
    known = families(surroundings())
    assert {name: (one.parks, one.takes_key) for name, one in known.items()} == {
        "vllm": (True, True),
        "llamacpp": (False, False),
        "sglang": (True, True),
        "tensorfold": (False, False),
    }


@pytest.mark.parametrize(
    ("family", "task", "routes"),
    [
        ("vllm", ModelTask.GENERATE, GENERATING),
        ("vllm", ModelTask.EMBED, {"/v1/embeddings", "/v1/rerank", "/v1/score", "/tokenize"}),
        ("vllm", ModelTask.RERANK, {"/v1/rerank", "/v1/score", "/tokenize"}),
        ("vllm", ModelTask.TRANSCRIBE, {*GENERATING, "/v1/audio/transcriptions"}),
        ("sglang", ModelTask.GENERATE, {*GENERATING, "/v1/score"}),
        ("sglang", ModelTask.EMBED, {"/v1/embeddings", "/tokenize"}),
        ("sglang", ModelTask.RERANK, {"/v1/rerank", "/tokenize"}),
        ("sglang", ModelTask.TRANSCRIBE, {*GENERATING, "/v1/score", "/v1/audio/transcriptions"}),
        ("llamacpp", ModelTask.GENERATE, GENERATING),
        ("llamacpp", ModelTask.EMBED, {"/v1/embeddings", "/tokenize"}),
        ("llamacpp", ModelTask.RERANK, {"/v1/rerank", "/tokenize"}),
        ("llamacpp", ModelTask.TRANSCRIBE, {*GENERATING, "/v1/audio/transcriptions"}),
        ("tensorfold", ModelTask.GENERATE, GENERATING - {"/v1/messages/count_tokens"}),
        ("tensorfold", ModelTask.EMBED, set()),
    ],
)
def test_routes_follow_family_and_task(family, task, routes):
    assert families(surroundings())[family].routes(task) == routes
