"""Models of attention and gated delta nets: what either kind of layer keeps."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from capyctl.checkpoints.headers import COUNT_MAX, LAYERS_MAX, HeaderError
from capyctl.checkpoints.safetensors import count_of, plain_layers
from capyctl.domain.checkpoints import HybridShape

CONV_VALUE_BYTES = 2
TEMPORAL_VALUE_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}
_NOT_MODELLED = ("kv_lora_rank", "mamba_d_state", "ssm_cfg", "index_topk", "attention_chunk_size")


def hybrid_of(config: Mapping[str, Any]) -> HybridShape | None:
    """The shape of such a model, by its ``config.json``; None for any other, or one that has
    more kinds of layers or does not tell all its numbers."""
    text = config.get("text_config")
    shape = text if isinstance(text, dict) else config
    if not shape.get("linear_num_value_heads") or any(shape.get(key) for key in _NOT_MODELLED):
        return None
    if shape.get("sliding_window") and shape.get("use_sliding_window", True):
        return None
    try:
        return _shape(shape)
    except HeaderError:
        return None


def _shape(shape: Mapping[str, Any]) -> HybridShape | None:
    layers = count_of(shape, "num_hidden_layers", LAYERS_MAX)
    attention = _attention_count(shape, layers)
    width = TEMPORAL_VALUE_BYTES.get(str(shape.get("mamba_ssm_dtype", "float32")))
    if attention is None or not 0 < attention < layers or width is None:
        return None
    key_heads = count_of(shape, "linear_num_key_heads", COUNT_MAX)
    value_heads = count_of(shape, "linear_num_value_heads", COUNT_MAX)
    key = count_of(shape, "linear_key_head_dim", COUNT_MAX)
    value = count_of(shape, "linear_value_head_dim", COUNT_MAX)
    kernel = count_of(shape, "linear_conv_kernel_dim", COUNT_MAX)
    channels = 2 * key_heads * key + value_heads * value
    return HybridShape(
        attention=plain_layers(shape, attention),
        recurrent_count=layers - attention,
        conv_bytes=channels * (kernel - 1) * CONV_VALUE_BYTES,
        temporal_bytes=value_heads * value * key * width,
    )


def _attention_count(shape: Mapping[str, Any], layers: int) -> int | None:
    """Layers with a cache, by `layer_types`, else by every how many there is one."""
    kinds = shape.get("layer_types")
    if isinstance(kinds, list):
        known = all(kind in ("full_attention", "linear_attention") for kind in kinds)
        return kinds.count("full_attention") if known and len(kinds) == layers else None
    every = count_of(shape, "full_attention_interval", LAYERS_MAX)
    return layers // every
