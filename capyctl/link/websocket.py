"""The link over sockets: one websocket per host, over TLS with certificates on both sides."""

from __future__ import annotations

import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager

import attrs
import trio
import trio_websocket as ws

from capyctl.contracts.hosts import HostDirectory
from capyctl.domain.ids import HostId
from capyctl.link.channel import ChannelClosed
from capyctl.link.dial import Dial, DialFailed
from capyctl.link.handshake import (
    HANDSHAKE_S_MAX,
    HandshakeFailed,
    TlsStream,
    accept_tls,
    shake_hands,
)
from capyctl.link.peers import (
    NOT_JOINED,
    is_foreign,
    peer_host_id,
    refusal,
    revoked,
    why_refused,
)
from capyctl.link.server import LinkServer
from capyctl.link.strangers import Refusals, Strangers, address_of
from capyctl.wire.link import FRAME_BYTES_MAX, Refused, write_frame

PATH = "/link/v1"
CONNECTIONS_COUNT_MAX = 4096
"""Of hosts and of whoever else knocks, all together; further ones are cut at once."""
DIAL_S_MAX = 10.0
"""For the connection, TLS and the upgrade together."""
CLOSE_S = 1.0
CLOSE_REASON_BYTES_MAX = 120
"""A websocket's close frame takes no more."""
RECEIVE_BYTES = 64 * 1024


class Traced(trio.abc.Stream):
    """Remembers what went wrong with a stream, which the websocket only shows as an end."""

    def __init__(self, inner: TlsStream) -> None:
        self._inner = inner
        self.problem: BaseException | None = None

    async def send_all(self, data: bytes | bytearray | memoryview) -> None:
        try:
            await self._inner.send_all(data)
        except trio.BrokenResourceError as problem:
            self.problem = self.problem or problem
            raise

    async def wait_send_all_might_not_block(self) -> None:
        await self._inner.wait_send_all_might_not_block()

    async def receive_some(self, max_bytes: int | None = None) -> bytes | bytearray:
        try:
            return await self._inner.receive_some(max_bytes)
        except trio.BrokenResourceError as problem:
            self.problem = self.problem or problem
            raise

    async def aclose(self) -> None:
        """Close with TLS's farewell, if that is taken within a second."""
        try:
            with trio.move_on_after(CLOSE_S):
                await self._inner.aclose()
        except trio.BrokenResourceError:
            pass  # then there is nobody to say farewell to
        finally:
            await trio.aclose_forcefully(self._inner)


@attrs.define(eq=False)
class Reader:
    """Runs a websocket's reader, as a nursery would: what it raises is its end, and no crash."""

    nursery: trio.Nursery
    ended: trio.Event = attrs.field(factory=trio.Event)
    problem: Exception | None = None

    def start_soon(self, fn: Callable[[], Awaitable[None]]) -> None:
        self.nursery.start_soon(self._run, fn)

    async def _run(self, fn: Callable[[], Awaitable[None]]) -> None:
        try:
            await fn()
        except Exception as problem:
            self.problem = problem
        finally:
            self.ended.set()


@attrs.frozen(eq=False)
class WebSocketChannel:
    """Implements `channel.Channel`: each message is one binary message of a websocket."""

    socket: ws.WebSocketConnection
    stream: Traced

    async def send(self, data: bytes) -> None:
        try:
            await self.socket.send_message(data)
        except ws.ConnectionClosed as closed:
            raise ChannelClosed(self._why(closed)) from closed

    async def receive(self) -> bytes:
        try:
            message = await self.socket.get_message()
        except ws.ConnectionClosed as closed:
            raise ChannelClosed(self._why(closed)) from closed
        if isinstance(message, str):
            raise ChannelClosed("a text message came; frames are binary")
        return message

    async def aclose(self, why: str) -> None:
        reason = why.encode()[:CLOSE_REASON_BYTES_MAX].decode(errors="ignore")
        with trio.move_on_after(CLOSE_S):
            await self.socket.aclose(code=1000, reason=reason)
        await self.stream.aclose()

    def _why(self, closed: ws.ConnectionClosed) -> str:
        if self.stream.problem is not None:
            return why_refused(self.stream.problem) or f"cut: {_words(self.stream.problem)}"
        reason = closed.reason
        if reason is None or reason.code == 1006:
            return "the other side closed it without a word"
        return f"the other side closed it: {reason.reason or reason.name}"


def _words(problem: BaseException) -> str:
    """What is at the bottom of it: Trio puts its own exceptions around the system's."""
    cause = problem.__cause__
    if isinstance(cause, BaseExceptionGroup):
        cause = cause.exceptions[0]
    return str(problem) if cause is None else str(cause)


# -- the host's end -----------------------------------------------------------------------------


def websocket_dial(
    address: str, port: int, context: Callable[[], ssl.SSLContext], *, server_name: str
) -> Dial:
    """How a host opens a channel to its server.

    Args:
        context: asked anew for each dial, so that a renewed certificate is shown.
        server_name: what must stand in the server's certificate: `contexts.server_tls_name`.
    """

    @asynccontextmanager
    async def dial() -> AsyncIterator[WebSocketChannel]:
        failed = None
        async with trio.open_nursery() as nursery:
            try:
                channel = await _open(nursery, address, port, context(), server_name)
            except DialFailed as problem:
                failed = problem
            else:
                try:
                    yield channel
                finally:
                    with trio.CancelScope(shield=True):
                        await channel.aclose("")
            nursery.cancel_scope.cancel()
        if failed is not None:
            raise failed

    return dial


