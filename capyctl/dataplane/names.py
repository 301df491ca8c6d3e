"""Addresses of machines that are known by name; looked up in a thread, and kept for a moment."""

from __future__ import annotations

import errno
import ipaddress
import socket

import attrs
import trio

KEPT_S = 10.0
KEPT_MAX = 1024


@attrs.frozen(kw_only=True)
class _Found:
    address: str
    until_s: float


class Names:
    """Only asked when a connection is made, and never for engines of this machine."""

    __slots__ = ("_found",)

    def __init__(self) -> None:
        self._found: dict[str, _Found] = {}

    async def address(self, host: str) -> str:
        """The literal address of ``host``, which may be one already.

        Cancelling abandons the look-up.

        Raises:
            OSError: nobody knows it.
        """
        try:
            ipaddress.ip_address(host)
        except ValueError:
            pass
        else:
            return host
        now_s = trio.current_time()
        kept = self._found.get(host)
        if kept is not None and kept.until_s > now_s:
            return kept.address
        try:
            found = await trio.socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
        except UnicodeError:
            raise OSError(errno.EINVAL, "the name of the machine is none") from None
        if not found:
            raise OSError(errno.EHOSTUNREACH, f"the name {host} has no address")
        address = str(found[0][4][0])
        if len(self._found) >= KEPT_MAX:
            self._found.clear()
        self._found[host] = _Found(address=address, until_s=now_s + KEPT_S)
        return address
