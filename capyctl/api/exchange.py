"""One request and its answer on their way between the server and the application.

Sees to what holds for every answer, whoever gives it: the path is matched as it was sent,
two headers are on it, the client gets to read it, and what it held is given back.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Mapping
from typing import Any, cast

import trio
from hypercorn.typing import (
    ASGIFramework,
    ASGIReceiveCallable,
    ASGIReceiveEvent,
    ASGISendCallable,
    ASGISendEvent,
    HTTPScope,
)

from capyctl.api.limits import Limits
from capyctl.domain.errors import Refused
from capyctl.wire.errors import error_json

ALWAYS = [(b"cache-control", b"no-store"), (b"x-content-type-options", b"nosniff")]
_AT_END = "capyctl.at_end"
_log = logging.getLogger(__name__)


def at_end(scope: Mapping[str, object]) -> contextlib.ExitStack:
    """What is closed when this exchange ends, however it ends."""
    return cast("contextlib.ExitStack", scope[_AT_END])


class Exchange:
    """Wraps ``receive`` and ``send`` of one HTTP request."""

    def __init__(
        self,
        scope: HTTPScope,
        receive: ASGIReceiveCallable,
        send: ASGISendCallable,
        limits: Limits,
    ) -> None:
        self._scope = scope
        self._receive = receive
        self._send = send
        self._limits = limits
        self._body_ended = trio.Event()
        self._body_bytes = 0
        self._has_started = False

    async def run(self, app: ASGIFramework) -> None:
        """Let the application answer; answers in its place when it fails before it began."""
        raw = self._scope["raw_path"].decode("latin-1")
        # Escapes stay: an id with one in it is malformed, and %2F is no border between segments.
        matched = raw if raw.startswith("/") and not raw.startswith("//") else "/"
        scope = cast("HTTPScope", {**self._scope, "path": matched})
        with contextlib.ExitStack() as stack:
            cast("dict[str, Any]", scope)[_AT_END] = stack
            try:
                await app(scope, self.receive, self.send)
            except Exception:
                _log.exception("the management API could not answer")
                if self._has_started:
                    raise
                await self._answer_internal()

    async def receive(self) -> ASGIReceiveEvent:
        message = await self._receive()
        if message["type"] == "http.request":
            self._body_bytes += len(message.get("body", b""))
            is_last = not message.get("more_body", False)
            if is_last or self._body_bytes > self._limits.drain_bytes_max:
                self._body_ended.set()
        else:
            self._body_ended.set()
        return message

    async def send(self, message: ASGISendEvent) -> None:
        """Hold the end back until the client's body has come in, within bounds.

        A connection closed with bytes unread would be reset, and the answer lost with it.
        """
        if message["type"] == "http.response.start":
            self._has_started = True
            message["headers"] = [*message["headers"], *ALWAYS]
        elif message["type"] == "http.response.body" and not message.get("more_body", False):
            with trio.move_on_after(self._limits.drain_s_max):
                await self._body_ended.wait()
            # The server makes the connection ready for its next request in here.
            with trio.CancelScope(shield=True):
                await self._send(message)
            return
        await self._send(message)

    async def _answer_internal(self) -> None:
        refused = Refused("internal", "An internal error; the daemon's log says more")
        body = error_json(refused)
        headers = [
            (b"content-type", b"application/json"),
            (b"content-length", str(len(body)).encode()),
        ]
        await self.send({"type": "http.response.start", "status": 500, "headers": headers})
        await self.send({"type": "http.response.body", "body": body, "more_body": False})