async def _open(
    nursery: trio.Nursery, address: str, port: int, context: ssl.SSLContext, server_name: str
) -> WebSocketChannel:
    where = f"{address}:{port}"
    stream: Traced | None = None
    last: Exception
    try:
        with trio.fail_after(DIAL_S_MAX):
            raw = await trio.open_tcp_stream(address, port)
            tls = trio.SSLStream(raw, context, server_hostname=server_name)
            stream = Traced(tls)
            await shake_hands(tls)
            return WebSocketChannel(await _upgrade(nursery, stream, where), stream)
    except trio.TooSlowError as problem:
        why, last = f"no answer within {DIAL_S_MAX:g} s", problem
    except (OSError, trio.BrokenResourceError) as problem:
        why, last = why_refused(problem) or _words(problem), problem
        if is_foreign(problem):
            why = f"{why}; {NOT_JOINED}"
    except BaseException:
        if stream is not None:
            await trio.aclose_forcefully(stream)
        raise
    if stream is not None:
        await stream.aclose()
    code = "host_revoked" if revoked(last) else None
    raise DialFailed(f"{where}: {why}", code=code) from last


async def _upgrade(nursery: trio.Nursery, stream: Traced, where: str) -> ws.WebSocketConnection:
    """Raises BrokenResourceError: it came to nothing; the cause tells more."""
    reader = Reader(nursery)
    made: list[ws.WebSocketConnection] = []

    async def wrap() -> None:
        made.append(
            await ws.wrap_client_stream(
                reader,  # type: ignore[arg-type]  # all that is asked of it is start_soon
                stream,  # type: ignore[arg-type]  # any stream will do
                where,
                PATH,
                max_message_size=FRAME_BYTES_MAX,
                receive_buffer_size=RECEIVE_BYTES,
            )
        )
        race.cancel_scope.cancel()

    async with trio.open_nursery() as race:
        race.start_soon(wrap)
        await reader.ended.wait()
        race.cancel_scope.cancel()
    if made:
        return made[0]
    if stream.problem is not None:
        raise stream.problem
    raise trio.BrokenResourceError("it speaks TLS, but is no capyctl server")


# -- the server's end ---------------------------------------------------------------------------


async def serve_link(
    server: LinkServer,
    listeners: Sequence[trio.SocketListener],
    context: ssl.SSLContext,
    directory: HostDirectory,
    *,
    log: Callable[..., None],
) -> None:
    """Take hosts in, until cancelled. Who is none of ours gets an alert and no byte more."""
    door = _Door(server, context, directory, log)
    await trio.serve_listeners(door.take_in, list(listeners))


@attrs.define(eq=False)
class _Door:
    server: LinkServer
    context: ssl.SSLContext
    directory: HostDirectory
    log: Callable[..., None]
    _inside_count: int = 0
    _strangers: Strangers = attrs.field(factory=Strangers)
    _refusals: Refusals = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self._refusals = Refusals(
            lambda address, why: self.log("link_connection_refused", address=address, why=why)
        )

    async def take_in(self, raw: trio.SocketStream) -> None:
        if self._inside_count >= CONNECTIONS_COUNT_MAX:
            self._refusals.tell(address_of(raw), f"{CONNECTIONS_COUNT_MAX} are open")
            await trio.aclose_forcefully(raw)
            return
        self._inside_count += 1
        try:
            await self._handshake(raw)
        finally:
            self._inside_count -= 1
            await trio.aclose_forcefully(raw)

    async def _handshake(self, raw: trio.SocketStream) -> None:
        address = address_of(raw)
        try:
            tls = await self._meet(raw)
        except HandshakeFailed as failed:
            self._refusals.tell(address, str(failed))
            return
        host = peer_host_id(tls)
        if host is None:
            self._refusals.tell(address, "the certificate is not one of a host")
            return
        try:
            async with trio.open_nursery() as nursery:
                await self._greet(nursery, tls, host, address)
                nursery.cancel_scope.cancel()
        except* Exception as problems:
            # One connection's trouble is not the other hosts'.
            self.log("link_connection_failed", host=host, problem=repr(problems.exceptions[0]))

    async def _meet(self, raw: trio.SocketStream) -> TlsStream:
        scope = self._strangers.meet()
        try:
            with scope:
                return await accept_tls(raw, self.context)
        finally:
            self._strangers.part(scope)
        raise self._strangers.pushed_out()

    async def _greet(
        self, nursery: trio.Nursery, tls: TlsStream, host: HostId, address: str
    ) -> None:
        stream = Traced(tls)
        channel = None
        with trio.move_on_after(HANDSHAKE_S_MAX):
            request = await ws.wrap_server_stream(
                Reader(nursery),  # type: ignore[arg-type]  # all that is asked of it is start_soon
                stream,
                max_message_size=FRAME_BYTES_MAX,
                receive_buffer_size=RECEIVE_BYTES,
            )
            channel = WebSocketChannel(await request.accept(), stream)
        if channel is None:
            await stream.aclose()
            return
        refused = refusal(tls, self.directory.record(host))
        if refused is None:
            await self.server.attend(host, channel, address)
            return
        self.log("link_connection_refused", address=address, host=host, why=refused.message)
        with trio.move_on_after(CLOSE_S):
            await channel.send(write_frame(Refused(code=refused.code, message=refused.message)))
        await channel.aclose(refused.code)
