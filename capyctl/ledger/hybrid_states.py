"""How many states a hybrid model keeps on SGLang, and the bytes they take (S)."""

from __future__ import annotations

import attrs

from capyctl.domain.checkpoints import HybridShape
from capyctl.domain.devices import MemoryKind
from capyctl.domain.units import gib
from capyctl.ledger.margins import margin_bytes
from capyctl.ledger.sizing_request import HYBRID_RUNNING_MAX, SizingRequest, Stop

SLOTS_PER_RUNNING = 5
"""One for what runs, the rest for prefixes that are kept."""


@attrs.frozen(kw_only=True)
class StatePlan:
    """What capyctl sizes; nothing where SGLang does, or where there are no states."""

    running: int | None = None
    slots: int | None = None
    """`--max-mamba-cache-size`."""
    bytes: int = 0
    limited: bool = False
    """Fewer run at once than would without the states."""


def why_not_planned(request: SizingRequest) -> str | None:
    """Why SGLang sizes the states of a hybrid model by itself; None where capyctl does."""
    if request.state_pool_stated:
        return "arguments size its state pool"
    if request.speculative and request.draft_tokens is None:
        return "it decodes speculatively without --speculative-num-draft-tokens"
    return None


def plan_states(request: SizingRequest, kind: MemoryKind, asked: int | None) -> StatePlan:
    """As many requests at once as are stated, or up to 8; fewer where ``asked``, a stated request,
    does not hold their states.

    Without a stated number the states take at most half of what weights and margin leave.
    """
    hybrid = request.hybrid
    if request.family != "sglang" or hybrid is None or why_not_planned(request) is not None:
        return StatePlan()
    most = request.concurrency or HYBRID_RUNNING_MAX
    if asked is None:
        return _plan(request, hybrid, most)
    weights, stated_kv = request.weights_bytes or 0, request.kv_cache_bytes
    for running in (most,) if request.concurrency else range(most, 0, -1):
        states = _state_bytes(request, hybrid, running)
        left = asked - _taken(weights, states, kind)
        half = (asked - _taken(weights, 0, kind)) // 2
        roomy = stated_kv is not None or states <= half or running == 1
        if left >= (stated_kv or 1) and roomy:
            return _plan(request, hybrid, running)
    least = _taken(weights, _state_bytes(request, hybrid, request.concurrency or 1), kind)
    needed = least + (stated_kv or least // 20)
    what = "one running request" if request.concurrency is None else f"{most} running requests"
    detail = f"{gib(asked)} do not hold the states of {what}; {gib(needed)} do"
    raise Stop("checkpoint_unusable", "engine_config.memory.request", detail)


def _plan(request: SizingRequest, hybrid: HybridShape, running: int) -> StatePlan:
    return StatePlan(
        running=running,
        slots=SLOTS_PER_RUNNING * running,
        bytes=_state_bytes(request, hybrid, running),
        limited=request.concurrency is None and running < HYBRID_RUNNING_MAX,
    )


def _state_bytes(request: SizingRequest, hybrid: HybridShape, running: int) -> int:
    """S: (5 x running + 1) slots, and (running + 1) for each drafted token."""
    slots = SLOTS_PER_RUNNING * running + 1
    if request.speculative:
        slots += (running + 1) * (request.draft_tokens or 0)
    return slots * hybrid.slot_bytes


def _taken(weights: int, states: int, kind: MemoryKind) -> int:
    return weights + states + margin_bytes(weights, kind, states=states)
