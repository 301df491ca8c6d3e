"""What browsers are told about pages of other origins that use the inference endpoint. Pure.

Nothing unless origins are allowed. Credentials are never allowed: a key goes in a header that the
page sets itself, so no page acts with what a browser keeps.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

import attrs

ANY = "*"
PREFLIGHT_AGE_S = 600
_NAMES = re.compile(rb"[A-Za-z0-9-]{1,64}(?:[ \t]*,[ \t]*[A-Za-z0-9-]{1,64}){0,63}")
_ALWAYS = b"authorization, content-type, x-api-key, x-request-id, x-capyctl-metrics"
_EXPOSED = b"retry-after, x-capyctl-request-id, x-capyctl-timing, x-request-id"


@attrs.frozen(kw_only=True)
class Cors:
    """Pages of which origins may read answers."""

    origins: frozenset[str]
    """As browsers send them, ``https://chat.example.org``; `ANY` for all."""

    def lines(self, headers: Mapping[bytes, bytes]) -> bytes:
        """The header lines of every answer to a request with these headers (lower-case names)."""
        if ANY in self.origins:
            return b"Access-Control-Allow-Origin: *\r\nAccess-Control-Expose-Headers: %b\r\n" % (
                _EXPOSED
            )
        origin = self._allowed(headers)
        if origin is None:
            return b"Vary: Origin\r\n"
        return (
            b"Access-Control-Allow-Origin: %b\r\nAccess-Control-Expose-Headers: %b\r\n"
            b"Vary: Origin\r\n"
        ) % (origin, _EXPOSED)

    def preflight(self, method: bytes, headers: Mapping[bytes, bytes]) -> bytes | None:
        """More lines for the answer to a preflight; None when it is none, or not allowed."""
        asks = b"access-control-request-method" in headers
        if method != b"OPTIONS" or not asks or self._allowed(headers) is None:
            return None
        wanted = headers.get(b"access-control-request-headers", b"").strip()
        names = wanted if _NAMES.fullmatch(wanted) else _ALWAYS
        return (
            b"Access-Control-Allow-Methods: GET, HEAD, POST\r\n"
            b"Access-Control-Allow-Headers: %b\r\nAccess-Control-Max-Age: %d\r\n"
        ) % (names, PREFLIGHT_AGE_S)

    def _allowed(self, headers: Mapping[bytes, bytes]) -> bytes | None:
        origin = headers.get(b"origin")
        if origin is None:
            return None
        allowed = ANY in self.origins or origin.decode("latin-1") in self.origins
        return origin if allowed else None
