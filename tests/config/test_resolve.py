"""From documents to charges and engine settings on a machine."""

from __future__ import annotations

import attrs
import pytest

from capyctl.config.resolve import resolve
from capyctl.domain.checkpoints import (
    AttentionShape,
    CheckpointFacts,
    DraftFacts,
    TemplateMarks,
    ToolStyle,
)
from capyctl.domain.errors import Refused
from capyctl.domain.specs import Residency
from capyctl.domain.units import GIB
from tests.config.documents import MINIMAL, complete, profile
from tests.ledger.shapes import QWEN3_4B, discrete, unified, without_gpu

DIGEST = "sha256:" + "0" * 64
LLAMACPP = {**MINIMAL, "engine": "llamacpp"}


def facts(weights=4 * GIB, **changes):
    changes.setdefault("attention", QWEN3_4B)
    return CheckpointFacts(digest=DIGEST, weights_bytes=weights, format="safetensors", **changes)


def gguf(**changes):
    return facts(weights_file="q4.gguf", **changes)


def resolved(document, machine=None, measured=None, *, family="vllm", **profile_changes):
    spec = complete(document, profiles=(profile(family, **profile_changes),))
    return resolve(
        spec,
        profile=profile(family, **profile_changes),
        machine=machine or discrete(),
        facts=measured,
    )


def refusal(document, machine=None, measured=None, **changes) -> Refused:
    with pytest.raises(Refused) as refused:
        resolved(document, machine, measured, **changes)
    return refused.value


def test_before_measuring_the_figures_are_provisional():
    found = resolved(MINIMAL)

    assert found.provisional
    assert found.weights_bytes is None
    assert found.residency is Residency.DEEP
    assert found.windows.initialize_s == 900


def test_after_measuring_they_are_exact():
    found = resolved(MINIMAL, measured=facts())

    (candidate,) = found.candidates
    assert (candidate.host, candidate.gpu, candidate.gpu_uuid) == ("box", "gpu0", "GPU-0")
    assert candidate.charges.ready["gpu0"] == 4_724_464_026 + 4 * GIB + 1_342_177_280
    assert found.residency is Residency.HOST_BACKED
    assert not found.provisional
    engine = found.engine
    assert engine.parks
    assert engine.model_path == "/models/Qwen3-4B"
    assert engine.served_name == "my-model"
    assert engine.profile_revision == 3
    assert engine.executable == ("/opt/vllm",)
    assert engine.context_length == 29_104
    assert engine.typed == {"vllm.safetensors_load_strategy": "eager"}


def test_typed_fields_have_their_names_in_the_document():
    settings = {
        "dtype": "bfloat16",
        "cuda_graphs": False,
        "context_length": 2048,
        "max_concurrent_requests": 7,
        "memory": {"kv_cache": "2GiB"},
        "vllm": {"block_size_tokens": 32, "reasoning_parser": "none"},
    }

    engine = resolved({**MINIMAL, "engine_config": settings}, measured=facts()).engine

    assert engine.typed == {
        "dtype": "bfloat16",
        "cuda_graphs": False,
        "vllm.block_size_tokens": 32,
        "vllm.safetensors_load_strategy": "eager",
    }
    assert (engine.context_length, engine.concurrency) == (2048, 7)
    assert engine.kv_cache_bytes == 2 * GIB


def test_profile_and_document_variables_meet_and_the_document_wins():
    settings = {"env": {"a": "doc", "B": "doc"}}

    engine = resolved({**MINIMAL, "engine_config": settings}, env={"A": "host", "C": "host"}).engine

    assert engine.env == {"A": "doc", "B": "doc", "C": "host"}


def test_an_executable_s_own_arguments_stay_apart():
    engine = resolved(MINIMAL, args=("--seed", "1"), cuda_home="/cuda").engine

    assert engine.profile_args == ("--seed", "1")
    assert engine.cuda_home == "/cuda"


