import json

import attrs
import pytest

from capyctl.domain.specs import ModelTask, Residency
from capyctl.domain.units import GIB
from capyctl.engines.vllm import Vllm
from tests.engines_unit.scenes import DEPLOYMENT, KEYS, LAUNCH, UUID, order, surroundings


def render(scene="card", **settings):
    devices = () if scene == "bare" else (UUID,)
    family = Vllm(surroundings=surroundings(scene))
    return family.render(order("vllm", devices=devices, **settings), port=8101, keys=KEYS)


ENTRY = ("/opt/vllm/bin/python3", "-I", "/var/lib/capyctl/runtime/vllm_entry.py")
HEAD = ("/models/m",)
NETWORK = ("--host", "127.0.0.1", "--port", "8101", "--served-model-name", "m")
PLAIN = (*HEAD, *NETWORK, "--max-num-seqs", "32", "--enable-per-request-metrics")


def through_entry(*ours, then=()):
    """The entry's command line: it is told how many of the tokens are capyctl's own."""
    return (*ENTRY, str(len(ours)), *ours, *then)


def test_the_shortest_command_line():
    assert render("bare").argv == through_entry(*PLAIN)


def test_a_simulated_engine_is_started_as_it_is():
    rendered = render("bare", executable=("/py", "program", "vllm"), direct=True)
    assert rendered.argv == ("/py", "program", "vllm", "serve", *PLAIN)


def test_an_executable_with_leading_arguments_has_no_interpreter_beside_it():
    with pytest.raises(ValueError, match="leading arguments"):
        render("bare", executable=("/usr/bin/env", "vllm"))


def test_a_parking_engine_with_everything_declared():
    rendered = render(
        parks=True,
        context_length=8192,
        concurrency=16,
        kv_cache_bytes=4 * GIB,
        request_bytes=12 * GIB,
        typed={
            "dtype": "bfloat16",
            "quantization": "awq",
            "kv_cache_dtype": "fp8",
            "cuda_graphs": False,
            "language_model_only": True,
            "trust_remote_code": True,
            "vllm.block_size_tokens": 32,
            "vllm.max_num_batched_tokens": 4096,
            "vllm.tool_call_parser": "hermes",
            "vllm.reasoning_parser": "qwen3",
        },
        profile_args=("--enable-chunked-prefill",),
        extra_args=("--seed", "7"),
    )
    assert rendered.argv == through_entry(
        *HEAD,
        *NETWORK,
        *("--max-model-len", "8192", "--max-num-seqs", "16"),
        *("--kv-cache-memory-bytes", str(4 * GIB), "--gpu-memory-utilization", "0.50"),
        *("--dtype", "bfloat16", "--quantization", "awq", "--kv-cache-dtype", "fp8"),
        *("--block-size", "32", "--max-num-batched-tokens", "4096"),
        *("--enforce-eager", "--language-model-only", "--trust-remote-code"),
        *("--enable-sleep-mode", "--safetensors-load-strategy", "eager"),
        "--enable-per-request-metrics",
        *("--enable-auto-tool-choice", "--tool-call-parser", "hermes"),
        *("--reasoning-parser", "qwen3"),
        then=("--enable-chunked-prefill", "--seed", "7"),
    )


ENV = {
    "PATH": "/opt/vllm/bin:/usr/local/bin:/usr/bin:/bin",
    "CAPYCTL_ENGINE_LOG": f"/var/lib/capyctl/logs/{DEPLOYMENT}/{LAUNCH}.log",
    "CUDA_VISIBLE_DEVICES": UUID,
    "MAX_JOBS": "5",
    "FLASHINFER_NVCC_THREADS": "1",
    "GLOO_SOCKET_IFNAME": "lo",
    "NCCL_SOCKET_IFNAME": "lo",
    "VLLM_HOST_IP": "127.0.0.1",
    "CAPYCTL_ENGINE_API_KEY": "inference-key",
    "CAPYCTL_VLLM_ADMIN_KEY": "admin-key",
    "VLLM_API_KEY": "inference-key",
}


def test_the_environment_is_closed(monkeypatch):
    monkeypatch.setenv("HF_TOKEN", "caller's")
    assert dict(render().env) == ENV
    assert dict(render(parks=True).env) == {**ENV, "VLLM_SERVER_DEV_MODE": "1"}


def test_what_is_declared_wins_over_defaults_and_loses_to_pins():
    env = render(
        env={"MAX_JOBS": "3", "VLLM_HOST_IP": "10.0.0.1", "RUST_LOG": "info"},
        cuda_home="/usr/local/cuda",
    ).env
    assert env["MAX_JOBS"] == "3"
    assert env["VLLM_HOST_IP"] == "127.0.0.1"
    assert env["RUST_LOG"] == "info"
    assert env["CUDA_HOME"] == "/usr/local/cuda"
    assert env["PATH"].split(":")[:2] == ["/opt/vllm/bin", "/usr/local/cuda/bin"]


