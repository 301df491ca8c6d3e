"""Bytes and seconds, from and to the text that people write."""

from __future__ import annotations

import math
import re

KIB = 1 << 10
MIB = 1 << 20
GIB = 1 << 30
TIB = 1 << 40

_SIZES = {"B": 1, "KiB": KIB, "MiB": MIB, "GiB": GIB, "TiB": TIB}
_DURATIONS_S = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}
_NUMBER_AND_UNIT = re.compile(r"([0-9]+(?:\.[0-9]+)?)\s*([A-Za-z]+)")


def parse_bytes(text: str) -> int:
    """Bytes of a size such as ``12GiB`` or ``512 MiB``; fractions are rounded down.

    Raises:
        ValueError: not a number followed by B, KiB, MiB, GiB or TiB, or one without end.
    """
    return math.floor(_parse(text, _SIZES))


def parse_duration_s(text: str) -> float:
    """Seconds of a duration such as ``30s`` or ``250ms``.

    Raises:
        ValueError: not a number followed by ms, s, m or h.
    """
    return _parse(text, _DURATIONS_S)


def _parse(text: str, units: dict[str, int] | dict[str, float]) -> float:
    found = _NUMBER_AND_UNIT.fullmatch(text.strip())
    if found is None or found.group(2) not in units:
        raise ValueError(f"expected a number and one of {', '.join(units)}")
    value = float(found.group(1)) * units[found.group(2)]
    if not math.isfinite(value):
        raise ValueError("the number is too large to be one")
    return value


def gib(value_bytes: int) -> str:
    """``13.2 GiB``: one decimal, as every figure that people see."""
    return f"{value_bytes / GIB:.1f} GiB"