@pytest.mark.parametrize(
    ("document", "path"),
    [
        (LLAMACPP, "/models/Qwen3-4B/q4.gguf"),
        ({**LLAMACPP, "model": "/m/x.gguf"}, "/m/x.gguf"),
        (
            {**LLAMACPP, "engine_config": {"llamacpp": {"gguf_file": "sub/q8.gguf"}}},
            "/models/Qwen3-4B/sub/q8.gguf",
        ),
    ],
)
def test_llamacpp_loads_a_file(document, path):
    engine = resolved(document, measured=gguf(), family="llamacpp").engine

    assert engine.model_path == path
    assert engine.typed["llamacpp.n_gpu_layers"] == "all"
    assert engine.typed["kv_cache_dtype"] == "f16"
    assert not engine.parks


def test_llamacpp_on_a_machine_without_a_gpu_has_one_place():
    (candidate,) = resolved(LLAMACPP, without_gpu(), gguf(), family="llamacpp").candidates

    assert candidate.gpu is None
    assert candidate.charges.ready.keys() == {"system"}


def test_a_projector_is_found_beside_the_model():
    settings = {
        "memory": {"kv_cache": "1GiB"},
        "llamacpp": {"mmproj_file": "mmproj.gguf"},
    }

    engine = resolved(
        {**LLAMACPP, "engine_config": settings}, measured=gguf(), family="llamacpp"
    ).engine

    assert engine.typed["llamacpp.mmproj_file"] == "/models/Qwen3-4B/mmproj.gguf"


@pytest.mark.parametrize(
    "args",
    [
        ["--override-tensor", "x"],
        ["--cpu-moe"],
        ["--n-cpu-moe", "3"],
        ["--no-kv-offload"],
        ["--mlock"],
        ["--load-mode", "mlock"],
        ["--spec-type", "draft-mtp"],
        ["--model-draft", "/x.gguf"],
    ],
)
def test_arguments_that_make_the_cache_uncountable(args):
    settings = {"accept_extra_args": True, "extra_args": args}

    refused = refusal({**LLAMACPP, "engine_config": settings}, measured=gguf(), family="llamacpp")

    assert refused.code == "checkpoint_unusable"
    assert args[0] in refused.message


def test_flash_attention_leaves_values_unpadded():
    uneven = AttentionShape(layers_kv=((8, 128, 128), (2, 128, 128)), context_length=4096)
    measured = gguf(attention=uneven)
    settings = {"accept_extra_args": True, "extra_args": ["--flash-attn", "on"]}

    padded = resolved(LLAMACPP, measured=measured, family="llamacpp").engine
    exact = resolved(
        {**LLAMACPP, "engine_config": settings}, measured=measured, family="llamacpp"
    ).engine

    assert padded.kv_cache_bytes - exact.kv_cache_bytes == 4 * 4096 * 2 * (6 * 128)


# Refusals


@pytest.mark.parametrize(
    ("document", "machine", "measured", "family", "code", "words"),
    [
        (
            {**MINIMAL, "residency": "host_backed"},
            unified(),
            None,
            "vllm",
            "unsupported_capability",
            "host_backed_unavailable at `residency`",
        ),
        (
            {**MINIMAL, "residency": "host_backed"},
            discrete(ram=32 * GIB),
            facts(16 * GIB),
            "vllm",
            "unsupported_capability",
            "28.0 GiB of host RAM, the limit is 8.0 GiB",
        ),
        (
            MINIMAL,
            discrete(),
            facts(model_type="gpt_oss"),
            "vllm",
            "unsupported_capability",
            "capability_missing:deep_park",
        ),
        (
            {**MINIMAL, "residency": "deep"},
            without_gpu(),
            None,
            "vllm",
            "unsupported_capability",
            "capability_missing",
        ),
        (
            {**MINIMAL, "engine": "sglang", "engine_config": {"quantization": "modelopt_fp4"}},
            discrete(),
            None,
            "sglang",
            "unsupported_capability",
            "capability_missing:deep_park",
        ),
        (
            {**MINIMAL, "devices": [{"id": "gpu4"}]},
            discrete(),
            None,
            "vllm",
            "invalid_config",
            "`devices[0].id`",
        ),
        (
            {**MINIMAL, "engine_config": {"memory": {"request": "4GiB"}}},
            discrete(),
            facts(),
            "vllm",
            "checkpoint_unusable",
            "4.0 GiB leave no cache beside 4.4 GiB",
        ),
        (LLAMACPP, discrete(), facts(), "llamacpp", "checkpoint_unusable", "gguf"),
        (
            MINIMAL,
            discrete(),
            facts(0, attention=None, attention_refused="no weight files"),
            "vllm",
            "checkpoint_unusable",
            "no weight files",
        ),
    ],
)
def test_what_a_machine_cannot_do_is_refused(document, machine, measured, family, code, words):
    refused = refusal(document, machine, measured, family=family)

    assert refused.code == code
    assert words in refused.message


