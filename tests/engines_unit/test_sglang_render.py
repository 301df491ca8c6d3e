"""SGLang's command line and environment."""

import attrs
import pytest

from capyctl.domain.specs import ModelTask, Residency
from capyctl.domain.units import GIB
from capyctl.engines.sglang import Sglang, read_running_limit
from tests.engines_unit.scenes import DEPLOYMENT, KEYS, LAUNCH, UUID, order, surroundings

ENTRY = ("/opt/sglang/bin/python3", "-I", "/var/lib/capyctl/runtime/sglang_entry.py")
PLAIN = (
    *("--model-path", "/models/m", "--served-model-name", "m"),
    *("--host", "127.0.0.1", "--port", "8101", "--enable-metrics", "--enable-cache-report"),
    *("--log-level", "info", "--log-level-http", "info", "--tokenizer-worker-num", "1"),
)


def through_entry(*ours, then=()):
    return (*ENTRY, str(len(ours)), *ours, *then)


def render(scene="card", residency=Residency.RESTART_ONLY, **settings):
    devices = () if scene == "bare" else (UUID,)
    family = Sglang(surroundings=surroundings(scene))
    ordered = attrs.evolve(order("sglang", devices=devices, **settings), residency=residency)
    return family.render(ordered, port=8101, keys=KEYS)


def test_the_shortest_command_line():
    assert render().argv == through_entry(*PLAIN)


def test_everything_declared():
    rendered = render(
        parks=True,
        residency=Residency.HOST_BACKED,
        context_length=8192,
        concurrency=16,
        typed={
            "dtype": "bfloat16",
            "quantization": "fp8",
            "kv_cache_dtype": "fp8_e4m3",
            "cuda_graphs": False,
            "language_model_only": True,
            "trust_remote_code": True,
            "sglang.static_pool_bytes": 12 * GIB,
            "sglang.max_total_tokens": 65536,
            "sglang.chunked_prefill_size": 4096,
            "sglang.tokenizer_workers": 2,
            "sglang.tool_call_parser": "qwen25",
            "sglang.reasoning_parser": "qwen3",
        },
        extra_args=("--page-size", "16"),
    )
    assert rendered.argv == through_entry(
        *PLAIN[:-1],
        "2",
        *("--context-length", "8192", "--mem-fraction-static", "0.5000"),
        *("--max-total-tokens", "65536", "--max-running-requests", "16"),
        *("--chunked-prefill-size", "4096"),
        *("--dtype", "bfloat16", "--quantization", "fp8", "--kv-cache-dtype", "fp8_e4m3"),
        *("--disable-cuda-graph", "--language-model-only", "--trust-remote-code"),
        *("--enable-memory-saver", "--enable-weights-cpu-backup"),
        *("--tool-call-parser", "qwen25", "--reasoning-parser", "qwen3"),
        then=("--page-size", "16"),
    )


def test_a_deep_park_keeps_no_copy():
    argv = render(parks=True, residency=Residency.DEEP).argv
    assert argv[-1] == "--enable-memory-saver"


def test_parsers_left_to_the_engine_are_not_rendered():
    typed = {"sglang.tool_call_parser": "auto", "sglang.reasoning_parser": "none"}
    assert render(typed=typed).argv == through_entry(*PLAIN)


@pytest.mark.parametrize(
    ("scene", "pool", "share"),
    [
        ("card", 12 * GIB, "0.5000"),
        ("card", 100 * GIB, "0.9999"),
        ("card", 1, "0.0001"),
        ("unified", 30 * GIB, "0.7500"),
        ("unified", 13 * GIB + 1, "0.3250"),
        ("bare", 10 * GIB, "0.2500"),
    ],
)
def test_the_static_pool_is_a_share_of_the_card_or_of_what_is_available_now(scene, pool, share):
    argv = render(scene, typed={"sglang.static_pool_bytes": pool}).argv
    assert argv[argv.index("--mem-fraction-static") + 1] == share


def test_a_share_of_nothing_known_is_refused():
    family = Sglang(surroundings=surroundings("unified", available_bytes=lambda: None))
    ordered = order("sglang", typed={"sglang.static_pool_bytes": GIB})
    with pytest.raises(ValueError, match="memory of the machine is unknown"):
        family.render(ordered, port=8101, keys=KEYS)


def test_an_option_comes_once():
    with pytest.raises(ValueError, match="twice"):
        render(extra_args=("--tokenizer-worker-num", "4"))


def test_a_simulated_engine_is_started_as_it_is():
    rendered = render(executable=("/py", "program", "sglang"), direct=True)
    assert rendered.argv == ("/py", "program", "sglang", "serve", *PLAIN)


ENV = {
    "PATH": "/opt/sglang/bin:/usr/local/bin:/usr/bin:/bin",
    "CAPYCTL_ENGINE_LOG": f"/var/lib/capyctl/logs/{DEPLOYMENT}/{LAUNCH}.log",
    "CUDA_VISIBLE_DEVICES": UUID,
    "MAX_JOBS": "5",
    "FLASHINFER_NVCC_THREADS": "1",
    "GLOO_SOCKET_IFNAME": "lo",
    "NCCL_SOCKET_IFNAME": "lo",
    "VLLM_HOST_IP": "127.0.0.1",
    "CAPYCTL_RENDEZVOUS_DIR": "/var/lib/capyctl/rendezvous",
    "SGLANG_DISTRIBUTED_INIT_METHOD_OVERRIDE": f"file:///var/lib/capyctl/rendezvous/{LAUNCH}",
    "CAPYCTL_ENGINE_API_KEY": "inference-key",
    "CAPYCTL_SGLANG_ADMIN_KEY": "admin-key",
}


def test_the_environment_is_closed(monkeypatch):
    monkeypatch.setenv("HF_TOKEN", "caller's")
    assert dict(render().env) == ENV
    parking = {"SGLANG_ENABLE_HEALTH_ENDPOINT_GENERATION": "0", "NCCL_GRAPH_REGISTER": "0", **ENV}
    assert dict(render(parks=True, residency=Residency.DEEP).env) == parking


def test_keys_are_never_on_the_command_line():
    argv = " ".join(render(parks=True, residency=Residency.HOST_BACKED).argv)
    assert KEYS.inference not in argv
    assert KEYS.admin not in argv


@pytest.mark.parametrize(
    ("loads", "limit"),
    [
        ([{"max_running_requests": 48}], 48),
        ([{"max_running_requests": 48}, {"max_running_requests": 16}], 64),
        ([], None),
        (None, None),
        ([{"max_running_requests": 48}, {}], None),
        ([{"max_running_requests": "48"}], None),
    ],
)
def test_the_running_limit_is_that_of_all_ranks(loads, limit):
    assert read_running_limit(loads) == limit


@pytest.mark.parametrize("task", list(ModelTask))
def test_embedding_and_reranking_models_are_started_as_such(task):
    numbers = task in (ModelTask.EMBED, ModelTask.RERANK)
    assert ("--is-embedding" in render(task=task).argv) is numbers


def test_a_draft_has_its_option():
    argv = render(draft_path="/models/small", extra_args=("--speculative-algorithm", "EAGLE")).argv
    at = argv.index("--speculative-draft-model-path")
    assert argv[at + 1] == "/models/small"
    assert at < argv.index("--speculative-algorithm")


def test_the_states_of_a_hybrid_model_are_counted_for_it():
    argv = render(concurrency=8, typed={"sglang.max_mamba_cache_size": 40}).argv
    at = argv.index("--max-mamba-cache-size")
    assert argv[at : at + 4] == ("--max-mamba-cache-size", "40", "--max-running-requests", "8")
