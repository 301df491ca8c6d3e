"""The inference listener: accepts connections and serves each in a task of its own."""

from __future__ import annotations

import errno
import math
import socket

import trio

from capyctl.dataplane.client import Client
from capyctl.dataplane.connection import Connection
from capyctl.dataplane.plane import Plane
from capyctl.dataplane.poller import PolledSocket
from capyctl.dataplane.serving import Serving, begin_serving

BACKLOG = 2048
ACCEPTS_MAX = 64
"""Accepted before other sockets get their turn."""
REFUSED_MAX = 64
"""Connections above the cap that still get an answer; more are closed at once."""
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
    task_status: trio.TaskStatus[tuple[str, int]] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Serve inference requests until cancelled; then every connection is closed.

    ``where`` is a listening socket, which is closed at the end, or an address to bind. The
    address served is reported as started.

    Raises:
        OSError: the address cannot be had.
    """
    listening = bind(*where) if isinstance(where, tuple) else where
    with listening:
        serving = begin_serving(plane)
        try:
            async with trio.open_nursery() as nursery:
                Acceptor(serving, nursery, serving.poller.add(listening)).begin()
                nursery.start_soon(serving.poller.run)
                nursery.start_soon(serving.alarms.run)
                host, port = listening.getsockname()[:2]
                task_status.started((host, port))
        finally:
            serving.poller.close()


class Acceptor:
    """Takes connections from a listening socket, as many as are allowed."""

    __slots__ = ("_count", "_nursery", "_serving", "_socket", "armed_s")

    def __init__(self, serving: Serving, nursery: trio.Nursery, listening: PolledSocket) -> None:
        self._serving = serving
        self._nursery = nursery
        self._socket = listening
        self._count = 0
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

    def _take(self, raw: socket.socket) -> None:
        serving, limits = self._serving, self._serving.plane.limits
        over_cap = self._count >= limits.connections_max
        if self._count >= limits.connections_max + REFUSED_MAX:
            raw.close()
            return
        try:
            raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            polled = serving.poller.add(raw)
        except OSError:
            raw.close()  # gone already, or the kernel watches no more sockets for us
            return
        client = Client(polled, serving.poller, serving.alarms, serving.heads, limits)
        self._count += 1
        self._nursery.start_soon(self._serve, Connection(serving, client, over_cap=over_cap))

    async def _serve(self, connection: Connection) -> None:
        try:
            await connection.run()
        finally:
            self._count -= 1
