"""Exact figures of every sizing rule, and properties that hold for any figures."""

from __future__ import annotations

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from capyctl.domain.checkpoints import AttentionShape
from capyctl.domain.ids import DomainName, GpuId
from capyctl.domain.specs import Phase, PhaseCharges, Residency
from capyctl.domain.units import GIB
from capyctl.ledger.sizing import size
from capyctl.ledger.sizing_request import ShortResources, Sized, SizingRequest, Unresolvable
from tests.ledger.shapes import (
    QWEN3_4B,
    QWEN3_4B_GGUF_BYTES,
    QWEN3_4B_PER_TOKEN,
    QWEN3_NEXT,
    discrete,
    unified,
    without_gpu,
)

C = 1_342_177_280


def request(family="vllm", weights=4 * GIB, **changes):
    changes.setdefault("request_deadline_s", 1800)
    return SizingRequest(family=family, weights_bytes=weights, **changes)


def sized(asked, machine) -> Sized:
    found = size(asked, machine)
    assert isinstance(found, Sized), found
    return found


def refused(asked, machine) -> Unresolvable:
    found = size(asked, machine)
    assert isinstance(found, Unresolvable), found
    return found


def charges(asked, machine) -> PhaseCharges:
    (place,) = sized(asked, machine).places
    return place.charges


# llama.cpp


def test_the_published_figure_of_qwen3_4b():
    """8 921 023 708 B on the card, within the rounding of weights to whole tensors."""
    asked = request(
        "llamacpp", QWEN3_4B_GGUF_BYTES, attention=QWEN3_4B, context_length=8192, concurrency=4
    )

    found = sized(asked, discrete())

    assert found.kv_cache_bytes == 4_831_838_208
    ready = found.places[0].charges.ready
    assert ready == {"gpu0": 8_921_023_770, "system": 4 * GIB}
    assert ready["gpu0"] == pytest.approx(8_921_023_708, abs=64)
    assert found.places[0].charges.cold == ready
    assert found.places[0].charges.parked == {}
    assert found.residency is Residency.RESTART_ONLY
    assert found.windows.wake_s is None


def test_llamacpp_takes_the_smaller_of_trained_and_4096_tokens():
    short = attrs.evolve(QWEN3_4B, context_length=2048)

    assert sized(request("llamacpp", attention=QWEN3_4B), discrete()).context_length == 4096
    assert sized(request("llamacpp", attention=short), discrete()).context_length == 2048


def test_llamacpp_runs_on_a_machine_without_a_gpu():
    asked = request("llamacpp", 10_000, attention=QWEN3_4B, context_length=256, concurrency=1)

    held = 11_000 + 256 * QWEN3_4B_PER_TOKEN

    assert charges(asked, without_gpu()).ready == {"system": held}
    assert charges(asked, without_gpu()).cold == {"system": held}
    assert sized(asked, without_gpu()).places[0].gpu is None


def test_llamacpp_on_unified_memory_has_the_unified_margin():
    asked = request("llamacpp", 4 * GIB, attention=QWEN3_4B, context_length=300, concurrency=2)

    kv = 2 * 512 * QWEN3_4B_PER_TOKEN
    assert charges(asked, unified()).ready == {"unified": 4 * GIB + kv + 8 * GIB + C}


@pytest.mark.parametrize(
    ("cache_type", "per_32"),
    [("f32", 128), ("f16", 64), ("q8_0", 34), ("q4_0", 18), ("iq4_nl", 18), ("q4_1", 20)],
)
def test_cache_types_have_their_block_sizes(cache_type, per_32):
    asked = request(
        "llamacpp",
        attention=QWEN3_4B,
        context_length=256,
        concurrency=1,
        kv_cache_dtype=cache_type,
    )

    values = 36 * 8 * 256
    assert sized(asked, discrete()).kv_cache_bytes == 256 * values * per_32 // 32


def test_values_are_padded_to_the_widest_layer_without_flash_attention():
    uneven = AttentionShape(layers_kv=((8, 128, 128), (2, 128, 128)), context_length=None)
    asked = request("llamacpp", attention=uneven, context_length=256, concurrency=1)

    padded = 2 * 256 * (8 * 128 + 2 * 128 + 2 * 8 * 128)
    assert sized(asked, discrete()).kv_cache_bytes == padded
    exact = attrs.evolve(asked, pads_values=False)
    assert sized(exact, discrete()).kv_cache_bytes == 2 * 256 * 2 * (8 * 128 + 2 * 128)