def allocations(**domains):
    held = [{"domain": name, "bytes": size} for name, size in domains.items()]
    phases = ("cold", "ready", "parking", "parked", "wake")
    return {phase: {"allocations": held} for phase in phases}


@pytest.mark.parametrize(
    ("resources", "words"),
    [
        (allocations(gpu0="9GiB"), "missing_system_allocation"),
        (allocations(unified="9GiB"), "memory domains gpu0, system"),
    ],
)
def test_resources_of_another_machine_are_refused(resources, words):
    refused = refusal({**MINIMAL, "resources": resources})

    assert refused.details == {"path": "resources.cold.allocations"}
    assert words in refused.message


def test_resources_on_the_right_machine_are_charged():
    document = {**MINIMAL, "resources": allocations(gpu1="9GiB", system="2GiB")}

    (candidate,) = resolved(document, discrete(24 * GIB, 24 * GIB)).candidates

    assert candidate.gpu == "gpu1"
    assert candidate.charges.parked == {"gpu1": 9 * GIB, "system": 2 * GIB}


def test_a_restarting_model_may_state_two_sizes():
    document = {**MINIMAL, "resources": {"gpu": "11GiB", "ram": "2GiB"}}

    found = resolved(document, measured=facts())

    assert found.residency is Residency.RESTART_ONLY
    assert found.windows.wake_s is None
    assert found.candidates[0].charges.cold == {"gpu0": 11 * GIB, "system": 2 * GIB}


@pytest.mark.parametrize(
    ("source", "machine", "stated", "kv"),
    [
        ("document", discrete(), 5 * GIB, 5 * GIB),
        ("document", discrete(), None, 4 * GIB),
        ("document", unified(), None, 16 * GIB),
        ("engines_file", discrete(), 5 * GIB, 4 * GIB),
        ("engines_file", unified(), None, 4 * GIB),
    ],
)
def test_a_host_may_have_its_own_default_for_its_local_engines(source, machine, stated, kv):
    found = resolve(
        complete(MINIMAL),
        profile=profile("vllm", source=source),
        machine=machine,
        facts=facts(),
        kv_default_bytes=stated,
    )

    assert found.engine.kv_cache_bytes == kv


# SGLang


def test_sglang_is_told_its_pools():
    document = {**MINIMAL, "engine": "sglang"}

    engine = resolved(document, measured=facts(), family="sglang").engine

    assert engine.typed == {
        "sglang.max_total_tokens": 4 * GIB // 147_456,
        "sglang.static_pool_bytes": 9 * GIB,
    }


def test_weights_that_cannot_be_parked_may_restart():
    document = {
        **MINIMAL,
        "engine": "sglang",
        "engine_config": {"quantization": "modelopt_fp4"},
    }

    assert resolved({**document, "residency": "restart_only"}, family="sglang")
    assert resolved(document, family="sglang", deep_park=False)


# Parsers

JSON = TemplateMarks(tools=ToolStyle.JSON, thinks=True)
FUNCTION = TemplateMarks(tools=ToolStyle.FUNCTION, thinks=True)
BARE = TemplateMarks()


