"""Connections to engines: opened without blocking, kept for a moment, reused only when whole."""

from __future__ import annotations

import errno
import functools
import os
import socket
from collections.abc import Hashable

from capyctl.dataplane.alarms import Alarms
from capyctl.dataplane.engine_link import EngineLink
from capyctl.dataplane.names import Names
from capyctl.dataplane.poller import Poller
from capyctl.dataplane.tls import HostTls
from capyctl.domain.ids import HostId
from capyctl.domain.launches import Endpoint

INGRESS_IDLE_MAX_S = 30.0
"""Unused connections to other machines; shorter than an ingress keeps them."""
UNACKNOWLEDGED_MS_MAX = 30_000
KEEPALIVE = ((socket.TCP_KEEPIDLE, 15), (socket.TCP_KEEPINTVL, 5), (socket.TCP_KEEPCNT, 3))
"""Seconds, and a count: a machine that vanished is noticed within half a minute."""


def notice_vanishing(raw: socket.socket) -> None:
    """Have a connection between machines end when the other one is not there any more.

    Raises:
        OSError: the socket is gone already.
    """
    raw.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in KEEPALIVE:
        raw.setsockopt(socket.IPPROTO_TCP, option, value)
    raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, UNACKNOWLEDGED_MS_MAX)


class EnginePool:
    """Idle connections by whom they serve, newest first: a gate, a launch, or a whole host.

    One that says anything while idle is closed. ``hosts_tls``: None where no engine is reached
    through an ingress under TLS.
    """

    __slots__ = (
        "_alarms",
        "_count",
        "_count_max",
        "_hosts_tls",
        "_idle",
        "_idle_max_s",
        "_poller",
        "armed_s",
        "names",
    )

    def __init__(
        self,
        poller: Poller,
        alarms: Alarms,
        *,
        idle_max_s: float,
        count_max: int,
        hosts_tls: HostTls | None = None,
    ) -> None:
        self._poller = poller
        self._alarms = alarms
        self._idle_max_s = idle_max_s
        self._count_max = count_max
        self._hosts_tls = hosts_tls
        self._idle: dict[Hashable, list[EngineLink]] = {}
        self._count = 0
        self.armed_s = float("inf")
        self.names = Names()

    @property
    def idle_count(self) -> int:
        return self._count

    def take(self, owner: Hashable, endpoint: Endpoint) -> EngineLink | None:
        """An idle connection to the engine, or None. ``owner`` is its gate or launch."""
        if endpoint.ingress is not None:
            owner = endpoint.ingress.host
        links = self._idle.get(owner)
        while links:
            link = links.pop()
            self._count -= 1
            link.socket.on_readable = None
            young = self._poller.now_s - link.idle_since_s <= self._idle_bound_s(link)
            if young and not link.socket.hung_up and _leads_to(link, endpoint):
                link.endpoint = endpoint
                return link
            link.close()
        return None

    def give(self, link: EngineLink) -> None:
        """Keep a connection whose last answer was complete, to the byte."""
        if self._count >= self._count_max or link.socket.hung_up:
            link.close()
            return
        now_s = self._poller.now_s
        link.used_count += 1
        link.idle_since_s = now_s
        link.socket.on_readable = link.drop
        self._idle.setdefault(link.owner, []).append(link)
        self._count += 1
        end_s = now_s + self._idle_bound_s(link)
        if end_s < self.armed_s:
            self._alarms.arm(self, end_s)

    def open(self, owner: Hashable, endpoint: Endpoint, address: str) -> EngineLink:
        """Begin a connection; `connected` says whether it is there already.

        ``address``: of the endpoint's host, a literal one.

        Raises:
            OSError: refused at once, or no descriptor is left.
        """
        ingress = endpoint.ingress
        tls = self._hosts_tls if ingress is not None and ingress.secure else None
        if ingress is not None and ingress.secure and tls is None:
            raise OSError(errno.EPROTO, "no certificate to show to other machines")
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        raw = socket.socket(family, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
        try:
            raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if ingress is not None:
                owner = ingress.host
                notice_vanishing(raw)
            code = raw.connect_ex((address, endpoint.port))
            if code not in (0, errno.EINPROGRESS):
                raise OSError(code, os.strerror(code))
            link = EngineLink(self._poller, self._poller.add(raw), owner, endpoint, tls)
        except OSError:
            raw.close()
            raise
        link.drop = functools.partial(self._drop, link)
        link.begin(connected=code == 0)
        return link

    def close_host(self, host: HostId) -> None:
        """Close the idle connections to a host's ingress."""
        for link in self._idle.pop(host, ()):
            self._count -= 1
            link.close()

    def on_alarm(self, now_s: float) -> float:
        """Close what has been idle too long."""
        next_s = float("inf")
        for owner in list(self._idle):
            links = self._idle[owner]
            while links and now_s - links[0].idle_since_s >= self._idle_bound_s(links[0]):
                self._count -= 1
                links.pop(0).close()
            if links:
                next_s = min(next_s, links[0].idle_since_s + self._idle_bound_s(links[0]))
            else:
                del self._idle[owner]
        return next_s

    def _idle_bound_s(self, link: EngineLink) -> float:
        return self._idle_max_s if link.endpoint.ingress is None else INGRESS_IDLE_MAX_S

    def _drop(self, link: EngineLink) -> None:
        self._idle[link.owner].remove(link)
        self._count -= 1
        link.close()


def _leads_to(link: EngineLink, endpoint: Endpoint) -> bool:
    """An engine's connection belongs to one launch, an ingress's to all launches of its host."""
    known = link.endpoint
    if known is endpoint:
        return True
    if known.ingress is None or endpoint.ingress is None:
        return False
    return (known.host, known.port, known.ingress.secure) == (
        endpoint.host,
        endpoint.port,
        endpoint.ingress.secure,
    )