def test_a_cache_that_cannot_be_counted_must_be_stated():
    asked = request("llamacpp", attention_refused="sliding-window attention")

    found = refused(asked, discrete())

    assert (found.token, found.path) == ("checkpoint_unusable", "engine_config.memory.kv_cache")
    assert "sliding-window" in found.detail
    stated = attrs.evolve(asked, kv_cache_bytes=GIB)
    assert charges(stated, discrete()).ready["gpu0"] == 4_724_464_026 + GIB + C


@pytest.mark.parametrize(
    ("changes", "path"),
    [
        ({"kv_cache_bytes": GIB}, "engine_config.memory.kv_cache"),
        ({"request_bytes": 5 * GIB}, "engine_config.memory.request"),
        ({"resources": ShortResources(gpu_bytes=6 * GIB, ram_bytes=GIB)}, "resources.ready"),
        ({"context_length": 40961}, "engine_config.context_length"),
    ],
)
def test_declared_memory_holds_what_llama_server_will_allocate(changes, path):
    asked = request("llamacpp", attention=QWEN3_4B, **{"context_length": 4096, **changes})

    found = refused(asked, discrete())

    assert (found.token, found.path) == ("checkpoint_unusable", path)


# vLLM


def test_vllm_on_a_card():
    found = sized(request(weights=4 * GIB), discrete())

    asked = 4_724_464_026 + 4 * GIB
    (place,) = found.places
    assert found.residency is Residency.HOST_BACKED
    assert found.request_bytes == asked
    assert found.kv_cache_bytes == 4 * GIB
    copy = 4 * GIB + 6 * GIB
    assert place.charges.ready == {"gpu0": asked + C, "system": copy}
    assert place.charges.cold == {"gpu0": asked + C, "system": 15_461_882_266}  # 3.6 W
    assert place.charges.parked == {"gpu0": GIB, "system": copy}
    assert place.charges.wake == place.charges.parking == place.charges.ready
    assert found.loader == "eager"
    assert found.concurrency == 32


def test_the_default_cache_is_a_quarter_of_a_small_card():
    found = sized(request(weights=GIB), discrete(8 * GIB))

    assert found.kv_cache_bytes == 7 * GIB // 4


def test_several_engines_fit_one_card():
    """No floor of a share of the card: the cache is given in bytes."""
    small = request(weights=GIB, kv_cache_bytes=GIB)

    assert sized(small, discrete(80 * GIB)).request_bytes == 1_181_116_007 + GIB


def test_vllm_deep_keeps_no_copy_of_the_weights():
    asked = request(residency=Residency.DEEP)

    assert charges(asked, discrete()).ready["system"] == 4 * GIB
    assert charges(asked, discrete()).parked == {"gpu0": GIB, "system": 4 * GIB}
    assert charges(asked, discrete()).cold["system"] == 15_461_882_266


def test_a_loader_that_is_not_rendered_counts_as_the_smaller_factor():
    asked = request(residency=Residency.RESTART_ONLY)

    assert sized(asked, discrete()).loader is None
    assert charges(asked, discrete()).cold["system"] == 9 * GIB  # 2.25 W
    assert charges(asked, discrete()).parked == {}


def test_vllm_on_unified_memory():
    found = sized(request(weights=32 * GIB), unified())

    margin = 9_448_928_052  # 0.15 W + 4 GiB, above 8 GiB
    asked = 32 * GIB + 4 * GIB + margin
    assert found.residency is Residency.DEEP
    assert found.loader == "lazy"
    assert found.places[0].charges.ready == {"unified": asked + C}
    assert found.places[0].charges.cold == {"unified": 72 * GIB + margin + C}
    assert found.places[0].charges.parked == {"unified": 2 * GIB}


@pytest.mark.parametrize(("captures", "graphs"), [(True, C), (False, 0)])
def test_a_small_model_starts_with_its_request_and_the_graphs(captures, graphs):
    asked = request(weights=GIB, captures_graphs=captures)

    ready = charges(asked, unified()).ready["unified"]
    assert charges(asked, unified()).cold["unified"] == ready + graphs


