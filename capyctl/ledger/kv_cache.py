"""How many bytes a key/value cache takes, and how many tokens fit into one."""

from __future__ import annotations

from capyctl.domain.checkpoints import AttentionShape, HybridShape

LLAMACPP_BYTES_PER_32 = {
    "f32": 128,
    "f16": 64,
    "bf16": 64,
    "q8_0": 34,
    "q5_1": 24,
    "q5_0": 22,
    "q4_1": 20,
    "q4_0": 18,
    "iq4_nl": 18,
}
"""Bytes of 32 cached values, by llama.cpp's name of the type."""
LLAMACPP_CONTEXT_STEP = 256
TOKENS_STEP = 16


def llamacpp_cache_bytes(
    shape: AttentionShape, *, context: int, slots: int, cache_type: str, pads_values: bool
) -> int:
    """Bytes of llama-server's cache: every slot has a whole window, rounded up to 256 tokens.

    With ``pads_values`` (no ``--flash-attn on``) each layer's values are as wide as the
    widest layer's.

    Raises:
        KeyError: not a cache type of llama.cpp.
    """
    size = LLAMACPP_BYTES_PER_32[cache_type]
    widest = max((heads * value for heads, _, value in shape.layers_kv), default=0)
    per_token = 0
    for heads, key, value in shape.layers_kv:
        values = widest if pads_values else heads * value
        per_token += _row_bytes(heads * key, size) + _row_bytes(values, size)
    return slots * _up(context, LLAMACPP_CONTEXT_STEP) * per_token


def bytes_per_token(shape: AttentionShape, *, dtype: str | None, cache_dtype: str | None) -> int:
    """Bytes that vLLM or SGLang keeps per token of a plain attention model; 0 when unknown.

    ``auto`` and None mean the model's own type, taken as two bytes unless ``dtype`` is
    ``float32``.
    """
    width = _value_bytes(dtype, cache_dtype)
    return width * sum(heads * (key + value) for heads, key, value in shape.layers_kv)


def vllm_context(kv_bytes: int, per_token: int, *, block_tokens: int) -> int:
    """Tokens of one request that fit: vLLM keeps one block back. May be 0 or less."""
    return (kv_bytes // (per_token * block_tokens) - 1) * block_tokens


def vllm_hybrid_context(
    kv_bytes: int,
    per_token: int,
    hybrid: HybridShape,
    *,
    block_tokens: int,
    draft_tokens: int,
) -> int:
    """Tokens of one request of a hybrid model on vLLM. May be 0 or less.

    Blocks of all layers have one size, so a block of attention grows until it holds the state of
    one recurrent layer. Layers share blocks in groups of as many as there are attention layers;
    each recurrent group needs 2 + 2 x (drafted tokens + 1) blocks, two more stay unused.
    """
    attention = len(hybrid.attention.layers_kv)
    per_layer_token = per_token // attention
    state = hybrid.conv_bytes + hybrid.temporal_bytes
    block = _up(max(-(-state // per_layer_token), block_tokens), block_tokens)
    blocks = kv_bytes // (block * per_layer_token * attention)
    groups = -(-hybrid.recurrent_count // attention)
    held = blocks - 2 - groups * (2 + 2 * (draft_tokens + 1))
    return held * block


def sglang_pool_tokens(kv_bytes: int, per_token: int) -> int:
    return kv_bytes // per_token


def sglang_context(pool_tokens: int) -> int:
    return pool_tokens // TOKENS_STEP * TOKENS_STEP


def _value_bytes(dtype: str | None, cache_dtype: str | None) -> int:
    if cache_dtype in (None, "auto"):
        return 4 if dtype in ("float32", "float") else 2
    assert cache_dtype is not None
    if cache_dtype in ("bfloat16", "bf16", "float16", "half"):
        return 2
    if cache_dtype.startswith("fp8"):
        return 1
    return 0


def _row_bytes(values: int, bytes_per_32: int) -> int:
    return -(-values * bytes_per_32 // 32)


def _up(count: int, step: int) -> int:
    return -(-count // step) * step
