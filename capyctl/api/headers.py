"""Request headers as they came: repeated ones are told apart from joined ones."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import TypeAlias

from capyctl.domain.errors import Refused

RawHeaders: TypeAlias = Iterable[tuple[bytes, bytes]]
KEY_BYTES_MAX = 256
_JSON_TYPES = (b"application/json", b"application/json; charset=utf-8")
_CONTROL = re.compile(rb"[\x00-\x1f\x7f]")


def values_of(headers: RawHeaders, name: bytes) -> list[bytes]:
    """Every value sent under ``name`` (lower case), in order."""
    return [value for key, value in headers if key.lower() == name]


def read_idempotency_key(headers: RawHeaders) -> str:
    """The key of a change.

    Returns:
        One character for each byte: keys are compared, not read.

    Raises:
        Refused: ``invalid_request``, for none, two, a blank or too long one, or control
            characters.
    """
    sent = values_of(headers, b"idempotency-key")
    if len(sent) != 1:
        raise Refused(
            "invalid_request", f"A change needs exactly one Idempotency-Key header, not {len(sent)}"
        )
    key = sent[0]
    if not key.strip() or len(key) > KEY_BYTES_MAX or _CONTROL.search(key) is not None:
        raise Refused(
            "invalid_request",
            f"The Idempotency-Key must have 1 to {KEY_BYTES_MAX} characters, not all spaces, "
            "and no control characters",
        )
    return key.decode("latin-1")


def check_json_body(headers: RawHeaders) -> None:
    """One JSON content type and no content encoding. Raises Refused(``invalid_request``)."""
    types = values_of(headers, b"content-type")
    if len(types) != 1 or types[0].lower() not in _JSON_TYPES:
        raise Refused(
            "invalid_request", "A change needs exactly one Content-Type header: application/json"
        )
    if values_of(headers, b"content-encoding"):
        raise Refused("invalid_request", "A change's body must be sent without Content-Encoding")
