"""How long a request may be: stated, trained, or what the cache holds."""

from __future__ import annotations

import attrs

from capyctl.domain.units import gib
from capyctl.ledger.kv_cache import (
    bytes_per_token,
    sglang_context,
    sglang_pool_tokens,
    vllm_context,
)
from capyctl.ledger.sizing_request import SizingRequest, Stop

LLAMACPP_CONTEXT_DEFAULT = 4096
_PATH = "engine_config.context_length"


@attrs.frozen(kw_only=True)
class ContextFit:
    """Tokens of one request, and SGLang's token pool. None: the engine's own choice."""

    context: int | None
    pool_tokens: int | None = None
    notes: tuple[str, ...] = ()


def llamacpp_window(request: SizingRequest) -> int | None:
    """Stated, else the smaller of the trained length and 4096; None while nothing is known."""
    trained = request.attention.context_length if request.attention is not None else None
    stated = request.context_length
    if stated is not None and trained is not None and stated > trained:
        detail = f"{stated} tokens are more than the {trained} the model was trained with"
        raise Stop("checkpoint_unusable", _PATH, detail)
    if stated is not None or request.weights_bytes is None:
        return stated
    return min(trained or LLAMACPP_CONTEXT_DEFAULT, LLAMACPP_CONTEXT_DEFAULT)


def fit_context(request: SizingRequest, kv_bytes: int | None) -> ContextFit:
    """What vLLM's or SGLang's cache holds, for plain attention of known width."""
    stated = ContextFit(context=request.context_length, pool_tokens=request.pool_tokens)
    if request.weights_bytes is None or kv_bytes is None:
        return stated
    if request.attention is None:
        why = request.attention_refused or "its attention layout is unknown"
        return attrs.evolve(stated, notes=(f"the engine sizes its own cache: {why}",))
    per_token = bytes_per_token(
        request.attention, dtype=request.dtype, cache_dtype=request.kv_cache_dtype
    )
    if per_token == 0:
        why = "the width of its cache type is unknown"
        return attrs.evolve(stated, notes=(f"the engine sizes its own cache: {why}",))
    if request.family == "sglang":
        pool = request.pool_tokens or sglang_pool_tokens(kv_bytes, per_token)
        held = sglang_context(pool)
    else:
        pool = None
        held = vllm_context(kv_bytes, per_token, block_tokens=request.block_tokens)
    return _limited(request, held=held, pool=pool, kv_bytes=kv_bytes)


def _limited(request: SizingRequest, *, held: int, pool: int | None, kv_bytes: int) -> ContextFit:
    if held <= 0:
        detail = f"{gib(kv_bytes)} do not hold one block of tokens"
        raise Stop("checkpoint_unusable", "engine_config.memory.kv_cache", detail)
    stated = request.context_length
    if stated is None:
        assert request.attention is not None
        return ContextFit(
            context=min(held, request.attention.context_length or held), pool_tokens=pool
        )
    notes = (f"context_length {stated} does not fit: the cache holds {held} tokens",)
    return ContextFit(context=stated, pool_tokens=pool, notes=notes if stated > held else ())
