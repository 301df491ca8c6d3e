"""A client's connection: its requests read, its answers written, its leaving noticed at once."""

from __future__ import annotations

import math
import socket
import struct
from collections.abc import Callable

import trio

from capyctl.dataplane.alarms import Alarms
from capyctl.dataplane.head_cache import HeadCache
from capyctl.dataplane.heads import BadHead
from capyctl.dataplane.parking import Bell
from capyctl.dataplane.plane import Limits
from capyctl.dataplane.poller import Poller
from capyctl.dataplane.reading import RequestReader
from capyctl.dataplane.tls_socket import Wire

RECV_BYTES = 256 * 1024
KEPT_MAX = 64 * 1024
"""Bytes of later requests that are read while one is answered."""
LINGER_BYTES_MAX = 64 * 1024 * 1024
PUT_OFF_MAX = 16 * 1024
"""Larger pieces are sent at once, so that a slow client holds its engine up."""
_RESET_ON_CLOSE = struct.pack("ii", 1, 0)


def _never(_: float) -> float:
    return math.inf


def _ring() -> bool:
    return False


class Client:
    """One connection. Callbacks fill it in and ring its bell; one task reads it.

    Attributes:
        gone: why nothing can reach the client any more (``closed``, ``stalled``), else None.
        bad: what came is no request; nothing more is read.
        look: asked at each alarm for the next time to be looked at; set by the current phase.
        on_news: told when a head or a request is complete; true when that is all taken care of.
        on_lost: told once when `gone` is set; on_drained: when all that was pushed is sent.
    """

    __slots__ = (
        "_alarms",
        "_head_timeout_s",
        "_limits",
        "_poller",
        "_put_off",
        "_unread",
        "_unsent",
        "armed_s",
        "bad",
        "begun_s",
        "bell",
        "gone",
        "last_byte_s",
        "look",
        "on_drained",
        "on_lost",
        "on_news",
        "reader",
        "socket",
        "stall_s",
    )

    def __init__(
        self,
        wire: Wire,
        poller: Poller,
        alarms: Alarms,
        heads: HeadCache,
        limits: Limits,
    ) -> None:
        self.socket = wire
        self.bell = Bell()
        self.reader = RequestReader(
            heads,
            head_bytes_max=limits.head_bytes_max,
            body_bytes_max=limits.body_bytes_max,
        )
        self.gone: str | None = None
        self.bad: BadHead | None = None
        self.begun_s = poller.now_s
        """When the present wait, or the present request, began."""
        self.last_byte_s = poller.now_s
        self.look: Callable[[float], float] = _never
        self.on_lost: Callable[[], None] | None = None
        self.on_drained: Callable[[], None] | None = None
        self.on_news: Callable[[], bool] = _ring
        self.stall_s = math.inf
        self.armed_s = math.inf
        self._poller = poller
        self._alarms = alarms
        self._limits = limits
        self._head_timeout_s = limits.head_timeout_s
        self._unsent: memoryview | None = None
        self._put_off: bytes | None = None
        self._unread = True

    @property
    def is_blocked(self) -> bool:
        """Something pushed is still unsent."""
        return self._unsent is not None

    def arm(self, when_s: float) -> None:
        """Be looked at no later than then."""
        if when_s < self.armed_s:
            self._alarms.arm(self, when_s)

    def on_alarm(self, now_s: float) -> float:
        next_s = math.inf
        if self._unsent is not None:
            if now_s >= self.stall_s:
                self.lose("stalled")
            else:
                next_s = self.stall_s
        return min(next_s, self.look(now_s))

    def begin_reading(self) -> None:
        """Read the next request: first what was kept, then what the socket has."""
        self.begun_s = self.last_byte_s = self._poller.now_s
        self.socket.on_readable = self._read
        try:
            self.reader.next()
        except BadHead as error:
            self.bad = error
            return
        if self._has_news():
            self._tell_news()
        elif self._unread or self.socket.hung_up:
            self._read()

    def begin_answering(self) -> None:
        """A request is complete: from now on watch for the client's leaving."""
        self.socket.on_readable = self._overhear
        if self._unread or self.socket.hung_up:
            self._overhear()

    def push(self, data: bytes) -> bool:
        """Send; what does not fit is kept and sent later. False when something is kept.

        What is lost with the client counts as sent.
        """
        if self._unsent is not None:
            self._unsent = memoryview(bytes(self._unsent) + data)
            return False
        if self._put_off is not None:
            self._put_off += data
            return True
        if len(data) > PUT_OFF_MAX:
            return self._send(data)
        self._put_off = data
        self._poller.put_off(self._send_put_off)
        return self._unsent is None

    def _send_put_off(self) -> None:
        data, self._put_off = self._put_off, None
        if data is not None and self.gone is None:
            self._send(data)

    def _send(self, data: bytes) -> bool:
        try:
            sent = self.socket.send(data)
        except BlockingIOError:
            sent = 0
        except OSError:
            self.lose("closed")
            return True
        if sent == len(data) and not self.socket.holds_back:
            return True
        self._unsent = memoryview(data)[sent:]
        self.stall_s = trio.current_time() + self._limits.client_stall_max_s
        self.arm(self.stall_s)
        self.socket.on_writable = self._send_more
        return False

    async def flush(self) -> None:
        """Wait until all is sent, or the client is gone."""
        while self._unsent is not None and self.gone is None:
            await self.bell.wait()

    def lose(self, why: str) -> None:
        """The client is not there any more. The first reason stands."""
        if self.gone is not None:
            return
        self.gone = why
        self._unsent = None
        self.socket.on_writable = None
        if self.on_lost is not None:
            self.on_lost()
        self.bell.ring()

    def close(self, *, reset: bool = False) -> None:
        """Close it. ``reset``: so that the client cannot take what it has for an end."""
        self._alarms.disarm(self)
        self._send_put_off()
        if reset and self.socket.fd >= 0:
            self.socket.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET_ON_CLOSE)
        self.socket.close()

    async def linger(self) -> None:
        """Send the end of our side and read the client's, within bounds, so that it is not reset
        before it has read its answer."""
        await self.flush()
        if self.gone is not None:
            return
        self.socket.end_sending()
        end_s = trio.current_time() + self._limits.linger_s
        left = [LINGER_BYTES_MAX]
        self.look = lambda now_s: self._end_linger() if now_s >= end_s else end_s
        self.arm(end_s)
        self.socket.on_readable = lambda: self._discard(left)
        self._discard(left)
        while self.gone is None:
            await self.bell.wait()

    def _end_linger(self) -> float:
        self.lose("closed")
        return math.inf

    def _discard(self, left: list[int]) -> None:
        try:
            while data := self.socket.recv(RECV_BYTES):
                left[0] -= len(data)
                if left[0] <= 0:
                    break
        except BlockingIOError:
            return
        except OSError:
            pass
        self.lose("closed")

    def _tell_news(self) -> None:
        if not self.on_news():
            self.bell.ring()

    def _has_news(self) -> bool:
        reader = self.reader
        return reader.complete or reader.stopped

    def _read(self) -> None:
        reader = self.reader
        self._unread = True
        had_head = reader.head is not None
        try:
            while not (reader.complete or reader.stopped):
                if not self._read_once():
                    self._unread = False
                    break
        except BlockingIOError:
            self._unread = False
        except OSError:
            self.lose("closed")
        except BadHead as error:
            self.bad = error
            self.socket.on_readable = None
            self.bell.ring()
            return
        self.last_byte_s = self._poller.now_s
        if self._has_news() or (reader.head is not None and not had_head):
            self._tell_news()

    def _read_once(self) -> bool:
        """True when more may be there."""
        reader = self.reader
        if not reader.begun:
            self.begun_s = self._poller.now_s
            self.arm(self.begun_s + self._head_timeout_s)
        space = reader.space()
        if space is None:
            data = self.socket.recv(RECV_BYTES)
            count = len(data)
            if count:
                reader.feed(data)
            full = count >= RECV_BYTES
        else:
            count = self.socket.recv_into(space)
            reader.filled(count)
            full = True
        if count == 0:
            self.lose("closed")
            return False
        return full or self.socket.hung_up

    def _overhear(self) -> None:
        self._unread = True
        if self.reader.kept_count > KEPT_MAX:
            if self.socket.hung_up:
                self.lose("closed")
            return
        try:
            while data := self.socket.recv(RECV_BYTES):
                self.reader.keep(data)
                if len(data) < RECV_BYTES and not self.socket.hung_up:
                    self._unread = False
                    return
                if self.reader.kept_count > KEPT_MAX:
                    return
        except BlockingIOError:
            self._unread = False
            return
        except OSError:
            pass
        self.lose("closed")

    def _send_more(self) -> None:
        unsent = self._unsent
        if unsent is None:
            return
        try:
            sent = self.socket.send(unsent)
        except BlockingIOError:
            return
        except OSError:
            self.lose("closed")
            return
        if sent < len(unsent) or self.socket.holds_back:
            self._unsent = unsent[sent:]
            self.stall_s = self._poller.now_s + self._limits.client_stall_max_s
            return
        self._unsent = None
        self.socket.on_writable = None
        if self.on_drained is not None:
            self.on_drained()
        self.bell.ring()
