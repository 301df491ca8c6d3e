"""Fresh ULIDs for answers, and which request ids of clients are echoed."""

from __future__ import annotations

import re
import secrets
import time

_ALPHABET = b"0123456789ABCDEFGHJKMNPQRSTVWXYZ"
_PAIRS = tuple(bytes((high, low)) for high in _ALPHABET for low in _ALPHABET)
_COUNTER_BITS = 20
_CLIENT_ID = re.compile(rb"[\x21-\x7e]{1,128}")


class RequestIds:
    """Makes ULIDs that rise. Their random part is drawn once and counted up from there."""

    __slots__ = ("_counter", "_now_ms", "_prefix", "_random")

    def __init__(self) -> None:
        self._now_ms = -1
        self._prefix = b""
        self._random = _encode(secrets.randbits(60), 6)
        self._counter = secrets.randbits(_COUNTER_BITS - 1)

    def fresh(self) -> bytes:
        """The 26 characters of a ULID never given before."""
        counter = self._counter
        now_ms = time.time_ns() // 1_000_000
        if now_ms > self._now_ms:
            self._now_ms = now_ms
            self._prefix = _encode(now_ms, 5) + self._random
        if counter >> _COUNTER_BITS:
            counter = 0
            self._now_ms += 1
            self._prefix = _encode(self._now_ms, 5) + self._random
        self._counter = counter + 1
        return self._prefix + _PAIRS[counter >> 10 & 1023] + _PAIRS[counter & 1023]


def _encode(value: int, pair_count: int) -> bytes:
    """``value`` as base 32, two characters a pair, highest first."""
    pairs = [_PAIRS[value >> 10 * place & 1023] for place in range(pair_count - 1, -1, -1)]
    return b"".join(pairs)


def echoed(value: bytes | None) -> bytes | None:
    """A client's ``X-Request-Id`` when it is 1 to 128 printable ASCII characters without spaces.

    Any other value is left out of answers and logs.
    """
    return value if value is not None and _CLIENT_ID.fullmatch(value) else None