def test_a_request_of_48_gib_is_charged_49_and_a_quarter():
    asked = request(weights=16 * GIB, request_bytes=48 * GIB)

    found = sized(asked, unified())

    assert found.places[0].charges.ready == {"unified": 49 * GIB + GIB // 4}
    assert found.kv_cache_bytes == 48 * GIB - 16 * GIB - 8 * GIB


def test_a_declared_startup_replaces_the_placeholder():
    asked = request(startup_bytes=40 * GIB, weights=16 * GIB)

    assert charges(asked, unified()).cold == {"unified": 40 * GIB + C}


def test_a_request_that_leaves_no_cache_is_refused_with_figures():
    found = refused(request(weights=10 * GIB, request_bytes=11 * GIB), discrete())

    assert (found.token, found.path) == ("checkpoint_unusable", "engine_config.memory.request")
    assert found.detail == "11.0 GiB leave no cache beside 11.0 GiB of weights and margin"


def test_both_stated_are_not_derived_again():
    asked = request(weights=40 * GIB, request_bytes=12 * GIB, kv_cache_bytes=2 * GIB)

    found = sized(asked, discrete())

    assert (found.request_bytes, found.kv_cache_bytes) == (12 * GIB, 2 * GIB)


@pytest.mark.parametrize(
    ("kv", "tokens"),
    [(26_768 * QWEN3_4B_PER_TOKEN, 26_752), (32_768 * QWEN3_4B_PER_TOKEN + 1, 32_752)],
)
def test_vllm_keeps_one_block_back(kv, tokens):
    asked = request(attention=QWEN3_4B, kv_cache_bytes=kv)

    assert sized(asked, discrete()).context_length == tokens


def test_the_context_is_never_longer_than_the_trained_one():
    asked = request(attention=QWEN3_4B, kv_cache_bytes=16 * GIB)

    assert sized(asked, discrete()).context_length == 40960


def test_a_declared_context_that_does_not_fit_is_a_note():
    asked = request(attention=QWEN3_4B, kv_cache_bytes=GIB, context_length=40960)

    found = sized(asked, discrete())

    assert found.context_length == 40960
    assert found.notes == ("context_length 40960 does not fit: the cache holds 7264 tokens",)


def test_an_unknown_layout_is_left_to_the_engine():
    found = sized(request(attention_refused="MLA"), discrete())

    assert found.context_length is None
    assert found.notes == ("the engine sizes its own cache: MLA",)


def test_a_cache_without_room_for_a_block_is_refused():
    found = refused(request(attention=QWEN3_4B, kv_cache_bytes=1), discrete())

    assert found.path == "engine_config.memory.kv_cache"


# SGLang and TensorFold


def test_sglang_sizes_its_pools_on_a_card():
    kv = 63_935 * QWEN3_4B_PER_TOKEN + 5
    asked = request("sglang", attention=QWEN3_4B, kv_cache_bytes=kv)

    found = sized(asked, discrete(48 * GIB))

    assert found.pool_tokens == 63_935
    assert attrs.evolve(found).context_length == 40960
    longer = attrs.evolve(QWEN3_4B, context_length=None)
    assert sized(attrs.evolve(asked, attention=longer), discrete()).context_length == 63_920
    assert found.static_pool_bytes == 4 * GIB + kv + GIB
    assert found.concurrency is None


def test_sglang_with_a_stated_request_solves_for_the_margin():
    asked = request("sglang", weights=10 * GIB, request_bytes=15 * GIB, kv_cache_bytes=4 * GIB)

    assert sized(asked, discrete(48 * GIB)).static_pool_bytes == 14 * GIB


def test_sglang_static_pool_on_unified_memory():
    asked = request("sglang", weights=4 * GIB, kv_cache_bytes=4 * GIB)

    assert sized(asked, unified()).static_pool_bytes == 11 * GIB  # W + K + 3 GiB


STATE = 36 * (49_152 + 2_097_152)
"""Bytes of one request's state."""


def hybrid(family="sglang", **changes):
    return request(family, weights=10 * GIB, hybrid=QWEN3_NEXT, **changes)


def test_a_hybrid_model_on_sglang_runs_eight_requests_and_keeps_five_states_of_each():
    found = sized(hybrid(), discrete(80 * GIB))

    states = 41 * STATE
    assert (found.concurrency, found.state_slots, found.running_limit) == (8, 40, None)
    assert found.request_bytes == -(-(10 * GIB + states) * 110 // 100) + 4 * GIB
    assert found.pool_tokens == 4 * GIB // 24_576
    assert found.notes == ()


def test_on_unified_memory_the_states_are_in_the_pool():
    found = sized(hybrid(kv_cache_bytes=4 * GIB), unified())

    states = 41 * STATE
    assert found.request_bytes == 10 * GIB + states + 4 * GIB + 8 * GIB
    assert found.static_pool_bytes == max(
        found.request_bytes - 8 * GIB, 10 * GIB + 4 * GIB + states + 3 * GIB
    )


def test_drafted_tokens_take_states_too():
    asked = hybrid(speculative=True, draft_tokens=4, concurrency=2)

    found = sized(asked, discrete(80 * GIB))

    states = (5 * 2 + 1 + 3 * 4) * STATE
    assert found.request_bytes == -(-(10 * GIB + states) * 110 // 100) + 4 * GIB


def test_a_stated_request_limits_how_many_run():
    found = sized(hybrid(request_bytes=13 * GIB), discrete(80 * GIB))

    assert found.concurrency == found.running_limit == 2
    assert found.state_slots == 10
    assert found.kv_cache_bytes > GIB // 2


def test_a_request_that_holds_no_state_names_one_that_does():
    found = refused(hybrid(request_bytes=11 * GIB), discrete(80 * GIB))

    assert (found.token, found.path) == ("checkpoint_unusable", "engine_config.memory.request")
    assert "one running request" in found.detail
    told = float(found.detail.split("; ")[1].split(" ")[0])
    assert sized(hybrid(request_bytes=int((told + 0.1) * GIB)), discrete(80 * GIB)).concurrency == 1


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"speculative": True}, "--speculative-num-draft-tokens"),
        ({"kv_cache_dtype": "odd"}, "width"),
    ],
)
def test_what_is_not_modelled_is_left_to_sglang_and_said(changes, words):
    found = sized(hybrid(**changes), discrete(80 * GIB))

    assert found.pool_tokens is None
    assert words in found.notes[0]


