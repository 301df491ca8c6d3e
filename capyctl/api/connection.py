"""One client's connection: HTTP/1.1 by Hypercorn, and never longer than the client takes part.

Hypercorn's own connection would wait without end for a client that does not read, answer
broken HTTP without a body, and switch to WebSocket or HTTP/2 past the application.
"""

from __future__ import annotations

import contextlib
import re

import h11
import trio
from hypercorn.config import Config
from hypercorn.events import Closed, Event, RawData, Updated
from hypercorn.protocol.h11 import H11Protocol
from hypercorn.trio.task_group import TaskGroup
from hypercorn.trio.worker_context import TrioSingleTask, WorkerContext
from hypercorn.typing import AppWrapper, ConnectionState
from hypercorn.utils import parse_socket_addr

from capyctl.api.exchange import ALWAYS
from capyctl.api.limits import Limits
from capyctl.domain.errors import Refused
from capyctl.wire.errors import error_json

READ_BYTES = 64 * 1024
PIECE_BYTES = 64 * 1024
"""A piece this large must be taken within the limit; a whole answer may take longer."""


_HEAD_END = re.compile(rb"\n\r?\n")
_LENGTH = re.compile(rb"\ncontent-length:[ \t]*([^\r\n]*)", re.I)
_CODING = re.compile(rb"\ntransfer-encoding:", re.I)
_AMBIGUOUS = re.compile(rb"(?<!\r)\n|\n[ \t]")
"""A line that ends without CR, and one that goes on in the next."""


class _Http1(h11.Connection):
    """Speaks HTTP/1.0 and 1.1 and does not hear a wish for anything else.

    h11 is lenient where two readers could see different ends of a request. Nobody who speaks to
    this API has to be met half way, so what could be read in two ways is refused.
    """

    def next_event(self) -> h11.Event | type[h11.NEED_DATA] | type[h11.PAUSED]:
        received = self.trailing_data[0] if self.their_state is h11.IDLE else b""
        event = super().next_event()
        if not isinstance(event, h11.Request):
            return event
        if event.http_version not in (b"1.0", b"1.1"):
            raise h11.RemoteProtocolError("not HTTP/1", error_status_hint=400)
        _check_framing(received, event.http_version)
        headers = [(name, value) for name, value in event.headers if name != b"upgrade"]
        return h11.Request(
            method=event.method,
            target=event.target,
            headers=headers,
            http_version=event.http_version,
        )


def _check_framing(received: bytes, http_version: bytes) -> None:
    """``received`` begins with a complete head. Raises h11.RemoteProtocolError."""
    end = _HEAD_END.search(received)
    assert end is not None, "a request without the end of its head"
    head = received[: end.end()]
    lengths = _LENGTH.findall(head)
    coded = _CODING.search(head) is not None
    if _AMBIGUOUS.search(head) is not None:
        raise h11.RemoteProtocolError("a line of the head is ambiguous", error_status_hint=400)
    if len(lengths) > 1 or any(not length.strip().isdigit() for length in lengths):
        raise h11.RemoteProtocolError("not one Content-Length", error_status_hint=400)
    if coded and (lengths or http_version != b"1.1"):
        raise h11.RemoteProtocolError("a length beside an encoding", error_status_hint=400)


class _Protocol(H11Protocol):
    """Hypercorn's, with an error body for what is no HTTP."""

    async def _send_error_response(self, status_code: int) -> None:
        body = error_json(Refused("invalid_request", "The request is not valid HTTP/1.1"))
        headers = [
            *ALWAYS,
            (b"content-type", b"application/json"),
            (b"content-length", str(len(body)).encode()),
            (b"connection", b"close"),
        ]
        try:
            data = self.connection.send(h11.Response(status_code=400, headers=headers)) or b""
            data += self.connection.send(h11.Data(data=body)) or b""
            data += self.connection.send(h11.EndOfMessage()) or b""
        except h11.LocalProtocolError:
            return  # an answer is under way: nothing can be said beside it
        await self.send(RawData(data=data))


class Connection:
    """Serves one stream until either side closes it."""

    def __init__(
        self,
        stream: trio.SocketStream,
        app: AppWrapper,
        config: Config,
        context: WorkerContext,
        limits: Limits,
    ) -> None:
        self._stream = stream
        self._app = app
        self._config = config
        self._context = context
        self._limits = limits
        self._sending = trio.Lock()
        self._idle = TrioSingleTask()
        self._tasks = TaskGroup()
        self._protocol: _Protocol

    async def run(self) -> None:
        """Returns when the connection is over. Cancelling closes it."""
        try:
            socket = self._stream.socket
            client = parse_socket_addr(socket.family, socket.getpeername())
            server = parse_socket_addr(socket.family, socket.getsockname())
            async with self._tasks as tasks:
                self._protocol = _Protocol(
                    self._app,
                    self._config,
                    self._context,
                    tasks,
                    ConnectionState({}),
                    False,
                    client,
                    server,
                    self._send,
                )
                incomplete_bytes_max = self._config.h11_max_incomplete_size
                self._protocol.connection = _Http1(
                    h11.SERVER, max_incomplete_event_size=incomplete_bytes_max
                )
                await self._idle.restart(tasks, self._close_when_idle)
                await self._read()
                await self._idle.stop()
        except OSError:
            pass  # the client is gone
        finally:
            self.abort()

    def abort(self) -> None:
        """Close at once; whoever reads or sends finds out."""
        self._stream.socket.close()

    async def _read(self) -> None:
        while True:
            try:
                data = await self._stream.receive_some(READ_BYTES)
            except (trio.ClosedResourceError, trio.BrokenResourceError):
                break
            await self._protocol.handle(RawData(bytes(data)))
            if not data:
                break
        await self._protocol.handle(Closed())

    async def _send(self, event: Event) -> None:
        if isinstance(event, RawData):
            async with self._sending:
                if not await self._send_pieces(event.data):
                    self.abort()
                    await self._protocol.handle(Closed())
        elif isinstance(event, Closed):
            await self._close()
            await self._protocol.handle(Closed())
        elif isinstance(event, Updated):
            if event.idle:
                await self._idle.restart(self._tasks, self._close_when_idle)
            else:
                await self._idle.stop()

    async def _send_pieces(self, data: bytes) -> bool:
        """False when the client is gone, or did not take a piece in time."""
        view = memoryview(data)
        for start in range(0, len(view), PIECE_BYTES):
            # A piece cut short by a cancel would spoil the stream, so that only time may end it.
            with trio.move_on_after(self._limits.send_s_max, shield=True) as taking:
                try:
                    await self._stream.send_all(view[start : start + PIECE_BYTES])
                except (trio.BrokenResourceError, trio.ClosedResourceError):
                    return False
                except trio.BusyResourceError:
                    return False  # the connection is closing: its end is on its way
            if taking.cancelled_caught:
                return False
        return True

    async def _close(self) -> None:
        """First the end of what we send, so that the client reads all of it."""
        gone = (trio.BrokenResourceError, trio.BusyResourceError, trio.ClosedResourceError)
        with contextlib.suppress(*gone):
            await self._stream.send_eof()
        self.abort()

    async def _close_when_idle(self) -> None:
        with trio.move_on_after(self._limits.idle_s_max):
            await self._context.terminated.wait()
        with trio.CancelScope(shield=True):
            await self._protocol.handle(Closed())
            self.abort()
