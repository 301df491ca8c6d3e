"""One connection to an engine, or to the ingress of the machine that the engine runs on."""

from __future__ import annotations

import errno
import socket
from collections.abc import Callable, Hashable

from capyctl.dataplane.bodies import Body
from capyctl.dataplane.poller import PolledSocket, Poller
from capyctl.dataplane.tls import HostTls
from capyctl.dataplane.tls_socket import TlsSocket, Wire
from capyctl.domain.launches import Endpoint

JOINED_MAX = 16 * 1024
"""Bodies up to here are copied behind their head: cheaper than sending two pieces."""
_RESETS = frozenset({errno.EPIPE, errno.ECONNRESET})


class EngineLink:
    """One connection to one engine, or to the ingress of the machine it runs on.

    Attributes:
        connected: false until a connect that could not finish at once has, TLS and the look at
            the peer's certificate included.
        error: why connecting or sending failed, as an errno; 0 while nothing did.
        used_count: answers that it has brought.
    """

    __slots__ = (
        "_on_change",
        "_poller",
        "_request",
        "_tls",
        "_unsent",
        "_was_cut",
        "connected",
        "drop",
        "endpoint",
        "error",
        "idle_since_s",
        "owner",
        "socket",
        "used_count",
    )

    def __init__(
        self,
        poller: Poller,
        polled: PolledSocket,
        owner: Hashable,
        endpoint: Endpoint,
        tls: HostTls | None = None,
    ) -> None:
        self.socket: Wire = polled
        self._poller = poller
        self._tls = tls
        self._request = b""
        self._was_cut = False
        """It broke before all of a request was given to the kernel."""
        self.owner = owner
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
        return not self._unsent and not self._request and not self.socket.holds_back

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
        its side refused bytes of it.

        Between machines a reset proves nothing, since others than the peer send them; an end in
        order does, for an ingress says one only where it has taken nothing.
        """
        if self.endpoint.ingress is not None:
            unsent = bool(self._request) or self._was_cut or not self.all_sent
            return unsent or self.socket.declined
        if not self.used_count:
            return False
        if self._request or self.error in _RESETS:
            return True
        return self.socket.socket.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR) in _RESETS

    def begin(self, *, connected: bool) -> None:
        """Go on when TCP stands: now, or when the socket says so. Sets `connected` or `error`."""
        if connected:
            self._tcp_stands()
        else:
            self.socket.on_writable = self._tcp_ended

    def watch_connect(self, on_change: Callable[[], None]) -> None:
        """Have ``on_change`` called when `connected` or `error` is set."""
        self._on_change = on_change

    def close(self) -> None:
        self._unsent = []
        self._on_change = None
        self.socket.close()

    def _tcp_ended(self) -> None:
        self.socket.on_writable = None
        code = self.socket.socket.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        if code:
            self._settle(code)
        else:
            self._tcp_stands()

    def _tcp_stands(self) -> None:
        """TLS, and whose certificate it is, where that is asked for."""
        tls, ingress, wire = self._tls, self.endpoint.ingress, self.socket
        if tls is None or ingress is None or isinstance(wire, TlsSocket):
            self._settle(0)
            return
        host = ingress.host
        self.socket = secured = TlsSocket(wire, tls.context(), server_name=tls.name(host))

        def ended(why: str | None) -> None:
            is_met = why is None and tls.accepts(secured.ssl, host)
            self._settle(0 if is_met else errno.EACCES)

        secured.shake_hands(ended)

    def _settle(self, code: int) -> None:
        self.error = code
        self.connected = not code
        if self._on_change is not None:
            self._on_change()

    def _send_more(self) -> None:
        unsent = self._unsent
        try:
            while unsent:
                sent = self.socket.sendmsg(unsent)
                while unsent and sent >= len(unsent[0]):
                    sent -= len(unsent.pop(0))
                if unsent and sent:
                    unsent[0] = unsent[0][sent:]
        except BlockingIOError:
            self.socket.on_writable = self._send_more
            return
        except OSError as error:
            self.error = error.errno or errno.EIO
            self._was_cut = True
            self._unsent = []
            self.socket.on_writable = None
            if self.socket.on_readable is not None:
                self.socket.on_readable()
            return
        self.socket.on_writable = None
