"""How long each step of a deployment may take, from its family and the size of its weights."""

from __future__ import annotations

import math

from capyctl.domain.specs import Windows

INITIALIZE_BASE_S = 120
INITIALIZE_PER_GB_S = 10
INITIALIZE_WARMUP_S = 480
"""vLLM and SGLang compile and capture before they are ready."""
INITIALIZE_MAX_S = 1800
WAKE_BASE_S = 60
WAKE_PER_GB_S = 5
WAKE_MAX_S = 900
UNKNOWN_WEIGHTS_S = 900
STOP_S = 900
WARMUP_FAMILIES = frozenset({"vllm", "sglang"})
_DECIMAL_GB = 1_000_000_000


def derive_windows(
    *,
    family: str,
    weights_bytes: int | None,
    parks: bool,
    request_deadline_s: float,
    initialize_s: float | None = None,
    wake_s: float | None = None,
) -> Windows:
    """Declared windows where there are some, else derived ones, none above the request deadline.

    Initialize is 120 s and 10 s for each decimal GB begun, with 480 s more for engines that
    compile at start, at most 1800 s; TensorFold always gets 1800 s, for its first start builds
    kernels. A wake is 60 s and 5 s a GB, at most 900 s. Both are 900 s while the weights are
    unknown. A stop is 900 s.
    """
    if initialize_s is None:
        initialize_s = _initialize_s(family, weights_bytes)
    if wake_s is None:
        wake_s = _wake_s(weights_bytes)
    return Windows(
        request_deadline_s=request_deadline_s,
        initialize_s=min(initialize_s, request_deadline_s),
        wake_s=min(wake_s, request_deadline_s) if parks else None,
        stop_s=min(STOP_S, request_deadline_s),
    )


def _initialize_s(family: str, weights_bytes: int | None) -> float:
    if family == "tensorfold":
        return INITIALIZE_MAX_S
    if weights_bytes is None:
        return UNKNOWN_WEIGHTS_S
    warmup_s = INITIALIZE_WARMUP_S if family in WARMUP_FAMILIES else 0
    loading_s = INITIALIZE_PER_GB_S * _gigabytes(weights_bytes)
    return min(INITIALIZE_BASE_S + loading_s + warmup_s, INITIALIZE_MAX_S)


def _wake_s(weights_bytes: int | None) -> float:
    if weights_bytes is None:
        return UNKNOWN_WEIGHTS_S
    return min(WAKE_BASE_S + WAKE_PER_GB_S * _gigabytes(weights_bytes), WAKE_MAX_S)


def _gigabytes(weights_bytes: int) -> int:
    return max(1, math.ceil(weights_bytes / _DECIMAL_GB))
