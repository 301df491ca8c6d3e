"""Connections to engines: opened without blocking, kept for a moment, reused only when whole."""

from __future__ import annotations

import errno
import functools
import os
import socket
from collections.abc import Callable

from capyctl.dataplane.alarms import Alarms
from capyctl.dataplane.bodies import Body
from capyctl.dataplane.poller import PolledSocket, Poller
from capyctl.domain.launches import Endpoint
from capyctl.gates.gate import Gate
from capyctl.gates.lease import Lease

JOINED_MAX = 16 * 1024
"""Bodies up to here are copied behind their head: cheaper than sending two pieces."""
_RESETS = frozenset({errno.EPIPE, errno.ECONNRESET})


class EngineLink:
    """One connection to one engine.

    Attributes:
        connected: false until a connect that could not finish at once has.
        error: why connecting or sending failed, as an errno; 0 while nothing did.
        used_count: answers that it has brought.
    """

    __slots__ = (
        "_on_change",
        "_poller",
        "_request",
        "_unsent",
        "connected",
        "drop",
        "endpoint",
        "error",
        "gate",
        "idle_since_s",
        "socket",
        "used_count",
    )

    def __init__(
        self, poller: Poller, polled: PolledSocket, gate: Gate, endpoint: Endpoint
    ) -> None:
        self.socket = polled
        self._poller = poller
        self._request = b""
        self.gate = gate
        self.endpoint = endpoint
        self.connected = False
        self.drop: Callable[[], None] | None = None
        """What an event means while the connection is idle; set by the pool."""
        self.error = 0
        self.used_count = 0
        self.idle_since_s = 0.0
        self._unsent: list[memoryview] = []
        self._on_change: Callable[[], None] | None = None

    @property
    def all_sent(self) -> bool:
        return not self._unsent and not self._request

    def send(self, head: bytes, body: Body) -> None:
        """Send a request; what does not fit now goes when the engine takes it.

        A failure is noted in `error` and told like any event of the connection.
        """
        if len(body) <= JOINED_MAX:
            self._request = head + body
            self._poller.put_off(self._send_whole)
        else:
            self._unsent = [memoryview(head), memoryview(body)]
            self._send_more()

    def _send_whole(self) -> None:
        request, self._request = self._request, b""
        if self.socket.fd < 0:
            return
        try:
            sent = self.socket.send(request)
        except OSError:
            sent = 0
        if sent < len(request):
            self._unsent = [memoryview(request)[sent:]]
            self._send_more()

    def is_unread(self) -> bool:
        """Whether the engine has surely not read the request: it closed before it was sent, or
        its side refused bytes of it."""
        if self._request or self.error in _RESETS:
            return True
        return self.socket.socket.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR) in _RESETS

    def watch_connect(self, on_change: Callable[[], None]) -> None:
        """Have ``on_change`` called when `connected` or `error` is set."""
        self._on_change = on_change
        self.socket.on_writable = self._connect_ended

    def close(self) -> None:
        self._unsent = []
        self._on_change = None
        self.socket.close()

    def _connect_ended(self) -> None:
        self.error = self.socket.socket.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        self.connected = not self.error
        self.socket.on_writable = None
        if self._on_change is not None:
            self._on_change()

    def _send_more(self) -> None:
        unsent = self._unsent
        try:
            while unsent:
                sent = self.socket.socket.sendmsg(unsent)
                while unsent and sent >= len(unsent[0]):
                    sent -= len(unsent.pop(0))
                if unsent and sent:
                    unsent[0] = unsent[0][sent:]
        except BlockingIOError:
            self.socket.on_writable = self._send_more
            return
        except OSError as error:
            self.error = error.errno or errno.EIO
            self._unsent = []
            self.socket.on_writable = None
            if self.socket.on_readable is not None:
                self.socket.on_readable()
            return
        self.socket.on_writable = None


class EnginePool:
    """Idle connections by gate, newest first. One that says anything while idle is closed."""

    __slots__ = ("_alarms", "_count", "_count_max", "_idle", "_idle_max_s", "_poller", "armed_s")

    def __init__(
        self, poller: Poller, alarms: Alarms, *, idle_max_s: float, count_max: int
    ) -> None:
        self._poller = poller
        self._alarms = alarms
        self._idle_max_s = idle_max_s
        self._count_max = count_max
        self._idle: dict[Gate, list[EngineLink]] = {}
        self._count = 0
        self.armed_s = float("inf")

    @property
    def idle_count(self) -> int:
        return self._count

    def take(self, lease: Lease) -> EngineLink | None:
        """An idle connection to the lease's engine, or None."""
        links = self._idle.get(lease.gate)
        while links:
            link = links.pop()
            self._count -= 1
            link.socket.on_readable = None
            young = self._poller.now_s - link.idle_since_s <= self._idle_max_s
            if young and link.endpoint is lease.endpoint and not link.socket.hung_up:
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
        self._idle.setdefault(link.gate, []).append(link)
        self._count += 1
        if now_s + self._idle_max_s < self.armed_s:
            self._alarms.arm(self, now_s + self._idle_max_s)

    def open(self, lease: Lease) -> EngineLink:
        """Begin a connection; `connected` says whether it is there already.

        Raises:
            OSError: refused at once, or no descriptor is left.
        """
        endpoint = lease.endpoint
        family = socket.AF_INET6 if ":" in endpoint.host else socket.AF_INET
        raw = socket.socket(family, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
        try:
            raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            code = raw.connect_ex((endpoint.host, endpoint.port))
            if code not in (0, errno.EINPROGRESS):
                raise OSError(code, os.strerror(code))
            link = EngineLink(self._poller, self._poller.add(raw), lease.gate, endpoint)
        except OSError:
            raw.close()
            raise
        link.connected = code == 0
        link.drop = functools.partial(self._drop, link)
        return link

    def on_alarm(self, now_s: float) -> float:
        """Close what has been idle too long."""
        next_s = float("inf")
        for gate in list(self._idle):
            links = self._idle[gate]
            while links and now_s - links[0].idle_since_s >= self._idle_max_s:
                self._count -= 1
                links.pop(0).close()
            if links:
                next_s = min(next_s, links[0].idle_since_s + self._idle_max_s)
            else:
                del self._idle[gate]
        return next_s

    def _drop(self, link: EngineLink) -> None:
        self._idle[link.gate].remove(link)
        self._count -= 1
        link.close()
