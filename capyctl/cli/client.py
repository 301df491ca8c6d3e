"""The management API from the outside: one request, one answer, over `http.client`."""

from __future__ import annotations

import contextlib
import http.client
import json
import socket
from collections.abc import Iterator, Mapping
from typing import Any

import attrs

from capyctl.cli.failure import CommandFailed
from capyctl.cli.role import Role

PREFIX = "/management/v1"
ANSWER_S_MAX = 30.0
ANSWER_BYTES_MAX = 256 << 20
STREAM_SILENCE_S_MAX = 40.0
"""A comment comes every 15 s on a stream with nothing to tell."""


class Unanswered(Exception):
    """No answer. ``sent`` tells whether the request may have arrived."""

    def __init__(self, reason: str, *, sent: bool) -> None:
        super().__init__(reason)
        self.sent = sent


@attrs.frozen(kw_only=True)
class Answer:
    status: int
    fields: Mapping[str, Any]

    @property
    def failure(self) -> CommandFailed | None:
        """The refusal that the answer is, if it is one."""
        if 200 <= self.status < 300:
            return None
        error = self.fields.get("error")
        if not isinstance(error, Mapping) or not isinstance(error.get("code"), str):
            return CommandFailed(
                "internal",
                f"status {self.status} without an error of the management API; does something "
                "else listen there?",
                retryable=self.status in (502, 503, 504),
            )
        code = "unauthorized" if error["code"] == "unauthenticated" else error["code"]
        details = error.get("details")
        return CommandFailed(
            code,
            str(error.get("message", "")),
            details=details if isinstance(details, Mapping) else None,
            retryable=error.get("retryable") is True,
        )


@attrs.frozen(kw_only=True)
class StreamEvent:
    """One server-sent event."""

    cursor: str | None
    kind: str
    fields: Mapping[str, Any]


class Client:
    """Each call opens a connection of its own."""

    def __init__(self, role: Role) -> None:
        self.role = role

    def get(self, path: str, *, within_s: float = ANSWER_S_MAX) -> dict[str, Any]:
        """The body of a read.

        Raises:
            Unanswered: nothing came back.
            CommandFailed: it was refused.
        """
        answer = self.send("GET", path, within_s=within_s)
        if answer.failure is not None:
            raise answer.failure
        return dict(answer.fields)

    def send(
        self,
        method: str,
        path: str,
        *,
        key: str | None = None,
        body: bytes | None = None,
        within_s: float = ANSWER_S_MAX,
    ) -> Answer:
        """One request, sent once; ``key`` and ``body`` belong to a change.

        Raises:
            Unanswered: see its ``sent``.
            CommandFailed: ``internal`` for an answer that is not JSON or too large.
        """
        headers = {"Accept": "application/json"}
        if body is not None:
            headers["Content-Type"] = "application/json"
        if key is not None:
            headers["Idempotency-Key"] = key
        with self._answering(method, path, headers, body, within_s) as response:
            try:
                data = response.read(ANSWER_BYTES_MAX + 1)
            except (OSError, http.client.HTTPException) as problem:
                raise Unanswered(_said(problem), sent=True) from problem
            return Answer(status=response.status, fields=_fields(data, response.status))

    def events(self, after: str) -> Iterator[StreamEvent]:
        """Events after a cursor, as they come, until the stream ends or breaks.

        Raises:
            Unanswered, CommandFailed: as `send`; not for the end of an open stream.
        """
        headers = {"Accept": "text/event-stream"}
        path = f"{PREFIX}/events?after={after}"
        with self._answering("GET", path, headers, None, STREAM_SILENCE_S_MAX) as response:
            if response.status != 200:
                answer = Answer(
                    status=response.status, fields=_fields(response.read(), response.status)
                )
                raise answer.failure or CommandFailed("internal", "no stream of events")
            with contextlib.suppress(OSError, http.client.HTTPException):
                yield from _stream(response)

    @contextlib.contextmanager
    def _answering(
        self,
        method: str,
        path: str,
        headers: Mapping[str, str],
        body: bytes | None,
        within_s: float,
    ) -> Iterator[http.client.HTTPResponse]:
        address = self.role.address
        connection = http.client.HTTPConnection(address.host, address.port, timeout=within_s)
        try:
            try:
                connection.connect()
            except OSError as problem:
                raise Unanswered(_said(problem), sent=False) from problem
            try:
                connection.request(
                    method,
                    path,
                    body=body,
                    headers={**headers, "Authorization": f"Bearer {self.role.token}"},
                )
                response = connection.getresponse()
            except (OSError, http.client.HTTPException) as problem:
                raise Unanswered(_said(problem), sent=True) from problem
            yield response
        finally:
            connection.close()

    def unreachable(self, problem: Unanswered) -> CommandFailed:
        """What is told when nothing answers."""
        role = self.role
        start = "capyctl start standalone"
        if problem.sent:
            return CommandFailed(
                "management_unavailable",
                f"capyctl at {role.address} did not answer: {problem}",
                retryable=True,
            )
        return CommandFailed(
            "management_unavailable",
            f"nothing answers at {role.address} ({role.address_source}): {problem}. "
            f"Start it with `{start}`, or name another state directory with --state-dir",
            retryable=True,
        )


def _stream(response: http.client.HTTPResponse) -> Iterator[StreamEvent]:
    cursor, kind, data = None, "message", ""
    for raw in iter(response.readline, b""):
        line = raw.decode(errors="replace").rstrip("\r\n")
        name, _, value = line.partition(": ")
        if name == "id":
            cursor = value
        elif name == "event":
            kind = value
        elif name == "data":
            data = value
        elif not line and data:
            yield StreamEvent(cursor=cursor, kind=kind, fields=_fields(data.encode(), 200))
            kind, data = "message", ""


def _fields(data: bytes, status: int) -> Mapping[str, Any]:
    if len(data) > ANSWER_BYTES_MAX:
        raise CommandFailed("internal", f"the answer has more than {ANSWER_BYTES_MAX} bytes")
    try:
        found = json.loads(data)
    except (ValueError, RecursionError):
        found = None
    if isinstance(found, dict):
        return found
    if 200 <= status < 300:
        raise CommandFailed("internal", f"the answer with status {status} is not JSON")
    return {}


def _said(problem: Exception) -> str:
    if isinstance(problem, TimeoutError | socket.timeout):
        return "no answer in time"
    if isinstance(problem, OSError) and problem.strerror:
        return problem.strerror.lower()
    return "the connection broke off"
