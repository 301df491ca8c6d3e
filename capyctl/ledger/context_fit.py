"""How long a request may be: stated, trained, or what the cache holds."""

from __future__ import annotations

import attrs

from capyctl.domain.checkpoints import AttentionShape
from capyctl.domain.units import gib
from capyctl.ledger.hybrid_states import why_not_planned
from capyctl.ledger.kv_cache import (
    bytes_per_token,
    sglang_context,
    sglang_pool_tokens,
    vllm_context,
    vllm_hybrid_context,
)
from capyctl.ledger.sizing_request import SizingRequest, Stop

LLAMACPP_CONTEXT_DEFAULT = 4096
DRAFT_UNKNOWN_CONTEXT = 4096
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
    """What vLLM's or SGLang's cache holds, for layers of known kind and width."""
    stated = ContextFit(context=request.context_length, pool_tokens=request.pool_tokens)
    if request.weights_bytes is None or kv_bytes is None:
        return stated
    if request.draft_bytes and request.draft_attention is None:
        why = request.draft_refused or "its attention layout is unknown"
        note = f"the draft model's cache is not known ({why}), so a request has 4096 tokens"
        context = request.context_length or DRAFT_UNKNOWN_CONTEXT
        return attrs.evolve(stated, context=context, notes=(note,))
    why_own = _why_own_size(request)
    if why_own is not None:
        return attrs.evolve(stated, notes=(f"the engine sizes its own cache: {why_own}",))
    per_token = _per_token(request)
    if request.family == "sglang":
        pool = request.pool_tokens or sglang_pool_tokens(kv_bytes, per_token)
        return _limited(request, held=sglang_context(pool), pool=pool, kv_bytes=kv_bytes)
    if request.hybrid is not None:
        held = vllm_hybrid_context(
            kv_bytes,
            per_token,
            request.hybrid,
            block_tokens=request.block_tokens,
            draft_tokens=(request.draft_tokens or 0) if request.speculative else 0,
        )
    else:
        held = vllm_context(kv_bytes, per_token, block_tokens=request.block_tokens)
    return _limited(request, held=held, pool=None, kv_bytes=kv_bytes)


def _layers(request: SizingRequest) -> AttentionShape | None:
    """The layers of the model that keep a cache per token."""
    return request.attention if request.hybrid is None else request.hybrid.attention


def _why_own_size(request: SizingRequest) -> str | None:
    if _layers(request) is None:
        return request.attention_refused or "its attention layout is unknown"
    if _per_token(request) == 0:
        return "the width of its cache type is unknown"
    if request.family == "vllm" and request.hybrid is not None and request.draft_bytes:
        return "a hybrid model with a draft of its own is not modelled"
    if request.family == "sglang" and request.hybrid is not None and not request.state_pool_stated:
        return why_not_planned(request)
    return None


def _per_token(request: SizingRequest) -> int:
    """Bytes per token of the model's layers and of a draft's."""
    shapes = (_layers(request), request.draft_attention)
    widths = [
        bytes_per_token(shape, dtype=request.dtype, cache_dtype=request.kv_cache_dtype)
        for shape in shapes
        if shape is not None
    ]
    return sum(widths)


def _limited(request: SizingRequest, *, held: int, pool: int | None, kv_bytes: int) -> ContextFit:
    if held <= 0:
        detail = f"{gib(kv_bytes)} do not hold one block of tokens"
        raise Stop("checkpoint_unusable", "engine_config.memory.kv_cache", detail)
    stated = request.context_length
    if stated is None:
        layers = _layers(request)
        assert layers is not None
        return ContextFit(context=min(held, layers.context_length or held), pool_tokens=pool)
    notes = (f"context_length {stated} does not fit: the cache holds {held} tokens",)
    return ContextFit(context=stated, pool_tokens=pool, notes=notes if stated > held else ())
