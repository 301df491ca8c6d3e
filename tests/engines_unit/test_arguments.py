import attrs
import pytest

from capyctl.domain.devices import Profile
from capyctl.engines.arguments import (
    check_extra_args,
    check_profile_args,
    check_real_paths,
    paths_in,
)

PROFILE = Profile(name="vllm", family="vllm", revision=1, executable=("/x",), version="0.30.0")


def check(tokens, family="vllm", declared=(), accepted=True, **security):
    profile = attrs.evolve(PROFILE, family=family, **security)
    check_extra_args(family, profile, tokens, accepted=accepted, declared=declared)


@pytest.mark.parametrize(
    "args",
    [
        [],
        ["--seed", "7"],
        ["--enable-chunked-prefill"],
        ["--no-enable-prefix-caching"],
        ["--long-prefill-token-threshold", "-1"],
        ["--kv-offloading-size", "4", "--kv-offloading-backend", "native"],
        ["--tool-call-parser", "hermes", "--enable-auto-tool-choice"],
        ["--hf-overrides.rope_theta", "1000000"],
    ],
)
def test_ordinary_options_pass(args):
    check(args)


@pytest.mark.parametrize(
    ("option", "named"),
    [
        ("--port", "--port"),
        ("--host=0.0.0.0", "--host"),
        ("--api_key", "--api-key"),
        ("--served-model-name", "--served-model-name"),
        ("--no-enable-sleep-mode", "--enable-sleep-mode"),
        ("--enable_sleep_mode", "--enable-sleep-mode"),
        ("--tensor-parallel", "--tensor-parallel-size"),
        ("--gpu-mem", "--gpu-memory-utilization"),
        ("--config", "--config"),
        ("--disable-log-stats", "--disable-log-stats"),
        ("--kv-cache-memory", "--kv-cache-memory"),
        ("--middleware", "--middleware"),
        ("--speculative", "--speculative-config"),
    ],
)
def test_reserved_options_are_refused_however_they_are_written(option, named):
    with pytest.raises(ValueError, match=r"^engine_config\.extra_args: ") as caught:
        check([option])
    written = option.partition("=")[0]
    assert written in str(caught.value) or named in str(caught.value)
    assert "0.0.0.0" not in str(caught.value)


@pytest.mark.parametrize(
    ("option", "field"),
    [
        ("--dtype", "engine_config.dtype"),
        ("--max-model-len", "engine_config.context_length"),
        ("--max_num_seqs", "engine_config.max_concurrent_requests"),
        ("--no-enforce-eager", "engine_config.cuda_graphs"),
        ("--trust-remote", "engine_config.trust_remote_code"),
        ("--block-size", "engine_config.vllm.block_size_tokens"),
    ],
)
def test_typed_options_name_their_field(option, field):
    with pytest.raises(ValueError, match=f"use {field} instead"):
        check([option, "1"])


def test_a_parser_is_written_in_one_place():
    with pytest.raises(ValueError, match="repeats"):
        check(["--tool-call-parser", "hermes"], declared={"vllm.tool_call_parser"})


@pytest.mark.parametrize(
    "args",
    [
        ["-tp", "2"],
        ["-O3"],
        ["stray"],
        ["--seed", "7", "8"],
        ["--seed", "1", "--seed", "2"],
        ["--enable-prefix-caching", "--no-enable-prefix-caching"],
        ["--", "x"],
        ["--se ed", "1"],
    ],
)
def test_shapes_that_are_refused(args):
    with pytest.raises(ValueError, match=r"^engine_config\.extra_args: "):
        check(args)


def test_both_gates():
    with pytest.raises(ValueError, match="accept_extra_args"):
        check(["--seed", "7"], accepted=False)
    with pytest.raises(ValueError, match=r"security\.extra_args"):
        check(["--seed", "7"], extra_args_allowed=False)
    check([], accepted=False, extra_args_allowed=False)


def test_what_the_profile_fixes_is_not_given_again():
    with pytest.raises(ValueError, match="fixed by profile"):
        check(["--seed", "7"], args=("--seed=3",))


@pytest.mark.parametrize(
    "option", ["--compilation-config", "--download-dir", "--hf-config-path", "--worker-cls"]
)
def test_approval_is_by_name(option):
    with pytest.raises(ValueError, match=r"security\.approved_options"):
        check([option, "{}"])
    check([option, "/models/x"], approved_options=(option,), approved_paths=("/models",))


def test_paths_stay_inside_what_is_approved():
    security = {"approved_options": ("--tool-parser-plugin",), "approved_paths": ("/plugins",)}
    check(["--tool-parser-plugin", "/plugins/a.py"], **security)
    for path in ("/plugins/../etc/x", "/plugins/x/../a.py", "/pluginsx/a.py", "a.py", "/etc/a.py"):
        with pytest.raises(ValueError, match="path"):
            check(["--tool-parser-plugin", path], **security)


