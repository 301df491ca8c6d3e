"""TLS over a polled socket, with the polled socket's surface: who relays does not see a difference.

The TLS session works in memory and ciphertext is received and sent here, so many records cost one
system call and readiness stays the poller's. An end without a close_notify is a failure, never an
end: `close` sends none, and `end_sending` says it where nothing is cut off by it.
"""

from __future__ import annotations

import contextlib
import errno
import os
import socket
import ssl
from collections.abc import Callable, Sequence

from capyctl.dataplane.poller import Callback, PolledSocket

RAW_BYTES = 64 * 1024
"""Ciphertext received at once."""
RECORD_MAX = 16 * 1024
SEND_MAX = 256 * 1024
"""Plaintext that is enciphered at once; more waits for what is enciphered to be sent."""
ALERT = "ALERT"
"""In the reason of an error that the peer told us of."""


class TlsSocket:
    """A polled socket under TLS. Say `shake_hands` first; then use it as the plain one.

    ``server_name``: whom a client means; None makes it the server's side.

    Attributes:
        holds_back: ciphertext waits for the kernel; `on_writable` is called when it is sent.
        declined: the peer ended it in order, or refused it by an alert.
        hung_up: nothing more will come; reading goes on until it returns ``b""`` or raises.
        ssl: the session, for a look at the peer's certificate.
    """

    __slots__ = (
        "_failure",
        "_incoming",
        "_left_over",
        "_on_done",
        "_outgoing",
        "_polled",
        "_raw_ended",
        "_raw_recv",
        "_raw_send",
        "_read",
        "_unsent",
        "_write",
        "declined",
        "fd",
        "holds_back",
        "hung_up",
        "on_readable",
        "on_writable",
        "socket",
        "ssl",
    )

    def __init__(
        self, polled: PolledSocket, context: ssl.SSLContext, *, server_name: str | None = None
    ) -> None:
        self._polled = polled
        self._incoming = ssl.MemoryBIO()
        self._outgoing = ssl.MemoryBIO()
        self.ssl = context.wrap_bio(
            self._incoming,
            self._outgoing,
            server_side=server_name is None,
            server_hostname=server_name,
        )
        self._read, self._write = self.ssl.read, self.ssl.write
        self._raw_recv, self._raw_send = polled.recv, polled.send
        self.socket = polled.socket
        self.fd = polled.fd
        self.hung_up = False
        self.holds_back = False
        self.declined = False
        self.on_readable: Callback | None = None
        self.on_writable: Callback | None = None
        self._left_over = False
        """A record may have been read in part only."""
        self._raw_ended = False
        self._failure: OSError | None = None
        self._unsent = memoryview(b"")
        self._on_done: Callable[[str | None], None] | None = None
        polled.on_readable = self._raw_readable
        polled.on_writable = self._raw_writable

    def shake_hands(self, on_done: Callable[[str | None], None]) -> None:
        """Begin; ``on_done`` is called once, maybe before this returns: with None, or with why not.

        Nothing bounds the time; close it to give up.
        """
        self._on_done = on_done
        self._shake()

    def recv(self, count: int) -> bytes:
        """Less than ``count`` bytes only when the socket is drained or `hung_up`; maybe a little
        more. ``b""`` is the end that the peer has said.

        Raises:
            BlockingIOError: nothing is there.
            OSError: it broke, or was cut off.
        """
        parts: list[bytes] = []
        total = 0
        if self._left_over:
            self._left_over = False
            total = self._decipher(parts)
        while total < count and not self._raw_ended:
            try:
                drained = self._receive()
            except BlockingIOError:
                break
            total += self._decipher(parts)
            if drained:
                break
        if total:
            return parts[0] if len(parts) == 1 else b"".join(parts)
        return self._nothing()

    def recv_into(self, space: memoryview) -> int:
        """Up to one record; 0 is the end that the peer has said. Raises as `recv`."""
        count = len(space)
        while True:
            if self._left_over or self._incoming.pending:
                taken = self._read_into(count, space)
                self._left_over = taken == count
                if taken:
                    return taken
            if self._raw_ended:
                return len(self._nothing())
            self._receive()

    def send(self, data: bytes | memoryview) -> int:
        """Encipher and send; how much was taken. What the kernel has not taken yet is held back.

        Raises:
            BlockingIOError: what was taken before is held back still.
            OSError: the connection is broken.
        """
        if self.holds_back:
            raise BlockingIOError
        if not data:
            return 0
        if len(data) > SEND_MAX:
            data = memoryview(data)[:SEND_MAX]
        try:
            taken = self._write(data)
        except ssl.SSLError as error:
            raise _broken(error) from None
        ciphertext = self._outgoing.read()
        try:
            sent = self._raw_send(ciphertext)
        except BlockingIOError:
            sent = 0
        if sent < len(ciphertext):
            self._unsent = memoryview(ciphertext)[sent:]
            self.holds_back = True
        return taken

    def sendmsg(self, parts: Sequence[memoryview]) -> int:
        """As `send`, of several parts."""
        taken = 0
        for part in parts:
            if self.holds_back and taken:
                break
            now = self.send(part)
            taken += now
            if now < len(part):
                break
        return taken

    def end_sending(self) -> None:
        """Say that nothing more comes. Call it only where that is true and all was sent."""
        # An error here is the peer's own end, which is still to come.
        with contextlib.suppress(ssl.SSLError):
            self.ssl.unwrap()
        with contextlib.suppress(OSError):
            self._flush()
            self.socket.shutdown(socket.SHUT_WR)

    def close(self) -> None:
        """Close it without a word: the peer takes what it has for cut off."""
        self._polled.close()
        self.fd = -1
        self.on_readable = self.on_writable = self._on_done = None

    def shut_down(self) -> None:
        """As `PolledSocket.shut_down`."""
        self._polled.shut_down()

    def _raw_readable(self) -> None:
        if self._on_done is not None:
            self._shake()
            return
        if self._polled.hung_up:
            self.hung_up = True
        if self.on_readable is not None:
            self.on_readable()

    def _raw_writable(self) -> None:
        if not self.holds_back:
            return
        try:
            self._flush()
        except OSError as error:
            self._fail(error)
            if self.on_readable is not None:
                self.on_readable()
            return
        if not self.holds_back and self.on_writable is not None:
            self.on_writable()

    def _shake(self) -> None:
        why: str | None = None
        try:
            if not self._step():
                return
        except ssl.SSLError as error:
            with contextlib.suppress(OSError):
                self._flush()
            why = f"the TLS handshake failed: {_told(error)}"
        except OSError as error:
            why = f"the connection broke in the TLS handshake: {error.strerror}"
        on_done, self._on_done = self._on_done, None
        if on_done is not None:
            on_done(why)

    def _step(self) -> bool:
        """One step of the handshake; false when the peer is to go on."""
        while True:
            try:
                drained = self._receive()
            except BlockingIOError:
                drained = True
            try:
                self.ssl.do_handshake()
            except ssl.SSLWantReadError:
                self._flush()
                if self._raw_ended:
                    raise ConnectionAbortedError(errno.ECONNABORTED, "it was closed") from None
                if drained:
                    return False
            else:
                self._flush()
                self._left_over = True
                return True

    def _receive(self) -> bool:
        """Ciphertext from the kernel, once. True when it has no more now."""
        try:
            data = self._raw_recv(RAW_BYTES)
        except BlockingIOError:
            raise
        except OSError as error:
            self._fail(error)
            return True
        if not data:
            self._raw_ended = self.hung_up = True
            return True
        self._incoming.write(data)
        return len(data) < RAW_BYTES and not self._polled.hung_up

    def _decipher(self, parts: list[bytes]) -> int:
        """All that is in memory; how many bytes were added to ``parts``."""
        total = 0
        incoming = self._incoming
        try:
            while True:
                data = self._read(RECORD_MAX)
                if not data:
                    self._end_in_order()
                    break
                parts.append(data)
                total += len(data)
                if not incoming.pending:
                    break
        except ssl.SSLWantReadError:
            pass
        except ssl.SSLError as error:
            self._take_error(error)
        if self._outgoing.pending:
            self._answer_peer()
        return total

    def _read_into(self, count: int, space: memoryview) -> int:
        try:
            taken: int = self._read(count, space)  # type: ignore[assignment]  # stub of bytes
        except ssl.SSLWantReadError:
            return 0
        except ssl.SSLError as error:
            self._take_error(error)
            return 0
        if not taken:
            self._end_in_order()
        if self._outgoing.pending:
            self._answer_peer()
        return taken

    def _take_error(self, error: ssl.SSLError) -> None:
        if isinstance(error, ssl.SSLZeroReturnError):
            self._end_in_order()
            return
        if ALERT in (error.reason or ""):
            self.declined = True
        self._fail(_broken(error))

    def _end_in_order(self) -> None:
        self.declined = self.hung_up = self._raw_ended = True

    def _answer_peer(self) -> None:
        """A change of keys is answered by TLS itself."""
        try:
            self._flush()
        except OSError as error:
            self._fail(error)

    def _fail(self, error: OSError) -> None:
        if self._failure is None:
            self._failure = error
        self._raw_ended = self.hung_up = True

    def _nothing(self) -> bytes:
        if self._failure is not None:
            raise self._failure
        if not self._raw_ended:
            raise BlockingIOError
        if not self.declined:
            raise ConnectionAbortedError(errno.ECONNABORTED, "it was cut off without an end")
        return b""

    def _flush(self) -> None:
        """Send what is enciphered, as far as the kernel takes it."""
        data: bytes | memoryview = self._unsent
        if self._outgoing.pending:
            fresh = self._outgoing.read()
            data = bytes(data) + fresh if data else fresh
        if not data:
            return
        try:
            sent = self._raw_send(data)
        except BlockingIOError:
            sent = 0
        self._unsent = memoryview(data)[sent:]
        self.holds_back = sent < len(data)


Wire = PolledSocket | TlsSocket
"""A socket to relay over."""


def _told(error: ssl.SSLError) -> str:
    return (error.reason or str(error)).lower().replace("_", " ")


def _broken(error: ssl.SSLError) -> OSError:
    """Its number is no errno of the system's."""
    problem = OSError(errno.EPROTO, f"{os.strerror(errno.EPROTO)}: {_told(error)}")
    problem.__cause__ = error
    return problem
