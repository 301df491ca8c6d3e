"""What may be added to SGLang's command line, however it is written."""

import attrs
import pytest

from capyctl.engines.arguments import check_extra_args, check_profile_args
from tests.engines_unit.test_arguments import PROFILE


def check(*tokens, declared=(), **security):
    profile = attrs.evolve(PROFILE, family="sglang", **security)
    check_extra_args("sglang", profile, tokens, declared=declared)


@pytest.mark.parametrize(
    "tokens",
    [
        ["--page-size", "16"],
        ["--enable-mixed-chunk"],
        ["--cuda-graph-max-bs", "8"],
        ["--speculative-algorithm", "EAGLE3", "--speculative-num-steps", "3"],
        ["--speculative-eagle-topk", "1", "--speculative-num-draft-tokens", "4"],
        ["--enable-linear-replayssm-spec"],
        ["--max-mamba-cache-size", "40"],
        ["--ple-offload-backend", "file"],
        ["--tool-call-parser", "qwen25"],
        ["--load-format=safetensors"],
    ],
)
def test_ordinary_options_pass(tokens):
    check(*tokens)


RESERVED = """
--host --port --api-key --admin-api-key --admin_api_key --model-path --model --served-model-name
--tp-size --tensor-parallel-size --tensor-parallel --dp-size --pp-size --nnodes --node-rank
--dist-init-addr --use-ray --enable-dp-attention --mem-fraction-static --mem --cpu-offload-gb
--enable-memory-saver --enable-weights-cpu-backup --enable-draft-weights-cpu-backup
--weight-cache-mode --delete-ckpt-after-loading --grpc-mode --smg-grpc-mode --grpc-port --sidecar
--ssl-keyfile --ssl-ca-certs --log-level --log-level-http --log-requests --crash-dump-folder
--enable-metrics --enable-cache-report --skip-server-warmup --disaggregation-mode
--enable-hierarchical-cache --hicache-ratio --enable-lmcache --enable-flexkv --quantize-and-serve
--modelopt-export-path --config --help --revision --device --base-gpu-id
"""


@pytest.mark.parametrize("option", RESERVED.split())
def test_reserved_options_are_refused(option):
    with pytest.raises(ValueError, match=r"capyctl itself|in full"):
        check(option)
    with pytest.raises(ValueError, match="capyctl itself"):
        check_profile_args("sglang", [option])


@pytest.mark.parametrize(
    ("option", "field"),
    [
        ("--dtype", "dtype"),
        ("--context-length", "context_length"),
        ("--max_running_requests", "max_concurrent_requests"),
        ("--disable-cuda-graph", "cuda_graphs"),
        ("--trust-remote-code", "trust_remote_code"),
        ("--max-total-tokens", "sglang.max_total_tokens"),
        ("--chunked-prefill", "sglang.chunked_prefill_size"),
        ("--tokenizer-worker-num", "sglang.tokenizer_workers"),
    ],
)
def test_typed_options_name_their_field(option, field):
    with pytest.raises(ValueError, match=f"use engine_config.{field} instead"):
        check(option, "1")


@pytest.mark.parametrize(
    "option",
    [
        "--custom-weight-loader",
        "--enable-custom-logit-processor",
        "--model-loader-extra-config",
        "--speculative-draft-model-path",
        "--download-dir",
        "--chat-template",
    ],
)
def test_what_names_files_or_code_needs_approval(option):
    with pytest.raises(ValueError, match="approved_options"):
        check(option, "/models/x")
    check(option, "/models/x", approved_options=(option,), approved_paths=("/models",))


def test_a_draft_model_lies_inside_the_approved_paths():
    security = {
        "approved_options": ("--speculative-draft-model-path",),
        "approved_paths": ("/drafts",),
    }
    check("--speculative-draft-model-path", "/drafts/d", **security)
    for path in ("someone/repo", "/elsewhere/d", "/drafts/../etc"):
        with pytest.raises(ValueError, match="path"):
            check("--speculative-draft-model-path", path, **security)


def test_a_parser_is_written_in_one_place():
    with pytest.raises(ValueError, match="repeats"):
        check("--reasoning-parser", "qwen3", declared={"sglang.reasoning_parser"})


def test_what_every_command_line_has_is_not_fixed_by_a_profile():
    with pytest.raises(ValueError, match="capyctl itself"):
        check_profile_args("sglang", ["--tokenizer-worker-num", "2"])
