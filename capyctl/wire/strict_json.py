"""JSON as the management API takes it: one value, no key twice, nothing that only Python reads."""

from __future__ import annotations

import json
import math
import re
from typing import Any, NoReturn

from capyctl.domain.errors import Refused

BODY_MAX_BYTES = 1 << 20
NESTING_MAX = 128
_SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")


def read_json(body: bytes, *, bytes_max: int = BODY_MAX_BYTES) -> object:
    """One JSON value of UTF-8 text.

    Refused are a key twice in one object (compared after unescaping), NaN and infinities
    (also by overflow, ``1e999``), unpaired surrogates, anything after the value, and more
    than 128 levels of arrays and objects.

    Raises:
        Refused: ``body_too_large`` above ``bytes_max`` bytes, else ``invalid_request``.
            The message says what is wrong, never what was written.
    """
    if len(body) > bytes_max:
        raise Refused("body_too_large", f"The body has more than {bytes_max} bytes")
    try:
        text = body.decode()
        value = json.loads(
            text,
            object_pairs_hook=_unique,
            parse_float=_finite,
            parse_constant=_refuse_constant,
        )
        if _SURROGATE.search(text) is not None:
            json.dumps(value, ensure_ascii=False).encode()
    except UnicodeError as problem:
        raise Refused("invalid_request", "The body is not UTF-8 text") from problem
    except _Refusal as problem:
        raise Refused("invalid_request", f"The body is not strict JSON: {problem}") from problem
    except ValueError as problem:
        raise Refused("invalid_request", "The body is not one JSON value") from problem
    except RecursionError as problem:
        raise _too_deep() from problem
    _check_nesting(value)
    return value


class _Refusal(ValueError):
    """Says in its own words what is not strict."""


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    fields = dict(pairs)
    if len(fields) != len(pairs):
        raise _Refusal("an object has the same key twice")
    return fields


def _finite(digits: str) -> float:
    number = float(digits)
    if not math.isfinite(number):
        raise _Refusal("a number is too large")
    return number


def _refuse_constant(name: str) -> NoReturn:
    raise _Refusal(f"{name} is not a number of JSON")


def _check_nesting(value: object) -> None:
    """Level by level, so that no depth of nesting costs Python stack."""
    level = [value]
    for _ in range(NESTING_MAX):
        level = [child for parent in level for child in _children(parent)]
        if not level:
            return
    raise _too_deep()


def _children(value: object) -> list[Any]:
    if isinstance(value, dict):
        inner = list(value.values())
    elif isinstance(value, list):
        inner = value
    else:
        return []
    return [child for child in inner if isinstance(child, dict | list)]


def _too_deep() -> Refused:
    return Refused("invalid_request", f"The body is nested more than {NESTING_MAX} levels deep")
