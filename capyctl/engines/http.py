"""One small HTTP/1.1 client for probes and control calls to engines on this machine.

Requests of users never pass through here. One connection per call, loopback only.
"""

from __future__ import annotations

import ipaddress
import json
import socket
from collections.abc import Mapping
from typing import Any, Literal

import attrs
import h11
import trio

BODY_MAX_BYTES = 4 * 1024 * 1024
RECEIVE_BYTES = 64 * 1024
USER_AGENT = b"capyctl"


class Unreachable(Exception):
    """No complete answer came: refused, reset, late, or not HTTP.

    ``sent`` is False only when it is certain that the engine saw nothing of the request.
    """

    def __init__(
        self, why: Literal["refused", "timeout", "broken"], detail: str, *, sent: bool
    ) -> None:
        super().__init__(detail)
        self.why = why
        self.detail = detail
        self.sent = sent


@attrs.frozen(kw_only=True)
class Reply:
    """A complete answer, whatever its status."""

    status: int
    headers: Mapping[str, str]
    """Names in lower case; of repeated ones the last."""
    body: bytes = attrs.field(repr=lambda body: f"<{len(body)} bytes>")

    def json(self) -> Any:
        """The body as JSON.

        Raises:
            ValueError: it is not JSON.
        """
        return json.loads(self.body)

    def json_object(self) -> dict[str, Any] | None:
        """The body as a JSON object, or None when it is anything else."""
        try:
            found = self.json()
        except ValueError:
            return None
        return found if isinstance(found, dict) else None


async def request(
    method: str,
    host: str,
    port: int,
    path: str,
    *,
    headers: Mapping[str, str] | None = None,
    body: bytes | None = None,
    within_s: float,
    bytes_max: int = BODY_MAX_BYTES,
) -> Reply:
    """Send one request to a loopback address and read the whole answer.

    ``within_s`` bounds everything from connecting to the last byte; ``math.inf`` leaves the
    end to the caller's own cancelling. Cancelling closes the connection: an engine that
    had begun may or may not go on.

    Raises:
        Unreachable: no complete answer of at most ``bytes_max`` bytes within that time.
        ValueError: ``host`` is not a loopback address.
    """
    if not ipaddress.ip_address(host).is_loopback:
        raise ValueError(f"engines are reached over loopback only, not at {host}")
    wire = _encode(method, host, port, path, headers or {}, body)
    progress = _Progress()
    with trio.move_on_after(within_s):
        return await _exchange(wire, host, port, progress, bytes_max)
    raise Unreachable(
        "timeout",
        f"{method} {path} at {host}:{port} was not answered within {within_s:g} s",
        sent=progress.sent,
    )


async def request_json(
    method: str,
    host: str,
    port: int,
    path: str,
    value: Any,
    *,
    headers: Mapping[str, str] | None = None,
    within_s: float,
    bytes_max: int = BODY_MAX_BYTES,
) -> Reply:
    """Like :func:`request`, with ``value`` as a JSON body."""
    return await request(
        method,
        host,
        port,
        path,
        headers={"content-type": "application/json", **(headers or {})},
        body=json.dumps(value, separators=(",", ":")).encode(),
        within_s=within_s,
        bytes_max=bytes_max,
    )


@attrs.define
class _Progress:
    sent: bool = False


@attrs.frozen(kw_only=True)
class _Wire:
    connection: h11.Connection
    data: bytes
    what: str


def _encode(
    method: str, host: str, port: int, path: str, headers: Mapping[str, str], body: bytes | None
) -> _Wire:
    connection = h11.Connection(h11.CLIENT)
    authority = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    fields: list[tuple[bytes, bytes]] = [
        (b"host", authority.encode()),
        (b"user-agent", USER_AGENT),
        (b"accept", b"*/*"),
        (b"connection", b"close"),
    ]
    fields += [(name.encode(), value.encode()) for name, value in headers.items()]
    if body is not None or method in {"POST", "PUT"}:
        fields.append((b"content-length", str(len(body or b"")).encode()))
    data = connection.send(h11.Request(method=method, target=path, headers=fields)) or b""
    if body:
        data += connection.send(h11.Data(data=body)) or b""
    data += connection.send(h11.EndOfMessage()) or b""
    return _Wire(connection=connection, data=data, what=f"{method} {path} at {host}:{port}")


async def _exchange(
    wire: _Wire, host: str, port: int, progress: _Progress, bytes_max: int
) -> Reply:
    try:
        stream = await _connect(host, port)
    except OSError as problem:
        raise Unreachable("refused", f"{wire.what}: no connection", sent=False) from problem
    async with stream:
        try:
            progress.sent = True
            await _send(stream, wire.data)
            return await _receive(stream, wire, bytes_max)
        except (trio.BrokenResourceError, h11.RemoteProtocolError) as problem:
            raise Unreachable("broken", f"{wire.what}: {problem}", sent=True) from problem


async def _connect(host: str, port: int) -> trio.SocketStream:
    """To a numeric address: nothing to look up, and no second address to try beside it."""
    kind = socket.AF_INET6 if ":" in host else socket.AF_INET
    mine = trio.socket.socket(kind, socket.SOCK_STREAM)
    try:
        await mine.connect((host, port))
    except BaseException:
        mine.close()
        raise
    return trio.SocketStream(mine)


async def _send(stream: trio.SocketStream, data: bytes) -> None:
    try:
        await stream.send_all(data)
    except trio.BrokenResourceError:
        # A server may answer and close before it has read all; its answer is still there to read.
        return


async def _receive(stream: trio.SocketStream, wire: _Wire, bytes_max: int) -> Reply:
    status = 0
    headers: dict[str, str] = {}
    body = bytearray()
    while True:
        event = wire.connection.next_event()
        if event is h11.NEED_DATA:
            wire.connection.receive_data(await stream.receive_some(RECEIVE_BYTES))
        elif isinstance(event, h11.Response):
            status = event.status_code
            headers = {name.decode("latin-1"): v.decode("latin-1") for name, v in event.headers}
        elif isinstance(event, h11.Data):
            body += event.data
            if len(body) > bytes_max:
                raise Unreachable(
                    "broken", f"{wire.what}: the answer is over {bytes_max} bytes", sent=True
                )
        elif isinstance(event, h11.EndOfMessage):
            return Reply(status=status, headers=headers, body=bytes(body))
        elif isinstance(event, h11.ConnectionClosed):
            raise Unreachable("broken", f"{wire.what}: closed without an answer", sent=True)
