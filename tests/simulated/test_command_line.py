import pytest

from capyctl.simulated.command_line import BadUsage, human_number, parse_llama, parse_vllm


def test_a_vllm_line():
    found = parse_vllm(
        [
            "/models/m", "--host", "127.0.0.1", "--port=8001", "--served-model-name", "a", "b",
            "--kv_cache_memory_bytes", "4G", "--enable-sleep-mode", "--no-enable-prefix-caching",
            "-tp", "2", "--max-num-b", "4096", "--hf-overrides", "-1",
        ]
    )  # fmt: skip

    assert found.positional == ("/models/m",)
    assert found.values["served-model-name"] == ("a", "b")
    assert found.number("kv-cache-memory-bytes", 0) == 4 << 30
    assert found.number("max-num-batched-tokens", 0) == 4_096
    assert found.text("port") == "8001"
    assert found.has("enable-sleep-mode")
    assert found.text("tensor-parallel-size") == "2"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--frobnicate"], "unrecognized arguments: --frobnicate"),
        (["-x"], "unrecognized arguments: -x"),
        (["--max-num"], "ambiguous option: --max-num could match --max-num-batched-tokens"),
        (["--port"], "--port: expected one argument"),
        (["--port", "--host", "x"], "--port: expected one argument"),
        (["--served-model-name", "--port", "1"], "expected at least one argument"),
        (["--enable-sleep-mode=yes"], "ignored explicit argument 'yes'"),
    ],
)
def test_vllm_lines_that_are_refused(arguments, said):
    with pytest.raises(BadUsage, match=said):
        parse_vllm(arguments)


def test_a_llama_line():
    found = parse_llama(
        ["-m", "x.gguf", "--ctx_size", "8192", "-np", "2", "-ngl", "all", "--no-kv-unified",
         "--flash-attn", "on", "--metrics", "--cors-origins", "localhost"]
    )  # fmt: skip

    assert (found.text("model"), found.number("ctx-size", 0)) == ("x.gguf", 8_192)
    assert (found.text("gpu-layers"), found.number("parallel", 0)) == ("all", 2)
    assert found.has("metrics")
    assert found.has("no-kv-unified")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--ctx-size=1"], "invalid argument: --ctx-size=1"),
        (["x.gguf"], "invalid argument: x.gguf"),
        (["model", "x"], "invalid argument: model"),
        (["--ctx"], "invalid argument: --ctx"),
        (["--port"], "expected value for argument"),
    ],
)
def test_llama_lines_that_are_refused(arguments, said):
    with pytest.raises(BadUsage, match=said):
        parse_llama(arguments)


@pytest.mark.parametrize(
    ("text", "number"), [("25", 25), ("25.6k", 25_600), ("1G", 1 << 30), ("2m", 2_000_000)]
)
def test_numbers_for_people(text, number):
    assert human_number(text) == number


@pytest.mark.parametrize("text", ["", "x", "1.5", "G"])
def test_numbers_that_are_none(text):
    with pytest.raises(ValueError):
        human_number(text)


@pytest.mark.parametrize("text", ["0", "1.5", "x"])
def test_shares_out_of_bounds(text):
    with pytest.raises(BadUsage, match="gpu-memory-utilization"):
        parse_vllm(["--gpu-memory-utilization", text]).ratio("gpu-memory-utilization", 0.92)
