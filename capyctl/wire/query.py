"""Query strings, strictly: known keys, each once, escapes that decode, a plus that is a plus."""

from __future__ import annotations

import re
from collections.abc import Collection
from urllib.parse import unquote_to_bytes

from capyctl.domain.errors import Refused

_BROKEN_ESCAPE = re.compile(r"%(?![0-9A-Fa-f]{2})")


def percent_decoded(text: str) -> str:
    """``text`` with its escapes decoded as UTF-8.

    Raises:
        ValueError: an escape is cut short, or the bytes are no UTF-8.
    """
    if _BROKEN_ESCAPE.search(text) is not None:
        raise ValueError("broken percent-escape")
    return unquote_to_bytes(text).decode()


def read_query(
    raw: bytes, allowed: Collection[str], *, code: str = "invalid_request"
) -> dict[str, str]:
    """The values by key; empty without a query.

    Raises:
        Refused: ``code``, for an unknown or repeated key, one without ``=``, or a broken escape.
    """
    fields: dict[str, str] = {}
    if not raw:
        return fields
    for part in raw.decode("latin-1").split("&"):
        name, equals, value = part.partition("=")
        try:
            key, decoded = percent_decoded(name), percent_decoded(value)
        except ValueError as problem:
            raise Refused(code, "The query holds a broken percent-escape") from problem
        if not equals or key not in allowed:
            raise Refused(code, _allowed_text(allowed))
        if key in fields:
            raise Refused(code, f"The query names {key} twice")
        fields[key] = decoded
    return fields


def _allowed_text(allowed: Collection[str]) -> str:
    if not allowed:
        return "This request takes no query"
    return f"The query may only hold {', '.join(sorted(allowed))}, each as key=value"
