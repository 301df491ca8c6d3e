"""One persistent edge-triggered epoll for all client and engine sockets of a run.

Readiness goes to callbacks, so relaying a chunk switches no task and calls no ``epoll_ctl``.
Made inside the process that uses it: a fork would share the epoll's events.
"""

from __future__ import annotations

import contextlib
import select
import socket
from collections.abc import Callable
from typing import ClassVar

import trio

EVENTS = select.EPOLLIN | select.EPOLLOUT | select.EPOLLRDHUP | select.EPOLLET
READABLE = select.EPOLLIN | select.EPOLLRDHUP | select.EPOLLHUP | select.EPOLLERR
WRITABLE = select.EPOLLOUT | select.EPOLLHUP | select.EPOLLERR
HUNG_UP = select.EPOLLRDHUP | select.EPOLLHUP | select.EPOLLERR
BATCH_MAX = 512
SENDS_MAX = 8
"""Sends that are put off together: each wakes its peer, but in a row they wake it once."""

Callback = Callable[[], None]


class PolledSocket:
    """A non-blocking socket in the poller. Readiness is told once a change: read until it blocks.

    Attributes:
        on_readable, on_writable: called from the poller; None ignores the event.
        hung_up: the peer has sent its last byte; reading goes on until it returns ``b""``.
    """

    __slots__ = (
        "_poller",
        "fd",
        "hung_up",
        "on_readable",
        "on_writable",
        "recv",
        "recv_into",
        "send",
        "sendmsg",
        "socket",
    )

    holds_back: ClassVar[bool] = False
    declined: ClassVar[bool] = False
    """For those that keep what was sent, or are told of an end; see `tls_socket.TlsSocket`."""

    def __init__(self, poller: Poller, raw: socket.socket) -> None:
        raw.setblocking(False)
        self.socket = raw
        self.fd = raw.fileno()
        self.recv = raw.recv
        self.recv_into = raw.recv_into
        self.send = raw.send
        self.sendmsg = raw.sendmsg
        self.hung_up = False
        self.on_readable: Callback | None = None
        self.on_writable: Callback | None = None
        self._poller = poller

    def close(self) -> None:
        """Close it; a second time does nothing."""
        if self.fd >= 0:
            self._poller.forget(self)
            self.fd = -1
            self.on_readable = self.on_writable = None

    def end_sending(self) -> None:
        """Tell the peer that nothing more comes."""
        with contextlib.suppress(OSError):
            self.socket.shutdown(socket.SHUT_WR)

    def shut_down(self) -> None:
        """Make it end for its owner: everything that is read from it from now on is the end."""
        if self.fd >= 0:
            with contextlib.suppress(OSError):
                self.socket.shutdown(socket.SHUT_RDWR)


class Poller:
    """Owns the epoll. `run` serves events until it is cancelled; `close` frees it.

    An exception of a callback goes to ``on_bug``; if that returns, the socket is shut down, so
    that its owner sees it end, and the others go on.
    """

    __slots__ = (
        "_again",
        "_closing",
        "_dispatching",
        "_epoll",
        "_on_bug",
        "_sends",
        "_sockets",
        "now_s",
    )

    def __init__(self, on_bug: Callable[[Exception], None]) -> None:
        self._on_bug = on_bug
        self._epoll = select.epoll()
        self._sockets: dict[int, PolledSocket] = {}
        self._again: list[Callback] = []
        self._sends: list[Callback] = []
        self._closing: list[socket.socket] = []
        self._dispatching = False
        self.now_s = trio.current_time()
        """The run's clock when the present batch of events or alarms began; for callbacks."""

    def tick(self) -> float:
        """Read the clock into `now_s`."""
        self.now_s = trio.current_time()
        return self.now_s

    def add(self, raw: socket.socket) -> PolledSocket:
        polled = PolledSocket(self, raw)
        self._epoll.register(polled.fd, EVENTS)
        self._sockets[polled.fd] = polled
        return polled

    def forget(self, polled: PolledSocket) -> None:
        """For `PolledSocket.close`. In the middle of a batch the descriptor is freed at its end,
        so that no event of the batch reaches another socket of the same number."""
        del self._sockets[polled.fd]
        if self._dispatching:
            self._closing.append(polled.socket)
        else:
            polled.socket.close()

    def call_again(self, callback: Callback) -> None:
        """Call it in the next batch: for work that is cut short so that others get their turn."""
        self._again.append(callback)

    def put_off(self, send: Callback) -> None:
        """Have ``send`` called within this batch, at once when no batch is being served."""
        if not self._dispatching:
            send()
            return
        self._sends.append(send)
        if len(self._sends) >= SENDS_MAX:
            self._send()

    def _send(self) -> None:
        while self._sends:
            sends, self._sends = self._sends, []
            for send in sends:
                try:
                    send()
                except Exception as error:
                    self._on_bug(error)

    async def run(self) -> None:
        clock_now = trio.lowlevel.current_clock().current_time
        poll, fd = self._epoll.poll, self._epoll.fileno()
        while True:
            if self._again:
                await trio.lowlevel.checkpoint()
            else:
                await trio.lowlevel.wait_readable(fd)
            self.now_s = clock_now()
            self._dispatching = True
            try:
                self._dispatch(poll(0, BATCH_MAX))
                self._send()
            finally:
                self._end_batch()

    def close(self) -> None:
        for polled in list(self._sockets.values()):
            polled.close()
        self._epoll.close()

    def _dispatch(self, events: list[tuple[int, int]]) -> None:
        if self._again:
            again, self._again = self._again, []
            for callback in again:
                try:
                    callback()
                except Exception as error:
                    self._on_bug(error)
        get = self._sockets.get
        for fd, event in events:
            polled = get(fd)
            if polled is None:
                continue
            try:
                if event & READABLE:
                    if event & HUNG_UP:
                        polled.hung_up = True
                    if polled.on_readable is not None:
                        polled.on_readable()
                if event & WRITABLE and polled.on_writable is not None:
                    polled.on_writable()
            except Exception as error:
                self._on_bug(error)
                polled.shut_down()

    def _end_batch(self) -> None:
        self._dispatching = False
        if self._closing:
            for raw in self._closing:
                raw.close()
            self._closing.clear()
