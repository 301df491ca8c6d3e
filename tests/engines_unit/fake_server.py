"""A small HTTP server that answers as a test scripts it and remembers what it was asked."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from typing import Any
from urllib.parse import parse_qsl, urlsplit

import attrs
import h11
import trio


@attrs.frozen(kw_only=True)
class Asked:
    method: str
    path: str
    query: tuple[tuple[str, str], ...]
    headers: dict[str, str]
    body: bytes

    def json(self) -> Any:
        return json.loads(self.body)


@attrs.frozen(kw_only=True)
class Told:
    status: int = 200
    body: Any = None
    """A dict or list is sent as JSON, bytes as they are, None as nothing."""
    hang_up: bool = False
    """Close without an answer."""
    silent: bool = False
    """Never answer."""


Handler = Callable[[Asked], Awaitable[Told] | Told]


@attrs.define
class FakeServer:
    handler: Handler
    port: int = 0
    asked: list[Asked] = attrs.field(factory=list)
    _heard: trio.Event = attrs.field(factory=trio.Event)

    def count(self, method: str, path: str) -> int:
        return sum(1 for one in self.asked if (one.method, one.path) == (method, path))

    async def wait_asked(self, method: str, path: str, times: int) -> None:
        """Until this was asked so many times; the test's own bound ends it."""
        while self.count(method, path) < times:
            await self._heard.wait()

    def calls(self) -> list[str]:
        """``POST /wake_up?tags=weights`` and so on, in order."""
        lines = []
        for one in self.asked:
            query = "&".join(f"{k}={v}" for k, v in one.query)
            lines.append(f"{one.method} {one.path}" + (f"?{query}" if query else ""))
        return lines

    async def serve(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        listeners = await trio.open_tcp_listeners(0, host="127.0.0.1")
        self.port = listeners[0].socket.getsockname()[1]
        await trio.serve_listeners(self._connection, listeners, task_status=task_status)

    async def _connection(self, stream: trio.SocketStream) -> None:
        async with stream:
            try:
                await self._one(stream)
            except (trio.BrokenResourceError, h11.RemoteProtocolError):
                return

    async def _one(self, stream: trio.SocketStream) -> None:
        wire = h11.Connection(h11.SERVER)
        head: h11.Request | None = None
        body = b""
        while True:
            event = wire.next_event()
            if event is h11.NEED_DATA:
                wire.receive_data(await stream.receive_some(65536))
            elif isinstance(event, h11.Request):
                head = event
            elif isinstance(event, h11.Data):
                body += bytes(event.data)
            elif isinstance(event, h11.EndOfMessage):
                break
            else:
                return
        assert head is not None
        split = urlsplit(head.target.decode())
        asked = Asked(
            method=head.method.decode(),
            path=split.path,
            query=tuple(parse_qsl(split.query)),
            headers={k.decode(): v.decode() for k, v in head.headers},
            body=body,
        )
        self.asked.append(asked)
        self._heard.set()
        self._heard = trio.Event()
        told = self.handler(asked)
        if not isinstance(told, Told):
            told = await told
        if told.hang_up:
            return
        if told.silent:
            await trio.sleep_forever()
        await stream.send_all(_answer(wire, told))


def _answer(wire: h11.Connection, told: Told) -> bytes:
    body = b""
    if isinstance(told.body, bytes):
        body = told.body
    elif told.body is not None:
        body = json.dumps(told.body).encode()
    fields = [("content-length", str(len(body))), ("connection", "close")]
    data = wire.send(h11.Response(status_code=told.status, headers=fields)) or b""
    if body:
        data += wire.send(h11.Data(data=body)) or b""
    return data + (wire.send(h11.EndOfMessage()) or b"")
