"""Who may ask: loopback ``Host`` values only, then the admin token. Both before anything else."""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
import re
from collections.abc import Iterable

from capyctl.api.headers import RawHeaders, values_of
from capyctl.domain.errors import Refused

_TOKEN = re.compile(rb"[A-Za-z0-9._~+/=-]{32,256}")
_AUTHORIZATION = re.compile(rb"Bearer (" + _TOKEN.pattern + rb")")
_LOOPBACK_6 = ipaddress.IPv6Address("::1")
_HOST = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9.-]+)(?::[0-9]{0,5})?")


class AdminToken:
    """The one credential of the management API; only its digest is kept."""

    def __init__(self, token: str, *, others: Iterable[str] = ()) -> None:
        """``others`` are credentials that must not open this API, such as the inference key.

        Raises:
            ValueError: the token is malformed, or is one of the others.
        """
        if _TOKEN.fullmatch(token.encode()) is None:
            raise ValueError(
                "the admin token must have 32 to 256 characters out of A-Z a-z 0-9 . _ ~ + / = -"
            )
        if token in others:
            raise ValueError("the admin token and the inference key must be different")
        self._digest = _digest(token.encode())

    def check(self, headers: RawHeaders) -> None:
        """Exactly one ``Authorization: Bearer <token>``, one space. Raises Refused otherwise."""
        sent = values_of(headers, b"authorization")
        found = _AUTHORIZATION.fullmatch(sent[0]) if len(sent) == 1 else None
        presented = _digest(b"" if found is None else found[1])
        if not hmac.compare_digest(presented, self._digest):
            raise Refused("unauthenticated", "Management authentication required")

    def __repr__(self) -> str:
        return "<AdminToken>"


def check_host(headers: RawHeaders) -> None:
    """Refuses what a web page could make a browser send: any ``Host`` that is not loopback."""
    hosts = values_of(headers, b"host")
    if len(hosts) != 1 or not is_loopback_host(hosts[0].decode("latin-1")):
        raise Refused(
            "forbidden",
            "The management API answers for loopback hosts only: use localhost, 127.0.0.1 or [::1]",
        )


def is_loopback_host(host: str) -> bool:
    """Whether ``host``, with a port or without, is ``localhost`` or a loopback address."""
    found = _HOST.fullmatch(host)
    if found is None:
        return False
    if found[1].lower() == "localhost":
        return True
    try:
        address = ipaddress.ip_address(found[1].strip("[]"))
    except ValueError:
        return False
    is_bracketed = found[1].startswith("[")
    if isinstance(address, ipaddress.IPv6Address):
        return is_bracketed and address == _LOOPBACK_6
    return not is_bracketed and address.is_loopback


def _digest(token: bytes) -> bytes:
    return hashlib.sha256(token).digest()
