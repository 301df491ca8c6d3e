import pytest

from capyctl.domain.specs import ModelTask
from capyctl.engines.llama_cpp import LlamaCpp, slots_usage
from tests.engines_unit.scenes import DEPLOYMENT, KEYS, LAUNCH, UUID, order, surroundings


def render(scene="bare", **settings):
    devices = () if scene == "bare" else (UUID,)
    family = LlamaCpp(surroundings=surroundings(scene))
    return family.render(order("llamacpp", devices=devices, **settings), port=8102, keys=KEYS)


def test_the_shortest_command_line():
    assert render().argv == (
        "/opt/llama/bin/llama-server",
        *("--host", "127.0.0.1", "--port", "8102"),
        *("--model", "/models/m/m.gguf", "--alias", "m"),
        *("--ctx-size", "16384", "--parallel", "4", "--no-kv-unified"),
        *("--gpu-layers", "all", "--cache-type-k", "f16", "--cache-type-v", "f16"),
        *("--fit", "off", "--cache-ram", "0", "--no-context-shift", "--metrics", "--slots"),
        *("--offline", "--no-webui", "--cors-origins", "localhost", "--no-cors-credentials"),
    )


def test_everything_declared():
    argv = render(
        "card",
        context_length=1000,
        concurrency=2,
        typed={
            "kv_cache_dtype": "q8_0",
            "llamacpp.n_gpu_layers": 20,
            "llamacpp.mmproj_file": "mmproj.gguf",
        },
        profile_args=("--threads", "4"),
        extra_args=("--flash-attn", "on"),
    ).argv
    assert argv[argv.index("--ctx-size") + 1] == "2048"
    assert argv[argv.index("--parallel") + 1] == "2"
    assert argv[argv.index("--gpu-layers") + 1] == "20"
    assert argv[argv.index("--cache-type-k") + 1] == "q8_0"
    assert argv[argv.index("--cache-type-v") + 1] == "q8_0"
    assert argv[-6:] == (
        *("--mmproj", "/models/m/mmproj.gguf"),
        *("--threads", "4", "--flash-attn", "on"),
    )


def test_the_environment_is_closed(monkeypatch):
    monkeypatch.setenv("HOME", "/home/caller")
    env = {
        "PATH": "/opt/llama/bin:/usr/local/bin:/usr/bin:/bin",
        "CAPYCTL_ENGINE_LOG": f"/var/lib/capyctl/logs/{DEPLOYMENT}/{LAUNCH}.log",
        "XDG_CONFIG_HOME": "/var/lib/capyctl/engines/llamacpp/config",
        "LLAMA_CACHE": "/var/lib/capyctl/engines/llamacpp/cache",
    }
    assert dict(render().env) == env
    assert dict(render("card").env) == {**env, "CUDA_VISIBLE_DEVICES": UUID}
    declared = render(env={"GGML_CUDA_FORCE_MMQ": "1", "LLAMA_CACHE": "/elsewhere"}).env
    assert dict(declared) == {**env, "GGML_CUDA_FORCE_MMQ": "1"}


@pytest.mark.parametrize("name", ["a,b", "a b", " a", "a\t"])
def test_names_that_llama_server_would_split_are_refused(name):
    with pytest.raises(ValueError, match="routes"):
        render(served_name=name)


@pytest.mark.parametrize(
    "again", [("--ctx_size", "1"), ("--n-gpu-layers", "1"), ("--kv-unified",), ("--ui",)]
)
def test_an_option_comes_once(again):
    with pytest.raises(ValueError, match=r"twice|set by capyctl itself"):
        render(profile_args=again)


def test_cache_types_are_llama_cpps():
    with pytest.raises(ValueError, match=r"engine_config\.kv_cache_dtype"):
        render(typed={"kv_cache_dtype": "fp8"})


def test_a_folder_with_a_named_file():
    argv = render(model_path="/models/m", typed={"llamacpp.gguf_file": "a/b.gguf"}).argv
    assert argv[argv.index("--model") + 1] == "/models/m/a/b.gguf"


def test_cache_usage_counts_processing_slots_over_all_room():
    slots = [
        {"n_ctx": 100, "is_processing": True, "n_prompt_tokens": 30},
        {"n_ctx": 100, "is_processing": False, "n_prompt_tokens": 90},
        {"n_ctx": 100, "is_processing": True},
    ]
    assert slots_usage(slots) == pytest.approx(0.1)
    assert slots_usage([]) is None
    assert slots_usage({"error": 1}) is None


@pytest.mark.parametrize(
    ("task", "typed", "options"),
    [
        (ModelTask.EMBED, {}, ["--embedding"]),
        (ModelTask.EMBED, {"llamacpp.pooling": "mean"}, ["--embedding", "--pooling", "mean"]),
        (ModelTask.RERANK, {}, ["--rerank"]),
    ],
)
def test_an_input_of_an_embedding_or_reranking_model_fits_one_batch(task, typed, options):
    argv = render(task=task, typed=typed, context_length=600, extra_args=("--threads", "1")).argv
    batch = ["--batch-size", "768", "--ubatch-size", "768", "--threads", "1"]
    assert list(argv[-len(options) - 6 :]) == [*options, *batch]


def test_a_stated_batch_is_the_last_word():
    argv = render(task=ModelTask.EMBED, extra_args=("--ubatch-size", "64")).argv
    assert [at for at, word in enumerate(argv) if word == "--ubatch-size"] == [len(argv) - 2]
