"""Speaks HTTP/1.1 to a management API byte by byte, and holds every answer against the rules
that all of them share."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterable, Mapping
from typing import Any

import attrs

PREFIX = "/management/v1"
ANSWER_S_MAX = 30.0
ENVELOPE = {"api_version", "error"}
ERROR_FIELDS = {"code", "details", "message", "operation_id", "retryable"}
ERRORS: Mapping[str, tuple[int, bool]] = {
    "unauthenticated": (401, False),
    "invalid_request": (400, False),
    "invalid_config": (400, False),
    "invalid_cursor": (400, False),
    "cursor_expired": (410, False),
    "body_too_large": (413, False),
    "method_not_allowed": (405, False),
    "not_found": (404, False),
    "queue_full": (429, True),
    "deadline_exceeded": (504, True),
    "host_policy_denied": (403, False),
    "forbidden": (403, False),
    "revision_conflict": (409, False),
    "idempotency_conflict": (409, False),
    "route_conflict": (409, False),
    "runtime_retained": (409, False),
    "lifecycle_conflict": (409, False),
    "delete_requires_cleanup": (409, False),
    "checkpoint_mismatch": (409, False),
    "checkpoint_unusable": (409, False),
    "model_source_failed": (409, False),
    "startup_requires_empty_host": (409, False),
    "profile_not_published": (409, False),
    "checkpoint_digest_pending": (503, True),
    "model_source_pending": (503, True),
    "still_stopping": (503, True),
    "capacity_blocked": (503, True),
    "switch_failed": (503, True),
    "host_ineligible": (503, True),
    "reconciliation_required": (503, True),
    "unsupported_capability": (503, False),
    "group_shape_unsupported": (501, False),
    "internal": (500, False),
    "observation_stale": (503, True),
    "snapshot_unavailable": (503, True),
}
"""Status and ``retryable`` of every code, as the contract lists them."""
NEVER_SENT = (
    "retry-after",
    "x-request-id",
    "x-capyctl-request-id",
    "access-control-allow-origin",
    "server",
)
WITH_DETAILS = {"invalid_config", "cursor_expired", "profile_not_published"}

Header = tuple[str, str]


def canonical(value: object) -> bytes:
    """Compact JSON with sorted keys, as the page prints its bodies."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return text.encode()


@attrs.frozen(kw_only=True)
class Answer:
    status: int
    headers: tuple[Header, ...]
    body: bytes

    def json(self) -> Any:
        return json.loads(self.body)

    def values(self, name: str) -> list[str]:
        return [value for key, value in self.headers if key.lower() == name]

    @property
    def code(self) -> str | None:
        """The error's code; None on success."""
        return None if self.status < 400 else str(self.json()["error"]["code"])

    @property
    def message(self) -> str:
        return str(self.json()["error"]["message"])


class Connection:
    """A client's end of one TCP connection."""

    def __init__(self, host: str, port: int, within_s: float = ANSWER_S_MAX) -> None:
        self._socket = socket.create_connection((host, port), timeout=within_s)
        self._held = b""

    def __enter__(self) -> Connection:
        return self

    def __exit__(self, *exc: object) -> None:
        self._socket.close()

    def send(self, data: bytes) -> None:
        self._socket.sendall(data)

    def read_until(self, mark: bytes) -> bytes:
        """Everything up to and with ``mark``. Raises EOFError when the peer closes before."""
        while mark not in self._held:
            self._more()
        found, _, self._held = self._held.partition(mark)
        return found + mark

    def read_exactly(self, count: int) -> bytes:
        while len(self._held) < count:
            self._more()
        found, self._held = self._held[:count], self._held[count:]
        return found

    def is_closed_by_peer(self, within_s: float) -> bool:
        """Whether the peer closes within so many seconds without sending anything."""
        self._socket.settimeout(within_s)
        try:
            return self._socket.recv(1) == b""
        except TimeoutError:
            return False
        except OSError:
            return True

    def head(self) -> tuple[int, tuple[Header, ...]]:
        """Status and headers of the next answer."""
        lines = self.read_until(b"\r\n\r\n")[:-4].decode("latin-1").split("\r\n")
        headers = [tuple(line.split(": ", 1)) for line in lines[1:]]
        return int(lines[0].split()[1]), tuple((key, value) for key, value in headers)

    def answer(self, *, is_head: bool = False) -> Answer:
        """The next answer, whole, however its end is told."""
        status, headers = self.head()
        body = b"" if is_head else self._body(headers)
        return Answer(status=status, headers=headers, body=body)

    def chunk(self) -> bytes:
        """One chunk of a chunked body; empty at its end."""
        count = int(self.read_until(b"\r\n")[:-2], 16)
        return self.read_exactly(count + 2)[:-2]

    def _body(self, headers: Iterable[Header]) -> bytes:
        named = {key.lower(): value for key, value in headers}
        if named.get("transfer-encoding") == "chunked":
            return b"".join(iter(self.chunk, b""))
        return self.read_exactly(int(named["content-length"]))

    def _more(self) -> None:
        data = self._socket.recv(65536)
        if not data:
            raise EOFError(self._held)
        self._held += data