def test_arguments_that_size_the_states_win():
    found = sized(hybrid(state_pool_stated=True), discrete(80 * GIB))

    assert (found.concurrency, found.state_slots) == (None, None)
    assert found.pool_tokens == 4 * GIB // 24_576


def test_a_hybrid_model_on_vllm_has_blocks_that_hold_a_state():
    found = sized(hybrid("vllm"), discrete(80 * GIB))

    # A layer's state of 2,146,304 bytes takes 1,056 tokens of 2,048 bytes.
    blocks = 4 * GIB // (1056 * 2048 * 12)
    assert found.context_length == (blocks - 2 - 3 * 4) * 1056
    assert found.notes == ()


def test_a_draft_counts_once_more_for_graphs():
    asked = request(draft_bytes=GIB, draft_attention=QWEN3_4B, attention=QWEN3_4B)
    alone = request(attention=QWEN3_4B)
    small = {"weights": 100, "kv_cache_bytes": GIB}

    cold = charges(request(draft_bytes=50, draft_attention=QWEN3_4B, **small), unified()).cold
    one = charges(request(**small), unified()).cold

    assert cold["unified"] - one["unified"] == 5 * GIB // 4
    assert sized(asked, discrete()).context_length < sized(alone, discrete()).context_length


def test_sglang_decoding_speculatively_keeps_its_weights():
    asked = request("sglang", speculative=True)

    assert sized(asked, discrete()).residency is Residency.DEEP
    found = refused(attrs.evolve(asked, residency=Residency.HOST_BACKED), discrete())
    assert found.token == "host_backed_unavailable"


def test_tensorfold_is_capped_at_its_ready_allocation():
    asked = request("tensorfold", resources=ShortResources(gpu_bytes=11 * GIB, ram_bytes=2 * GIB))

    found = sized(asked, discrete())

    assert found.request_bytes == 11 * GIB
    assert found.windows.initialize_s == 1800
    assert found.concurrency == 8


# Residency