def parsers(settings, model_type="qwen3", family="vllm", args=(), template=JSON, measured=True):
    document = {**MINIMAL, "engine": family, "engine_config": settings}
    found = resolve(
        complete(document, profiles=(profile(family, args=args),)),
        profile=profile(family, args=args),
        machine=discrete(),
        facts=facts(model_type=model_type, template=template) if measured else None,
    )
    typed = found.engine.typed
    names = [typed.get(f"{family}.{kind}_parser") for kind in ("tool_call", "reasoning")]
    tool, reasoning = found.parsers
    sources = [tool.source] if tool.source == reasoning.source else [tool.source, reasoning.source]
    return (*names, *sources)


TOOLS = {"accept_extra_args": True, "extra_args": ["--tool-call-parser", "x"]}


@pytest.mark.parametrize(
    ("asked", "expected"),
    [
        ({"settings": {}}, ("hermes", "qwen3", "model_family")),
        (
            {"settings": {}, "model_type": "qwen3_5_moe", "template": FUNCTION},
            ("qwen3_coder", "qwen3", "model_family"),
        ),
        (
            {"settings": {}, "template": FUNCTION, "family": "sglang"},
            ("qwen3_coder", "qwen3", "model_family"),
        ),
        ({"settings": {}, "model_type": "qwen3_5"}, ("hermes", "qwen3", "model_family")),
        ({"settings": {}, "family": "sglang"}, ("qwen25", "qwen3", "model_family")),
        ({"settings": {}, "template": BARE}, (None, None, "unsupported")),
        (
            {"settings": {}, "template": TemplateMarks(thinks=True)},
            (None, "qwen3", "unsupported", "model_family"),
        ),
        (
            {"settings": {}, "template": TemplateMarks(tools=ToolStyle.JSON)},
            ("hermes", None, "model_family", "unsupported"),
        ),
        ({"settings": {"task": "embed"}}, (None, None, "unsupported")),
        ({"settings": {}, "template": None}, (None, None, "unknown_family")),
        ({"settings": {}, "model_type": "llama"}, (None, None, "unknown_family")),
        ({"settings": {}, "measured": False}, (None, None, "on_host")),
        (
            {"settings": {"vllm": {"tool_call_parser": "none"}}},
            (None, "qwen3", "off", "model_family"),
        ),
        (
            {"settings": {"vllm": {"tool_call_parser": "llama"}}},
            ("llama", "qwen3", "declared", "model_family"),
        ),
        ({"settings": TOOLS}, (None, "qwen3", "extra_args", "model_family")),
        (
            {"settings": {}, "args": ("--tool_call_parser=x",)},
            (None, "qwen3", "host_fixed", "model_family"),
        ),
    ],
)
def test_parsers_follow_the_model_unless_they_are_stated(asked, expected):
    assert parsers(**asked) == expected


def test_a_parser_stated_twice_is_refused():
    with pytest.raises(Refused) as refused:
        parsers({**TOOLS, "vllm": {"tool_call_parser": "none"}})

    assert refused.value.details == {"path": "engine_config.vllm.tool_call_parser"}


# Drafts

SPECULATIVE = '{"method":"draft_model","num_speculative_tokens":3}'


def drafting(family="vllm", speculative=SPECULATIVE, **document):
    options = {
        "vllm": ["--speculative-config", speculative],
        "sglang": ["--speculative-algorithm", speculative],
    }
    return {
        **MINIMAL,
        "engine": family,
        "model": {"path": "m", "draft": "small"},
        "engine_config": {"accept_extra_args": True, "extra_args": options[family]},
        **document,
    }


def with_draft(**changes):
    made = DraftFacts(
        path="/models/small",
        digest=DIGEST,
        weights_bytes=GIB,
        attention=AttentionShape(layers_kv=((8, 128, 128),) * 4, context_length=40960),
    )
    return facts(draft=attrs.evolve(made, **changes))


