"""A small HTTP/1.1 server for simulated engines: whole requests in, answers or streams out."""

from __future__ import annotations

import json
import socket
from collections.abc import Awaitable, Callable, Mapping
from http import HTTPStatus
from typing import Any
from urllib.parse import parse_qs

import h11
import trio

HEAD_BYTES_MAX = 65_536
BODY_BYTES_MAX = 64 << 20
_READ_BYTES = 65_536

Headers = list[tuple[str, str]]


class HungUp(Exception):
    """The client closed the connection."""


class Exchange:
    """One request and the answer to it. One task answers; ``hung_up`` is set by another."""

    def __init__(
        self, request: h11.Request, body: bytes, send: Callable[[h11.Event], Awaitable[None]]
    ) -> None:
        target = request.target.decode("latin-1")
        self.method = request.method.decode()
        self.path, _, query = target.partition("?")
        self.query: dict[str, list[str]] = parse_qs(query, keep_blank_values=True)
        self.headers = {name.decode(): value.decode("latin-1") for name, value in request.headers}
        self.body = body
        self.hung_up = trio.Event()
        self.status = 0
        """Of the answer; 0 until it began."""
        self.is_cut = False
        self._send = send

    def json(self) -> Any:
        """Raises:
        ValueError: the body is not JSON.
        """
        try:
            return json.loads(self.body)
        except RecursionError as error:
            raise ValueError("nested too deeply") from error

    async def reply(self, status: int, body: bytes, headers: Headers) -> None:
        """The whole answer at once. Nothing happens if the client is gone."""
        length = [] if status == 204 else [("content-length", str(len(body)))]
        await self._head(status, headers + length)
        if body:
            await self._event(h11.Data(data=body))
        await self._event(h11.EndOfMessage())

    async def open_stream(self, status: int, headers: Headers) -> None:
        """The head of an answer whose end is not known yet."""
        await self._head(status, [*headers, ("transfer-encoding", "chunked")])

    async def send(self, piece: bytes) -> None:
        """One piece of a stream. Nothing happens if the client is gone."""
        await self._event(h11.Data(data=piece))

    async def close_stream(self) -> None:
        await self._event(h11.EndOfMessage())

    def cut(self) -> None:
        """Close the connection where it is, so that the client sees the answer break off."""
        self.is_cut = True

    async def _head(self, status: int, headers: Headers) -> None:
        self.status = status
        encoded = [(name.encode(), value.encode()) for name, value in headers]
        reason = HTTPStatus(status).phrase.encode()
        await self._event(h11.Response(status_code=status, headers=encoded, reason=reason))

    async def _event(self, event: h11.Event) -> None:
        if self.hung_up.is_set() or self.is_cut:
            return
        try:
            await self._send(event)
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            self.hung_up.set()


Answer = Callable[[Exchange], Awaitable[None]]


