"""Fresh ULIDs for request identities. The library for them takes longer to load than a command."""

from __future__ import annotations

import os
import re

_ALPHABET = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"
_CANONICAL = re.compile(r"[0-7][0-9A-HJKMNP-TV-Z]{25}")
_RANDOM_BYTES = 10


def new_ulid(at_ms: int) -> str:
    """26 characters: 48 bits of Unix time in milliseconds, then 80 random ones."""
    value = at_ms << (8 * _RANDOM_BYTES) | int.from_bytes(os.urandom(_RANDOM_BYTES), "big")
    return "".join(_ALPHABET[value >> shift & 31] for shift in range(125, -1, -5))


def is_ulid(text: str) -> bool:
    """Whether it is one in canonical upper case."""
    return _CANONICAL.fullmatch(text) is not None