def test_a_draft_counts_as_weights_and_keeps_a_cache_of_its_own():
    found = resolved(drafting(residency="deep"), measured=with_draft(), version="0.32.0")

    plain = resolved({**MINIMAL, "residency": "deep"}, measured=facts(5 * GIB))
    assert found.engine.draft_path == "/models/small"
    assert found.candidates[0].charges.ready == plain.candidates[0].charges.ready
    assert found.engine.context_length == (4 * GIB // (16 * 4096 * 40) - 1) * 16


def test_a_deep_park_of_vllm_leaves_the_draft_where_it_is():
    found = resolved(drafting(residency="deep"), measured=with_draft(), version="0.32.0")

    assert found.engine.kept_bytes == GIB
    assert found.candidates[0].charges.parked["gpu0"] == 2 * GIB


def test_a_copy_in_host_memory_keeps_nothing_on_the_card():
    found = resolved(drafting(residency="host_backed"), measured=with_draft())

    assert found.engine.kept_bytes == 0
    assert found.candidates[0].charges.parked["gpu0"] == GIB


def test_a_speculative_sglang_keeps_all_its_weights():
    found = resolved(drafting("sglang", "EAGLE"), measured=with_draft(), family="sglang")

    assert found.residency is Residency.DEEP
    assert found.engine.kept_bytes == 5 * GIB
    assert found.candidates[0].charges.parked["gpu0"] == 6 * GIB


def test_a_draft_of_unknown_layout_leaves_4096_tokens():
    measured = with_draft(attention=None, attention_refused="it is odd")

    found = resolved(drafting(), measured=measured)

    assert found.engine.context_length == 4096
    assert "it is odd" in found.notes[0]


@pytest.mark.parametrize(
    ("version", "speculative", "words"),
    [
        ("0.31.0", SPECULATIVE, "0.32 or newer"),
        ("0.32.0", '{"method":"eagle3","num_speculative_tokens":3}', "EAGLE-3"),
    ],
)
def test_what_a_deep_park_would_harm_is_refused(version, speculative, words):
    document = drafting(speculative=speculative, residency="deep")

    refused = refusal(document, measured=with_draft(), version=version)

    assert refused.code == "unsupported_capability"
    assert words in refused.message
    assert resolved({**document, "residency": "host_backed"}, measured=with_draft())


@pytest.mark.parametrize("version", ["0.33.1", "1.0", "my build"])
def test_newer_releases_and_unknown_ones_are_trusted(version):
    assert resolved(drafting(residency="deep"), measured=with_draft(), version=version)


def test_drafting_from_what_was_said_keeps_nothing():
    speculative = '{"method":"ngram","num_speculative_tokens":3}'
    document = {**drafting(speculative=speculative, residency="deep"), "model": "m"}

    found = resolved(document, measured=facts(), version="0.30.0")

    assert found.engine.kept_bytes == 0


def test_weights_that_say_they_are_of_modelopt_cannot_be_parked():
    document = {**MINIMAL, "engine": "sglang"}

    refused = refusal(document, measured=facts(quantization="modelopt"), family="sglang")

    assert "capability_missing:deep_park" in refused.message


# Devices of one's own

LONG = {
    phase: {
        "allocations": [
            {"domain": "gpu0", "bytes": "9GiB"},
            {"domain": "system", "bytes": "1GiB"},
        ]
    }
    for phase in ("cold", "ready", "parking", "parked", "wake")
}


@pytest.mark.parametrize(
    ("document", "exclusive"),
    [
        ({}, False),
        ({"devices": [{"sharing": "shared"}]}, False),
        ({"devices": [{"sharing": "exclusive"}]}, True),
        ({"devices": [{"id": "gpu0", "sharing": "exclusive"}]}, True),
        ({"resources": LONG}, False),
        (
            {
                "resources": {
                    **LONG,
                    "ready": {**LONG["ready"], "devices": [{"sharing": "exclusive"}]},
                }
            },
            True,
        ),
    ],
)
def test_a_model_may_want_its_device_alone(document, exclusive):
    found = resolved({**MINIMAL, **document}, measured=facts())

    assert [one.exclusive for one in found.candidates] == [exclusive]


def test_where_there_is_no_gpu_there_is_none_to_have_alone():
    document = {**MINIMAL, "residency": "restart_only", "devices": [{"sharing": "exclusive"}]}

    refused = refusal(document, without_gpu(), measured=facts())

    assert refused.details == {"path": "devices[0].sharing"}