class HttpServer:
    """Serves one listening socket. Connections that idle longer than ``keep_alive_s`` close."""

    def __init__(
        self, listening: socket.socket, answer: Answer, *, keep_alive_s: float = 5.0
    ) -> None:
        self._listening = listening
        self._answer = answer
        self._keep_alive_s = keep_alive_s
        self._stopped = trio.CancelScope()
        self._idle: set[trio.CancelScope] = set()
        self.open_exchanges: set[Exchange] = set()
        self._quiet = trio.Event()
        self._quiet.set()

    async def serve(self) -> None:
        """Until `stop_listening`, and until every exchange has ended then."""
        listener = trio.SocketListener(trio.socket.from_stdlib_socket(self._listening))
        async with trio.open_nursery() as nursery:
            async with listener:
                with self._stopped:
                    while True:
                        stream = await listener.accept()
                        nursery.start_soon(self._connection, stream)
            for scope in self._idle:
                scope.cancel()

    def stop_listening(self) -> None:
        """Take no more connections and close those that idle; exchanges go on."""
        self._stopped.cancel()

    async def wait_quiet(self) -> None:
        """Until no exchange is open."""
        while self.open_exchanges:
            await self._quiet.wait()

    def cut_all(self) -> None:
        """Close every connection where it is."""
        for exchange in self.open_exchanges:
            exchange.cut()

    async def _connection(self, stream: trio.SocketStream) -> None:
        state = h11.Connection(h11.SERVER, max_incomplete_event_size=HEAD_BYTES_MAX)

        async def send(event: h11.Event) -> None:
            written = state.send(event)
            if written:
                await stream.send_all(written)

        async with stream:
            try:
                while await self._one(stream, state, send):
                    state.start_next_cycle()
                    if self._stopped.cancel_called:
                        return
            except (h11.ProtocolError, HungUp, trio.BrokenResourceError):
                return

    async def _one(
        self,
        stream: trio.SocketStream,
        state: h11.Connection,
        send: Callable[[h11.Event], Awaitable[None]],
    ) -> bool:
        """Answer one request; whether the connection can take another."""
        with trio.move_on_after(self._keep_alive_s) as idle:
            self._idle.add(idle)
            try:
                request = await _next_event(stream, state)
            finally:
                self._idle.discard(idle)
        if idle.cancelled_caught or not isinstance(request, h11.Request):
            return False
        body = await _read_body(stream, state, send)
        exchange = Exchange(request, body, send)
        self.open_exchanges.add(exchange)
        self._quiet = trio.Event() if self._quiet.is_set() else self._quiet
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(_watch, stream, state, exchange)
                await self._answer(exchange)
                nursery.cancel_scope.cancel()
        finally:
            self.open_exchanges.discard(exchange)
            if not self.open_exchanges:
                self._quiet.set()
        reusable = state.our_state is h11.DONE and state.their_state is h11.DONE
        return reusable and not exchange.is_cut and not exchange.hung_up.is_set()


async def _next_event(stream: trio.SocketStream, state: h11.Connection) -> object:
    while (event := state.next_event()) is h11.NEED_DATA:
        state.receive_data(await stream.receive_some(_READ_BYTES))
    return event


async def _read_body(
    stream: trio.SocketStream,
    state: h11.Connection,
    send: Callable[[h11.Event], Awaitable[None]],
) -> bytes:
    if state.they_are_waiting_for_100_continue:
        await send(h11.InformationalResponse(status_code=100, headers=[], reason=b"Continue"))
    pieces, length = [], 0
    while isinstance(event := await _next_event(stream, state), h11.Data):
        pieces.append(event.data)
        length += len(event.data)
        if length > BODY_BYTES_MAX:
            raise HungUp
    if isinstance(event, h11.ConnectionClosed):
        raise HungUp
    return b"".join(pieces)


async def _watch(stream: trio.SocketStream, state: h11.Connection, exchange: Exchange) -> None:
    """Notice a hang-up while the answer is in the making; keep what comes early for later."""
    early = 0
    while early < HEAD_BYTES_MAX:
        try:
            received = await stream.receive_some(_READ_BYTES)
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            received = b""
        if not received:
            exchange.hung_up.set()
            return
        early += len(received)
        state.receive_data(received)


def to_json(value: Mapping[str, Any] | list[Any]) -> bytes:
    """Compact, non-ASCII kept, as both engines write it."""
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode()


def bearer_of(exchange: Exchange) -> str | None:
    """The token of ``Authorization: Bearer``; None without one."""
    scheme, _, token = exchange.headers.get("authorization", "").partition(" ")
    return token.strip() if scheme.lower() == "bearer" and token else None


def bind(host: str, port: int) -> socket.socket:
    """A socket that has its port but does not listen yet: connections are refused.

    Raises:
        OSError: the port is taken, or there is no such address.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    bound = socket.socket(family, socket.SOCK_STREAM)
    try:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind((host, port))
    except OSError:
        bound.close()
        raise
    return bound


def listen(bound: socket.socket) -> None:
    """Let connections come in.

    Raises:
        OSError: another socket listens on the port already.
    """
    bound.listen(1_024)
    bound.setblocking(False)
