"""What the layers of a model with gated delta nets keep."""

import pytest

from capyctl.checkpoints.hybrids import hybrid_of
from capyctl.checkpoints.safetensors import model_type_of, quantization_of
from tests.ledger.shapes import QWEN3_NEXT

CONFIG = {
    "model_type": "qwen3_next",
    "num_hidden_layers": 48,
    "num_attention_heads": 16,
    "num_key_value_heads": 2,
    "head_dim": 256,
    "hidden_size": 2048,
    "max_position_embeddings": 262_144,
    "full_attention_interval": 4,
    "linear_conv_kernel_dim": 4,
    "linear_key_head_dim": 128,
    "linear_num_key_heads": 16,
    "linear_num_value_heads": 32,
    "linear_value_head_dim": 128,
}


def test_the_figures_of_qwen3_next():
    assert hybrid_of(CONFIG) == QWEN3_NEXT
    assert QWEN3_NEXT.slot_bytes == 77_266_944


def test_layers_may_be_listed_and_states_be_narrow():
    layers = ["linear_attention"] * 36 + ["full_attention"] * 12
    config = {**CONFIG, "full_attention_interval": None, "layer_types": layers}
    found = hybrid_of({"text_config": {**config, "mamba_ssm_dtype": "bfloat16"}})

    assert found.recurrent_count == 36
    assert found.temporal_bytes == QWEN3_NEXT.temporal_bytes // 2


@pytest.mark.parametrize(
    "change",
    [
        {"linear_num_value_heads": None},
        {"linear_key_head_dim": None},
        {"kv_lora_rank": 512},
        {"sliding_window": 4096},
        {"mamba_ssm_dtype": "float8"},
        {"full_attention_interval": 100},
        {"layer_types": ["full_attention"] * 48},
        {"layer_types": ["linear_attention", "full_attention"]},
        {"layer_types": ["mamba"] * 24 + ["full_attention"] * 24},
        {"layer_types": [{}] * 48},
        {"num_hidden_layers": "many"},
    ],
)
def test_other_layouts_are_none_of_these(change):
    assert hybrid_of({**CONFIG, **change}) is None


@pytest.mark.parametrize(
    ("config", "found"),
    [
        ({"model_type": "qwen3"}, "qwen3"),
        ({"architectures": ["Qwen3MoeForCausalLM"]}, "qwen3_moe"),
        ({"architectures": ["Qwen3_5ForConditionalGeneration"]}, "qwen3_5"),
        ({"architectures": ["Qwen3_5MoeForConditionalGeneration"]}, "qwen3_5_moe"),
        ({"architectures": [7]}, None),
        ({"architectures": []}, None),
        ({}, None),
    ],
)
def test_a_family_without_its_name_is_told_by_the_architecture(config, found):
    assert model_type_of(config) == found


@pytest.mark.parametrize(
    ("config", "found"),
    [
        ({"quantization_config": {"quant_method": "modelopt"}}, "modelopt"),
        ({"quantization_config": {"quant_method": 4}}, None),
        ({"quantization_config": "x"}, None),
        ({}, None),
    ],
)
def test_how_weights_are_quantised(config, found):
    assert quantization_of(config) == found
