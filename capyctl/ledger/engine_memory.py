"""What an engine is asked to use: its cache (K) and its memory request (R)."""

from __future__ import annotations

import attrs

from capyctl.domain.devices import MemoryDomain, MemoryKind
from capyctl.domain.units import GIB, gib
from capyctl.ledger.hybrid_states import StatePlan, plan_states
from capyctl.ledger.kv_cache import llamacpp_cache_bytes
from capyctl.ledger.margins import margin_bytes
from capyctl.ledger.sizing_request import (
    CONCURRENCY_DEFAULT,
    CUDA_BYTES,
    ShortResources,
    SizingRequest,
    Stop,
)

KV_DEFAULT_MAX_BYTES = 4 * GIB
SGLANG_OVERHEAD_BYTES = 3 * GIB
SGLANG_OWN_POOL_BYTES = GIB
"""Added on a card where the pools are sized for SGLang."""


@attrs.frozen(kw_only=True)
class EngineMemory:
    """Where the model lives and what it takes there, in bytes. None: the engine's own choice."""

    kind: MemoryKind
    weights: int
    """0 while unknown."""
    kv: int | None
    request: int
    states: StatePlan = attrs.field(factory=StatePlan)


def engine_memory(
    request: SizingRequest, mains: tuple[MemoryDomain, ...], context: int | None
) -> EngineMemory:
    """K and R, stated or derived, checked against each other. ``mains``: one for each place."""
    kind = mains[0].kind
    weights = request.weights_bytes or 0
    counted = _counted_cache(request, context)
    states = plan_states(request, kind, _stated_request(request, mains[0]))
    if request.resources is not None:
        asked, kv = _from_resources(request, mains, counted, states.bytes)
    else:
        asked, kv = _from_figures(request, mains, counted, states.bytes)
    return EngineMemory(kind=kind, weights=weights, kv=kv, request=asked, states=states)


def _stated_request(request: SizingRequest, main: MemoryDomain) -> int | None:
    """R where the document states it, or charges that it follows from."""
    if request.request_bytes is not None or request.resources is None:
        return request.request_bytes
    context_bytes = 0 if main.kind is MemoryKind.DISTINCT else CUDA_BYTES
    return max(0, _ready_charge(request, main) - context_bytes)


def static_pool_bytes(request: SizingRequest, memory: EngineMemory, *, own_pools: bool) -> int:
    """SGLang's pool of weights and cache: R - M, between K and R, and at least W + K + S + 3 GiB
    on unified memory where R allows. On a card M follows a stated R as (R - K) / 11, and 1 GiB
    is added where the token pool is given too."""
    kv, asked, states = memory.kv or 0, memory.request, memory.states.bytes
    if memory.kind is MemoryKind.UNIFIED:
        pool = max(kv, asked - margin_bytes(memory.weights, memory.kind))
        return min(asked, max(pool, memory.weights + kv + states + SGLANG_OVERHEAD_BYTES))
    stated = request.request_bytes is not None or request.resources is not None
    margin = margin_bytes(memory.weights, memory.kind, states=states)
    margin = (asked - kv) // 11 if stated else margin
    return max(kv, asked - margin) + (SGLANG_OWN_POOL_BYTES if own_pools else 0)


def _from_figures(
    request: SizingRequest, mains: tuple[MemoryDomain, ...], counted: int | str, states: int
) -> tuple[int, int]:
    """R = W + S + K + M, solved for the one that is not stated; both stated are taken as they
    are."""
    kv, asked = request.kv_cache_bytes, request.request_bytes
    weights = request.weights_bytes or 0
    taken = weights + states + margin_bytes(weights, mains[0].kind, states=states)
    if kv is None:
        kv = _default_cache(request, mains, counted) if asked is None else asked - taken
    if asked is not None and kv <= 0:
        detail = f"{gib(asked)} leave no cache beside {gib(taken)} of weights and margin"
        raise Stop("checkpoint_unusable", "engine_config.memory.request", detail)
    if isinstance(counted, int) and kv < counted:
        field = "kv_cache" if request.kv_cache_bytes is not None else "request"
        detail = f"{gib(kv)} are left for a cache of {gib(counted)}"
        raise Stop("checkpoint_unusable", f"engine_config.memory.{field}", detail)
    return (taken + kv if asked is None else asked), kv


def _default_cache(
    request: SizingRequest, mains: tuple[MemoryDomain, ...], counted: int | str
) -> int:
    """The host's default, else min(4 GiB, managed limit / 4); llama.cpp's is counted."""
    if request.family != "llamacpp":
        if request.kv_default_bytes is not None:
            return request.kv_default_bytes
        smallest = min(main.managed_limit_bytes for main in mains)
        return min(KV_DEFAULT_MAX_BYTES, smallest // 4)
    if isinstance(counted, int):
        return counted
    if request.weights_bytes is None:
        return 0
    detail = f"the cache cannot be derived ({counted}); state it, or resources"
    raise Stop("checkpoint_unusable", "engine_config.memory.kv_cache", detail)


def _from_resources(
    request: SizingRequest, mains: tuple[MemoryDomain, ...], counted: int | str, states: int
) -> tuple[int, int | None]:
    """What declared charges leave for the engine: R is the ready charge without C."""
    main = mains[0]
    asked = _stated_request(request, main) or 0
    if request.family == "tensorfold":
        return _ready_charge(request, main), None
    if request.family == "llamacpp":
        left = asked - (request.weights_bytes or 0)
        if isinstance(counted, int) and left < counted:
            detail = f"{gib(max(0, left))} are left for a cache of {gib(counted)}"
            raise Stop("checkpoint_unusable", "resources.ready", detail)
        return asked, request.kv_cache_bytes or (counted if isinstance(counted, int) else None)
    if request.kv_cache_bytes is not None:
        return asked, request.kv_cache_bytes
    if request.weights_bytes is None:
        return asked, None
    taken = request.weights_bytes + states
    taken += margin_bytes(request.weights_bytes, main.kind, states=states)
    if asked <= taken:
        detail = f"{gib(asked)} leave no cache beside {gib(taken)} of weights and margin"
        raise Stop("checkpoint_unusable", "resources.ready", detail)
    return asked, asked - taken


def _ready_charge(request: SizingRequest, main: MemoryDomain) -> int:
    resources = request.resources
    assert resources is not None
    if not isinstance(resources, ShortResources):
        return resources.ready.get(main.name, 0)
    if main.kind is MemoryKind.DEVICE:
        return resources.gpu_bytes
    return resources.gpu_bytes + resources.ram_bytes


def _counted_cache(request: SizingRequest, context: int | None) -> int | str:
    """llama.cpp's cache in bytes, or why it cannot be counted."""
    if request.family != "llamacpp" or request.weights_bytes is None:
        return "its files are not measured"
    if request.uncountable is not None:
        return request.uncountable
    if request.attention is None or context is None:
        return request.attention_refused or "the file tells no attention layout"
    return llamacpp_cache_bytes(
        request.attention,
        context=context,
        slots=request.concurrency or CONCURRENCY_DEFAULT["llamacpp"],
        cache_type=request.kv_cache_dtype or "f16",
        pads_values=request.pads_values,
    )