def test_no_key_is_on_the_command_line_or_in_a_repr():
    rendered = render(parks=True)
    assert not any("key" in token for token in rendered.argv)
    assert "inference-key" not in repr(rendered) + repr(KEYS)


@pytest.mark.parametrize(
    ("scene", "request_bytes", "share"),
    [
        ("card", 12 * GIB, "0.50"),
        ("card", 12 * GIB + 1, "0.51"),
        ("card", 24 * GIB, "0.99"),
        ("unified", 32 * GIB, "0.2500"),
        ("unified", 32 * GIB + 1, "0.2501"),
    ],
)
def test_the_memory_request_as_a_share(scene, request_bytes, share):
    argv = render(scene, request_bytes=request_bytes).argv
    assert argv[argv.index("--gpu-memory-utilization") + 1] == share


def test_a_request_above_the_card_is_refused():
    with pytest.raises(ValueError, match=r"engine_config\.memory\.request"):
        render(request_bytes=25 * GIB)


def test_unified_memory_loads_lazily_while_parking():
    argv = render("unified", parks=True).argv
    assert argv[argv.index("--safetensors-load-strategy") + 1] == "lazy"
    assert "--safetensors-load-strategy" not in render("unified").argv


def test_host_fixed_sequences_are_left_to_the_profile():
    argv = render(concurrency=32, profile_args=("--max_num_seqs=8",)).argv
    assert "--max-num-seqs" not in argv


def test_an_option_comes_once():
    with pytest.raises(ValueError, match=r"^--block_size is on the command line twice"):
        render(typed={"vllm.block_size_tokens": 32}, profile_args=("--block_size=16",))


def test_parking_refuses_growing_segments():
    env = {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"}
    render(env=env)
    with pytest.raises(ValueError, match="expandable_segments"):
        render(env=env, parks=True)


def test_a_machine_with_cards_needs_to_know_which():
    family = Vllm(surroundings=surroundings("card"))
    with pytest.raises(ValueError, match="devices"):
        family.render(order("vllm", devices=()), port=8101, keys=KEYS)
    by_index = family.render(order("vllm", devices=("0",)), port=8101, keys=KEYS).env
    assert by_index["CUDA_VISIBLE_DEVICES"] == "0"
    assert by_index["CUDA_DEVICE_ORDER"] == "PCI_BUS_ID"


@pytest.mark.parametrize("task", [ModelTask.EMBED, ModelTask.RERANK])
def test_embedding_and_reranking_models_are_run_by_the_pooling_runner(task):
    argv = render(task=task).argv
    assert argv[argv.index("--runner") + 1] == "pooling"


@pytest.mark.parametrize("task", [ModelTask.GENERATE, ModelTask.TRANSCRIBE])
def test_other_models_are_run_as_vllm_does_by_itself(task):
    assert "--runner" not in render(task=task).argv


SPECULATIVE = '{"method":"draft_model","num_speculative_tokens":3}'


def speculating(value=SPECULATIVE, **settings):
    return render(extra_args=("--seed", "1", "--speculative-config", value), **settings)


def test_a_draft_is_put_into_the_speculative_configuration():
    argv = speculating(draft_path="/models/small").argv

    assert argv[-4:-2] == ("--seed", "1")
    assert json.loads(argv[-1]) == {
        "method": "draft_model",
        "num_speculative_tokens": 3,
        "model": "/models/small",
    }


def test_it_may_be_the_profile_s_own():
    argv = render(profile_args=("--speculative-config=" + SPECULATIVE,), draft_path="/d").argv

    assert '"model":"/d"' in argv[-1]


@pytest.mark.parametrize(
    "arguments", [(), ("--seed", "1"), ("--speculative-config", '{"method":"x","model":"/y"}')]
)
def test_a_draft_that_would_not_be_used_is_refused(arguments):
    with pytest.raises(ValueError, match=r"model\.draft"):
        render(extra_args=arguments, draft_path="/models/small")


@pytest.mark.parametrize(
    ("residency", "value", "kept"),
    [
        (Residency.DEEP, SPECULATIVE, True),
        (Residency.DEEP, '{"method":"mtp","num_speculative_tokens":1}', True),
        (Residency.DEEP, '{"method":"ngram","num_speculative_tokens":3}', False),
        (Residency.HOST_BACKED, SPECULATIVE, False),
        (Residency.RESTART_ONLY, SPECULATIVE, False),
    ],
)
def test_a_deep_park_leaves_a_draft_s_weights_where_they_are(residency, value, kept):
    extra = ("--speculative-config", value)
    ordered = order(parks=residency is not Residency.RESTART_ONLY, extra_args=extra)
    ordered = attrs.evolve(ordered, residency=residency)

    argv = Vllm(surroundings=surroundings()).render(ordered, port=8101, keys=KEYS).argv

    assert ("--sleep-preserve-parameter-names" in argv) is kept
    assert ("draft.*" in argv) is kept
