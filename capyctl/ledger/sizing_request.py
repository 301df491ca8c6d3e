"""What the memory of a deployment is derived from, and what it comes to."""

from __future__ import annotations

import attrs

from capyctl.domain.checkpoints import AttentionShape, HybridShape
from capyctl.domain.devices import Gpu
from capyctl.domain.ids import GpuId
from capyctl.domain.specs import PhaseCharges, Residency, Windows
from capyctl.domain.units import GIB

CUDA_BYTES = GIB * 5 // 4
"""C: context and graphs, on top of what an engine is asked to use."""
CONCURRENCY_DEFAULT = {"vllm": 32, "tensorfold": 8, "llamacpp": 4}
HYBRID_RUNNING_MAX = 8
"""Requests that SGLang runs of a hybrid model unless the document says otherwise."""
ENGINE_RAM_BYTES = 4 * GIB
"""Host RAM of an engine whose model is on a card."""


def percent_of(value_bytes: int, percent: int) -> int:
    """Rounded up: a charge is never a byte short."""
    return -(-value_bytes * percent // 100)


@attrs.frozen(kw_only=True)
class ShortResources:
    """Memory of a model that restarts instead of parking: while it starts, runs and stops."""

    gpu_bytes: int = 0
    ram_bytes: int = 0


@attrs.frozen(kw_only=True)
class SizingRequest:
    """The memory part of a deployment document, in bytes, tokens and seconds; None: not stated."""

    family: str
    residency: Residency | None = None
    profile_parks: bool = True
    """False where the engine's profile opted out of parking."""
    weights_bytes: int | None = None
    """A draft's included. None until the model's files were measured."""
    draft_bytes: int = 0
    """The part of `weights_bytes` that is a draft model's."""
    draft_attention: AttentionShape | None = None
    draft_refused: str | None = None
    """Why a draft's cache cannot be derived, when there is a draft and it cannot."""
    attention: AttentionShape | None = None
    attention_refused: str | None = None
    hybrid: HybridShape | None = None
    model_type: str | None = None
    kv_cache_bytes: int | None = None
    kv_default_bytes: int | None = None
    """The host's own default of the cache."""
    request_bytes: int | None = None
    startup_bytes: int | None = None
    context_length: int | None = None
    concurrency: int | None = None
    dtype: str | None = None
    kv_cache_dtype: str | None = None
    block_tokens: int = 16
    pool_tokens: int | None = None
    """SGLang's token pool, where the document states it."""
    loader: str | None = None
    """vLLM's safetensors strategy, where the document states it."""
    captures_graphs: bool = True
    speculative: bool = False
    drafts_by_weights: bool = False
    draft_tokens: int | None = None
    """Drafted at a time, where it is stated."""
    state_pool_stated: bool = False
    """Arguments size SGLang's state pool."""
    pads_values: bool = True
    """llama.cpp without ``--flash-attn on``."""
    uncountable: str | None = None
    """A llama.cpp setting that keeps the cache's size from being derived."""
    resources: PhaseCharges | ShortResources | None = None
    gpu: GpuId | None = None
    """The one device the document names."""
    request_deadline_s: float
    initialize_s: float | None = None
    wake_s: float | None = None


@attrs.frozen(kw_only=True)
class Place:
    """One device that could run an instance (None: the machine has none), and its charges."""

    gpu: Gpu | None
    charges: PhaseCharges


@attrs.frozen(kw_only=True)
class Sized:
    """What a deployment comes to on one machine."""

    residency: Residency
    places: tuple[Place, ...]
    windows: Windows
    kv_cache_bytes: int | None
    request_bytes: int
    static_pool_bytes: int | None = None
    """SGLang: weights and cache together."""
    pool_tokens: int | None = None
    state_slots: int | None = None
    """SGLang: states that its pool holds, for a hybrid model."""
    running_limit: int | None = None
    """Requests at once, where the states are what limits them."""
    kept_bytes: int = 0
    """Weights that a park leaves where they are."""
    context_length: int | None
    concurrency: int | None
    loader: str | None
    provisional: bool
    """The figures still depend on weights that nobody measured."""
    notes: tuple[str, ...] = ()


@attrs.frozen(kw_only=True)
class Unresolvable:
    """Why a deployment does not come to anything on this machine."""

    token: str
    """``checkpoint_unusable``, ``host_backed_unavailable``, ``capability_missing`` …"""
    path: str
    """Field of the deployment document."""
    detail: str


class Stop(Exception):
    """Carries the reason out of the calculation; `sizing.size` turns it into a value."""

    def __init__(self, token: str, path: str, detail: str) -> None:
        super().__init__(detail)
        self.found = Unresolvable(token=token, path=path, detail=detail)
