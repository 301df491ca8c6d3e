"""The bootstrap listener: HTTPS, one route; here an invitation is turned into a certificate.

Whoever comes has no certificate yet, so everything is small and short: connections at once and in
a second, heads, bodies and time have bounds. One request for each connection.
"""

from __future__ import annotations

import ssl
from collections.abc import Awaitable, Callable, Sequence
from http import HTTPStatus

import h11
import trio

from capyctl.domain.canonical import canonical_json
from capyctl.link.handshake import HandshakeFailed, TlsStream, accept_tls
from capyctl.link.invitations import JoinRefused
from capyctl.link.strangers import Rate, Refusals, address_of
from capyctl.wire.enrolment import (
    JOIN_BODY_BYTES_MAX,
    JOIN_PATH,
    BadEnrolment,
    Redeemed,
    Redemption,
    read_redemption,
    write_redeemed,
)

CONNECTIONS_MAX = 64
CONNECTIONS_PER_S_MAX = 50.0
"""More are closed at once. One that joins needs one connection."""
EXCHANGE_S_MAX = 15.0
_HEAD_BYTES_MAX = 8192
_READ_BYTES = 4096
_CLOSE_S_MAX = 1.0

Redeem = Callable[[Redemption], Awaitable[Redeemed]]


class Bootstrap:
    """Serves the listeners that it is given, until it is cancelled."""

    def __init__(
        self,
        context: ssl.SSLContext,
        redeem: Redeem,
        *,
        log: Callable[[str, str], None] = lambda _address, _why: None,
        connections_max: int = CONNECTIONS_MAX,
        per_s_max: float = CONNECTIONS_PER_S_MAX,
        exchange_s_max: float = EXCHANGE_S_MAX,
    ) -> None:
        """
        Args:
            context: `contexts.server_bootstrap_context`.
            redeem: `enrolment.Enrolment.redeem`.
            log: told of each refusal: who came, and why it was refused.
        """
        self._context = context
        self._redeem = redeem
        self._log = log
        self._refusals = Refusals(log)
        self._connections_max = connections_max
        self._exchange_s_max = exchange_s_max
        self._open_count = 0
        self._rate = Rate(per_s_max)

    async def serve(self, listeners: Sequence[trio.SocketListener]) -> None:
        """Cancelling closes the listeners and every connection."""
        await trio.serve_listeners(self._connection, list(listeners))

    async def _connection(self, raw: trio.SocketStream) -> None:
        if self._open_count >= self._connections_max or not self._rate.take(trio.current_time()):
            await trio.aclose_forcefully(raw)
            return
        self._open_count += 1
        try:
            with trio.move_on_after(self._exchange_s_max):
                await self._converse(raw)
        finally:
            self._open_count -= 1
            await trio.aclose_forcefully(raw)

    async def _converse(self, raw: trio.SocketStream) -> None:
        address = address_of(raw)
        try:
            tls = await accept_tls(raw, self._context)
            exchange = _Exchange(tls)
            status, body, why = await self._answer(exchange)
            if why is not None:
                self._log(address, why)
            await exchange.reply(status, body)
        except HandshakeFailed as problem:
            self._refusals.tell(address, str(problem))
        except (trio.BrokenResourceError, trio.ClosedResourceError, h11.ProtocolError):
            return

    async def _answer(self, exchange: _Exchange) -> tuple[int, bytes, str | None]:
        """Status, body, and why it was refused."""
        try:
            body = await exchange.request()
            redeemed = await self._redeem(read_redemption(body))
        except _NotOurs as problem:
            return _refused(problem.status, "join_request_unusable", str(problem))
        except BadEnrolment as problem:
            return _refused(400, "join_request_unusable", str(problem))
        except JoinRefused as refused:
            status = 500 if refused.code == "server_failed" else 403
            return _refused(status, refused.code, refused.message)
        return 200, write_redeemed(redeemed), None


class _NotOurs(Exception):
    """A request that is none of a machine that joins."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


class _Exchange:
    """One HTTP/1.1 request and its answer."""

    def __init__(self, tls: TlsStream) -> None:
        self._tls = tls
        self._http = h11.Connection(h11.SERVER, max_incomplete_event_size=_HEAD_BYTES_MAX)

    async def request(self) -> bytes:
        """Its body.

        Raises:
            _NotOurs: another route or method, or too long.
            trio.BrokenResourceError: the other side went away.
        """
        head = await self._next()
        if not isinstance(head, h11.Request):
            raise _NotOurs(400, "no request")
        if head.target != JOIN_PATH.encode():
            raise _NotOurs(404, f"machines join at POST {JOIN_PATH}")
        if head.method != b"POST":
            raise _NotOurs(405, f"machines join at POST {JOIN_PATH}")
        if self._http.they_are_waiting_for_100_continue:
            go_on = h11.InformationalResponse(status_code=100, headers=[])
            await self._send(go_on)
        body = bytearray()
        while isinstance(event := await self._next(), h11.Data):
            body += event.data
            if len(body) > JOIN_BODY_BYTES_MAX:
                raise _NotOurs(413, f"the request is over {JOIN_BODY_BYTES_MAX} bytes")
        return bytes(body)

    async def reply(self, status: int, body: bytes) -> None:
        """The whole answer, and the end of the connection."""
        headers = [
            ("content-type", "application/json"),
            ("content-length", str(len(body))),
            ("connection", "close"),
        ]
        reason = HTTPStatus(status).phrase.encode()
        await self._send(h11.Response(status_code=status, headers=headers, reason=reason))
        await self._send(h11.Data(data=body))
        await self._send(h11.EndOfMessage())
        with trio.move_on_after(_CLOSE_S_MAX):
            # What is not read yet would reset the connection and cut the answer off.
            await self._tls.transport_stream.send_eof()
            while await self._tls.transport_stream.receive_some(_READ_BYTES):
                pass

    async def _next(self) -> h11.Event:
        while True:
            try:
                event = self._http.next_event()
            except h11.RemoteProtocolError as problem:
                raise _NotOurs(problem.error_status_hint, "no HTTP/1.1 request") from problem
            if isinstance(event, h11.Event):
                return event
            if event is not h11.NEED_DATA:
                raise _NotOurs(400, "no HTTP/1.1 request")
            self._http.receive_data(bytes(await self._tls.receive_some(_READ_BYTES)))

    async def _send(self, event: h11.Event) -> None:
        data = self._http.send(event)
        if data:
            await self._tls.send_all(data)


def _refused(status: int, code: str, message: str) -> tuple[int, bytes, str]:
    body = {"api_version": "1", "error": {"code": code, "message": message}}
    return status, canonical_json(body).encode(), f"{code}: {message}"