@pytest.mark.parametrize(
    ("asked", "machine", "residency"),
    [
        (request("llamacpp", kv_cache_bytes=GIB), discrete(), Residency.RESTART_ONLY),
        (request(profile_parks=False), discrete(), Residency.RESTART_ONLY),
        (request(weights=None), discrete(), Residency.DEEP),
        (request(weights=None), unified(), Residency.DEEP),
        (request(weights=10 * GIB), discrete(ram=76 * GIB), Residency.HOST_BACKED),
        (request(weights=10 * GIB), discrete(ram=76 * GIB - 4), Residency.DEEP),
        (request(), without_gpu(), Residency.RESTART_ONLY),
        (request(resources=ShortResources(gpu_bytes=9 * GIB)), discrete(), Residency.RESTART_ONLY),
        (request(residency=Residency.RESTART_ONLY), unified(), Residency.RESTART_ONLY),
    ],
)
def test_the_default_follows_the_machine(asked, machine, residency):
    assert sized(asked, machine).residency is residency


@pytest.mark.parametrize(
    ("asked", "machine", "token"),
    [
        (request("llamacpp", residency=Residency.DEEP), discrete(), "capability_missing"),
        (request("tensorfold", residency=Residency.HOST_BACKED), unified(), "capability_missing"),
        (request(residency=Residency.DEEP), without_gpu(), "capability_missing"),
        (request(residency=Residency.DEEP, profile_parks=False), discrete(), "invalid_config"),
        (
            request(residency=Residency.DEEP, resources=ShortResources(gpu_bytes=GIB)),
            discrete(),
            "invalid_config",
        ),
        (request(residency=Residency.HOST_BACKED), unified(), "host_backed_unavailable"),
        (
            request(residency=Residency.HOST_BACKED, weights=None),
            unified(),
            "host_backed_unavailable",
        ),
        (
            request(residency=Residency.HOST_BACKED, weights=100 * GIB),
            discrete(),
            "host_backed_unavailable",
        ),
        (request(model_type="gpt_oss"), discrete(), "capability_missing:deep_park"),
    ],
)
def test_a_residency_that_cannot_be_is_refused(asked, machine, token):
    found = refused(asked, machine)

    assert (found.token, found.path) == (token, "residency")
    assert found.detail


# Devices and declared resources


def test_every_device_is_fitted_with_the_cache_of_the_smallest():
    found = sized(request(), discrete(8 * GIB, 80 * GIB))

    assert [place.gpu.id for place in found.places] == ["gpu0", "gpu1"]
    assert found.kv_cache_bytes == 7 * GIB // 4
    assert found.places[1].charges.ready.keys() == {"gpu1", "system"}


def test_a_named_device_is_the_only_place():
    found = sized(request(gpu=GpuId("gpu1")), discrete(8 * GIB, 80 * GIB))

    assert [place.gpu.id for place in found.places] == ["gpu1"]
    assert found.kv_cache_bytes == 4 * GIB


@pytest.mark.parametrize("machine", [discrete(), without_gpu()])
def test_an_unknown_device_is_refused(machine):
    found = refused(request(gpu=GpuId("gpu7")), machine)

    assert (found.token, found.path) == ("invalid_config", "devices[0].id")


def long_form(**domains):
    held = {DomainName(name): value for name, value in domains.items()}
    return PhaseCharges(cold=held, ready=held, parking=held, parked={}, wake=held)


def test_declared_resources_are_charged_as_they_are():
    stated = long_form(gpu1=12 * GIB, system=5 * GIB)

    found = sized(request(resources=stated), discrete(24 * GIB, 24 * GIB))

    (place,) = found.places
    assert place.gpu.id == "gpu1"
    assert place.charges == stated
    assert found.request_bytes == 12 * GIB - C
    assert found.kv_cache_bytes == 12 * GIB - C - 4_724_464_026


def test_the_short_form_is_one_sum_where_there_is_one_pool():
    short = ShortResources(gpu_bytes=11 * GIB, ram_bytes=2 * GIB)

    on_card = charges(request(resources=short), discrete())
    assert on_card.cold == on_card.parking == {"gpu0": 11 * GIB, "system": 2 * GIB}
    assert on_card.parked == {}
    asked = request(resources=short, weights=GIB)
    assert charges(asked, unified()).ready == {"unified": 13 * GIB}
    assert charges(asked, without_gpu()).ready == {"system": 13 * GIB}


