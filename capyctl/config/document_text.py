"""Documents as text that is equal exactly when they are."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any


def canonical(value: object) -> str:
    """Compact JSON with sorted keys: the order and spacing of what was sent do not show."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False)


def parse_canonical(text: str) -> Mapping[str, Any]:
    """A completed document back from its own canonical text."""
    found = json.loads(text)
    assert isinstance(found, dict)
    return found