@attrs.frozen(kw_only=True)
class Target:
    """One implementation of the contract: where it listens, and its credentials."""

    host: str
    port: int
    token: str
    api_key: str
    inference: tuple[str, int]

    def connect(self, within_s: float = ANSWER_S_MAX) -> Connection:
        return Connection(self.host, self.port, within_s)

    def request(
        self,
        method: str,
        path: str,
        *,
        headers: Iterable[Header] = (),
        body: bytes = b"",
        bearer: str | None = "",
        host: str | None = "127.0.0.1",
        length: int | None = None,
    ) -> bytes:
        """The bytes of one request; ``path`` is bare when it begins with the prefix or is ``/``.

        Args:
            bearer: the ``Authorization`` value; empty for the right one, None for no header.
            host: None for no ``Host``.
            length: of the body that is announced, when it is not that of ``body``.
        """
        lines = [f"{method} {path} HTTP/1.1"]
        if host is not None:
            lines.append(f"Host: {host}")
        if bearer is not None:
            lines.append(f"Authorization: {bearer or f'Bearer {self.token}'}")
        lines += [f"{key}: {value}" for key, value in headers]
        announced = len(body) if length is None else length
        if announced or method in ("POST", "PUT"):
            lines.append(f"Content-Length: {announced}")
        return "\r\n".join(lines).encode("latin-1") + b"\r\n\r\n" + body

    def ask(self, method: str, path: str, **more: Any) -> Answer:
        """One request on a connection of its own; ``path`` follows the prefix."""
        return self.ask_bare(method, PREFIX + path, **more)

    def ask_bare(self, method: str, path: str, **more: Any) -> Answer:
        """As `ask`, with the whole path."""
        return self.ask_raw(self.request(method, path, **more), is_head=method == "HEAD")

    def ask_raw(self, data: bytes, *, is_head: bool = False) -> Answer:
        """These bytes on a connection of their own."""
        with self.connect() as connection:
            connection.send(data)
            return self.checked(connection.answer(is_head=is_head), is_head=is_head)

    def change(
        self,
        method: str,
        path: str,
        body: object,
        *,
        key: str | None = "a-key",
        more: Iterable[Header] = (),
        content_type: str | None = "application/json",
        **rest: Any,
    ) -> Answer:
        """One change; ``body`` is JSON, or bytes as they are to be sent."""
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        headers = [*more]
        if key is not None:
            headers.append(("Idempotency-Key", key))
        if content_type is not None:
            headers.append(("Content-Type", content_type))
        return self.ask(method, path, headers=headers, body=data, **rest)

    def checked(self, answer: Answer, *, is_head: bool = False) -> Answer:
        """``answer``, once it was held against what every answer must be."""
        assert answer.values("cache-control") == ["no-store"]
        assert answer.values("x-content-type-options") == ["nosniff"]
        for name in NEVER_SENT:
            assert not answer.values(name), name
        if is_head:
            return answer
        (kind,) = answer.values("content-type")
        if kind == "text/event-stream":
            assert answer.status == 200
            return answer
        assert kind == "application/json"
        assert self.token.encode() not in answer.body
        assert self.api_key.encode() not in answer.body
        if answer.status >= 400:
            check_error(answer)
        elif answer.status == 202:
            assert canonical(answer.json()) == answer.body
        else:
            assert answer.status == 200
        return answer


def check_error(answer: Answer) -> None:
    """The envelope, its bytes, and status and ``retryable`` as the table has them."""
    envelope = answer.json()
    assert envelope.keys() == ENVELOPE
    assert envelope["api_version"] == "1"
    error = envelope["error"]
    assert error.keys() == ERROR_FIELDS
    assert ERRORS[error["code"]] == (answer.status, error["retryable"])
    assert error["operation_id"] is None
    assert error["message"]
    assert bool(error["details"]) is (error["code"] in WITH_DETAILS)
    assert canonical(envelope) == answer.body
