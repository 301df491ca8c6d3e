"""One text for one JSON value: what is stored, compared and hashed."""

from __future__ import annotations

import json

_ENCODER = json.JSONEncoder(
    sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False
)


def canonical_json(value: object) -> str:
    """``value`` as JSON with sorted keys, no spaces, and characters as they are.

    Raises:
        TypeError: something in it is no JSON value.
        ValueError: it holds a NaN or an infinity, or contains itself.
    """
    return _ENCODER.encode(value)
