"""A listener: accepts connections, behind TLS or not, and serves each in a task of its own."""

from __future__ import annotations

import errno
import math
import socket
from collections.abc import Callable

import trio

from capyctl.dataplane.client import Client
from capyctl.dataplane.connection import Connection
from capyctl.dataplane.doors import Door
from capyctl.dataplane.handshake import Handshake
from capyctl.dataplane.plane import Plane
from capyctl.dataplane.poller import PolledSocket
from capyctl.dataplane.pool import notice_vanishing
from capyctl.dataplane.public import PublicDoor
from capyctl.dataplane.serving import Serving, begin_serving
from capyctl.dataplane.tls import ListenerTls
from capyctl.dataplane.tls_socket import TlsSocket, Wire
from capyctl.domain.ids import HostId

BACKLOG = 2048
ACCEPTS_MAX = 64
"""Accepted before other sockets get their turn."""
REFUSED_MAX = 64
"""Connections above the cap that still get an answer; more are closed at once."""
HANDSHAKES_MAX = 256
"""Peers at a time of whom nothing is known yet; for one more, the oldest is closed. The server is
known within milliseconds, so it gets in however many hold a connection and say nothing."""
RETRY_S = 0.1
_NO_ROOM = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})


def bind(host: str, port: int) -> socket.socket:
    """A listening socket on a literal address; port 0 takes any.

    Raises:
        OSError: the address cannot be had.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listening = socket.socket(family, socket.SOCK_STREAM)
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind((host, port))
        listening.listen(BACKLOG)
    except OSError:
        listening.close()
        raise
    return listening


async def serve(
    where: socket.socket | tuple[str, int],
    plane: Plane,
    *,
    door: Door | None = None,
    tls: ListenerTls | None = None,
    task_status: trio.TaskStatus[tuple[str, int]] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Serve inference requests until cancelled; then every connection is closed.

    ``where`` is a listening socket, which is closed at the end, or an address to bind. The
    address served is reported as started. ``door``: the inference endpoint's, when not given.
    ``tls``: nobody is listened to who is not accepted by it.

    Raises:
        OSError: the address cannot be had.
    """
    listening = bind(*where) if isinstance(where, tuple) else where
    with listening:
        serving = begin_serving(plane, PublicDoor(plane) if door is None else door)
        try:
            async with trio.open_nursery() as nursery:
                acceptor = Acceptor(serving, nursery, serving.poller.add(listening), tls)
                plane.state.listeners[acceptor] = None
                acceptor.begin()
                nursery.start_soon(serving.poller.run)
                nursery.start_soon(serving.alarms.run)
                host, port = listening.getsockname()[:2]
                task_status.started((host, port))
        finally:
            plane.state.listeners.pop(acceptor, None)
            serving.poller.close()


class Acceptor:
    """Takes connections from a listening socket, as many as are allowed."""

    __slots__ = (
        "_connections",
        "_handshakes",
        "_nursery",
        "_serving",
        "_socket",
        "_tls",
        "armed_s",
    )

    def __init__(
        self,
        serving: Serving,
        nursery: trio.Nursery,
        listening: PolledSocket,
        tls: ListenerTls | None,
    ) -> None:
        self._serving = serving
        self._nursery = nursery
        self._socket = listening
        self._tls = tls
        self._handshakes: dict[Handshake, None] = {}
        self._connections: dict[Connection, Wire] = {}
        self.armed_s = math.inf

    def begin(self) -> None:
        self._socket.on_readable = self._accept
        self._accept()

    def on_alarm(self, now_s: float) -> float:
        self._accept()
        return math.inf

    def _accept(self) -> None:
        serving = self._serving
        for _ in range(ACCEPTS_MAX):
            try:
                raw, _address = self._socket.socket.accept()
            except BlockingIOError:
                return
            except OSError as error:
                if error.errno in _NO_ROOM:
                    serving.alarms.arm(self, trio.current_time() + RETRY_S)
                    return
                continue
            self._take(raw)
        serving.poller.call_again(self._accept)

    def close_host(self, host: HostId) -> None:
        self._serving.pool.close_host(host)

    def drop(self, keeps: Callable[[Wire], bool]) -> int:
        """End all handshakes, and every connection that ``keeps`` does not hold; how many."""
        for handshake in list(self._handshakes):
            handshake.give_up()
        dropped = [c for c, wire in self._connections.items() if not keeps(wire)]
        for connection in dropped:
            connection.drop()
        return len(dropped)

    def _take(self, raw: socket.socket) -> None:
        serving, count = self._serving, len(self._connections)
        count_max = serving.plane.limits.connections_max
        is_public = serving.door.is_public
        if count >= count_max + (REFUSED_MAX if is_public else 0):
            raw.close()
            return
        try:
            raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if not is_public:
                notice_vanishing(raw)
            polled = serving.poller.add(raw)
        except OSError:
            raw.close()  # gone already, or the kernel watches no more sockets for us
            return
        if self._tls is None:
            self._welcome(polled, over_cap=count >= count_max)
        else:
            if len(self._handshakes) >= HANDSHAKES_MAX:
                next(iter(self._handshakes)).give_up()
            self._greet(polled, self._tls)

    def _greet(self, polled: PolledSocket, tls: ListenerTls) -> None:
        def known(secured: TlsSocket | None) -> None:
            self._handshakes.pop(handshake, None)
            if secured is not None:
                self._welcome(secured, over_cap=False)

        try:
            handshake = Handshake(self._serving.alarms, polled, tls, known)
        except (OSError, ValueError):
            polled.close()  # without a context that can be trusted, nobody is let in
            return
        self._handshakes[handshake] = None
        handshake.begin()

    def _welcome(self, wire: Wire, *, over_cap: bool) -> None:
        serving = self._serving
        limits = serving.plane.limits
        client = Client(wire, serving.poller, serving.alarms, serving.heads, limits)
        connection = Connection(serving, client, over_cap=over_cap)
        self._connections[connection] = wire
        self._nursery.start_soon(self._serve, connection)

    async def _serve(self, connection: Connection) -> None:
        try:
            await connection.run()
        finally:
            del self._connections[connection]