@pytest.mark.parametrize(
    ("stated", "machine", "token", "path"),
    [
        (long_form(gpu0=9 * GIB), discrete(), "missing_system_allocation", "resources.cold"),
        (long_form(unified=9 * GIB), discrete(), "invalid_config", "resources.cold"),
        (
            long_form(gpu0=9 * GIB, gpu1=GIB, system=GIB),
            discrete(GIB, GIB),
            "multi_gpu_unsupported",
            "resources",
        ),
        (
            long_form(gpu0=9 * GIB, system=GIB, gpu5=GIB),
            discrete(),
            "invalid_config",
            "resources.cold",
        ),
        (long_form(gpu0=2 * GIB, system=GIB), discrete(), "checkpoint_unusable", "resources.ready"),
    ],
)
def test_resources_that_do_not_belong_here_are_refused(stated, machine, token, path):
    found = refused(request(resources=stated), machine)

    assert found.token == token
    assert found.path.startswith(path)


# Windows


@pytest.mark.parametrize(
    ("family", "weights", "initialize_s", "wake_s"),
    [
        ("vllm", 1, 610, 65),
        ("vllm", 1_000_000_000, 610, 65),
        ("vllm", 1_000_000_001, 620, 70),
        ("sglang", 30_000_000_000, 900, 210),
        ("vllm", 500_000_000_000, 1800, 900),
        ("vllm", None, 900, 900),
    ],
)
def test_windows_follow_the_weights(family, weights, initialize_s, wake_s):
    asked = request(family, weights, residency=Residency.DEEP, resources=None)

    windows = sized(asked, discrete(2000 * GIB)).windows

    assert (windows.initialize_s, windows.wake_s, windows.stop_s) == (initialize_s, wake_s, 900)


def test_llamacpp_needs_no_time_to_compile():
    asked = request("llamacpp", 2_000_000_000, kv_cache_bytes=GIB)

    assert sized(asked, discrete()).windows.initialize_s == 140


def test_no_window_is_longer_than_the_request_deadline():
    windows = sized(request(request_deadline_s=60), discrete()).windows

    assert (windows.initialize_s, windows.wake_s, windows.stop_s) == (60, 60, 60)


def test_declared_windows_win():
    windows = sized(request(initialize_s=77, wake_s=11), discrete()).windows

    assert (windows.initialize_s, windows.wake_s) == (77, 11)


def test_unknown_weights_make_the_figures_provisional():
    assert sized(request(weights=None), discrete()).provisional
    assert not sized(request(), discrete()).provisional


# Properties

MACHINES = st.sampled_from([discrete(), discrete(8 * GIB, 80 * GIB), unified(), without_gpu()])
BYTES = st.integers(min_value=1, max_value=1 << 42)
REQUESTS = st.builds(
    request,
    family=st.sampled_from(["vllm", "sglang", "llamacpp"]),
    weights=BYTES,
    kv_cache_bytes=BYTES,
    startup_bytes=st.none() | BYTES,
    profile_parks=st.booleans(),
    captures_graphs=st.booleans(),
    loader=st.sampled_from([None, "eager", "lazy"]),
)


@given(REQUESTS, MACHINES)
def test_charges_are_never_negative_and_parking_never_costs(asked, machine):
    for place in sized(asked, machine).places:
        for phase in Phase:
            assert all(value >= 0 for value in place.charges.of(phase).values())
        for name, value in place.charges.parked.items():
            assert value <= place.charges.ready[name]


@given(REQUESTS, MACHINES, st.integers(min_value=0, max_value=1 << 40))
def test_more_weights_are_never_charged_less(asked, machine, more):
    fixed = attrs.evolve(asked, residency=sized(asked, machine).residency)
    if fixed.residency is Residency.HOST_BACKED:
        fixed = attrs.evolve(fixed, residency=Residency.DEEP)
    heavier = attrs.evolve(fixed, weights_bytes=fixed.weights_bytes + more)

    pairs = zip(sized(fixed, machine).places, sized(heavier, machine).places, strict=True)
    for light, heavy in pairs:
        for phase in Phase:
            for name, value in light.charges.of(phase).items():
                assert heavy.charges.of(phase)[name] >= value
