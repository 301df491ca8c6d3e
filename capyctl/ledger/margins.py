"""M: what a request has beside weights, states and cache."""

from __future__ import annotations

from capyctl.domain.devices import MemoryKind
from capyctl.domain.units import GIB
from capyctl.ledger.sizing_request import percent_of

UNIFIED_MARGIN_MIN_BYTES = 8 * GIB


def margin_bytes(weights: int, kind: MemoryKind, *, states: int = 0) -> int:
    """M: max(8 GiB, 0.15 W + 4 GiB) on unified memory, 0.10 (W + S) elsewhere."""
    if kind is MemoryKind.UNIFIED:
        return max(UNIFIED_MARGIN_MIN_BYTES, percent_of(weights, 15) + 4 * GIB)
    return percent_of(weights + states, 10)
