"""A cable between two ports on loopback, which a test pulls out and puts in again."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Iterator

import attrs

PIECE_BYTES = 1 << 16


@attrs.define(eq=False)
class Cable:
    """Carries every connection to its port over to another. Pulled out, it ends those that are
    open, and each new one at once."""

    to: tuple[str, int]
    near: socket.socket = attrs.field(factory=lambda: socket.create_server(("127.0.0.1", 0)))
    taken_count: int = 0
    """Connections that came, also while it was out."""
    _is_out: bool = False
    _open: set[socket.socket] = attrs.field(factory=set)
    _lock: threading.Lock = attrs.field(factory=threading.Lock)

    @property
    def port(self) -> int:
        return int(self.near.getsockname()[1])

    def pull_out(self) -> None:
        with self._lock:
            self._is_out = True
            for end in self._open:
                with contextlib.suppress(OSError):
                    end.shutdown(socket.SHUT_RDWR)

    def put_in(self) -> None:
        with self._lock:
            self._is_out = False

    def serve(self) -> None:
        while True:
            try:
                near, _ = self.near.accept()
            except OSError:
                return
            threading.Thread(target=self._carry, args=(near,), daemon=True).start()

    def _carry(self, near: socket.socket) -> None:
        with near, contextlib.suppress(OSError), socket.create_connection(self.to) as far:
            with self._lock:
                self.taken_count += 1
                if self._is_out:
                    return
                self._open |= {near, far}
            back = threading.Thread(target=_pump, args=(far, near), daemon=True)
            back.start()
            _pump(near, far)
            back.join()
            with self._lock:
                self._open -= {near, far}


def _pump(source: socket.socket, sink: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while piece := source.recv(PIECE_BYTES):
            sink.sendall(piece)
    for end in (source, sink):
        with contextlib.suppress(OSError):
            end.shutdown(socket.SHUT_RDWR)


@contextlib.contextmanager
def cable(to: tuple[str, int]) -> Iterator[Cable]:
    """One that is in; gone at the end of the block."""
    made = Cable(to)
    server = threading.Thread(target=made.serve, daemon=True)
    server.start()
    try:
        yield made
    finally:
        made.pull_out()
        made.near.shutdown(socket.SHUT_RDWR)
        made.near.close()
        server.join(10)