def test_speculation_takes_known_plain_keys():
    security = {"approved_options": ("--speculative-config",), "approved_paths": ("/drafts",)}
    good = '{"method":"eagle","model":"/drafts/d","num_speculative_tokens":3}'
    check(["--speculative-config", good], **security)
    for bad in ('{"config":"/x"}', '{"model":"/elsewhere"}', '{"method":["a"]}', "[]", "{"):
        with pytest.raises(ValueError, match="--speculative-config"):
            check(["--speculative-config", bad], **security)
    with pytest.raises(ValueError, match="one JSON text"):
        check(["--speculative-config.model", "/drafts/d"], **security)


LLAMA_RESERVED = """
--host --port --model --alias --ctx-size --n-gpu-layers --gpu-layers --kv-unified --no-kv-unified
--api-key --api-key-file --sleep-idle-seconds --models-dir --rpc --slot-save-path --cache-idle-slots
--no-cache-idle-slots --props --reuse-port --path --api-prefix --ssl-key-file --log-file --verbosity
--log-verbosity --model-url --hf-repo --hf-repo-draft --tools --agent --no-agent --mcp-servers-json
--device --split-mode --tensor-split --main-gpu --embedding --embeddings --rerank --reranking
--pooling --list-devices --version --gpt-oss-20b-default --webui --no-ui --no-mmproj --no-slots
--fim-qwen-7b-spec --context_shift
"""


@pytest.mark.parametrize("option", LLAMA_RESERVED.split())
def test_llama_cpps_reserved_options(option):
    with pytest.raises(ValueError, match=r"^engine_config\.extra_args: "):
        check([option], family="llamacpp")


@pytest.mark.parametrize(
    "args",
    [
        ["--flash-attn", "on"],
        ["--threads", "4"],
        ["--no-warmup"],
        ["--control-vector-layer-range", "1", "4"],
        ["--chat-template-kwargs", "{}"],
        ["--spec-draft-n-max", "8"],
        ["--n-cpu-moe", "4"],
        # A name that begins like a reserved one is another option here: exact names only.
        ["--modelling"],
        ["--p"],
    ],
)
def test_llama_cpps_ordinary_options(args):
    check(args, family="llamacpp")


def test_llama_cpp_takes_no_inline_values():
    with pytest.raises(ValueError, match="two tokens"):
        check(["--threads=4"], family="llamacpp")


def test_aliases_are_one_option():
    with pytest.raises(ValueError, match="more than once"):
        check(["--temp", "1", "--temperature", "1"], family="llamacpp")


def test_draft_models_need_approval_under_either_name():
    security = {"approved_options": ("--model-draft",), "approved_paths": ("/drafts",)}
    check(["--spec-draft-model", "/drafts/d.gguf"], family="llamacpp", **security)
    with pytest.raises(ValueError, match="approved_options"):
        check(["--spec-draft-model", "/drafts/d.gguf"], family="llamacpp")


def test_lists_of_scaled_files():
    security = {"approved_options": ("--lora-scaled",), "approved_paths": ("/loras",)}
    check(["--lora-scaled", "/loras/a:0.5,/loras/b:1"], family="llamacpp", **security)
    with pytest.raises(ValueError, match="approved_paths"):
        check(["--lora-scaled", "/loras/a:0.5,/etc/b:1"], family="llamacpp", **security)


def test_host_fixed_arguments():
    check_profile_args("vllm", ["--max-num-seqs", "8", "--compilation-config", "{}"])
    check_profile_args("llamacpp", ["--threads", "4"])
    for family, args in (
        ("vllm", ["--port", "1"]),
        ("vllm", ["--gpu-mem", "1"]),
        ("llamacpp", ["--ctx-size", "1"]),
        ("llamacpp", ["--no-slots"]),
    ):
        with pytest.raises(ValueError, match=r"^args: "):
            check_profile_args(family, args)


def test_links_out_of_the_approved_paths_are_found(tmp_path):
    inside, outside = tmp_path / "in", tmp_path / "out"
    inside.mkdir()
    outside.mkdir()
    (inside / "a.py").write_text("")
    (outside / "b.py").write_text("")
    (inside / "link.py").symlink_to(outside / "b.py")
    approved = [str(inside)]
    named = paths_in("vllm", ["--tool-parser-plugin", str(inside / "a.py"), "--seed", "1"])
    assert named == [str(inside / "a.py")]
    check_real_paths(named, approved)
    with pytest.raises(ValueError, match="link"):
        check_real_paths([str(inside / "link.py")], approved)
    draft = '{"model":"/drafts/d","method":"eagle"}'
    assert paths_in("vllm", ["--speculative-config", draft]) == ["/drafts/d"]
