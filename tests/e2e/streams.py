"""Clients that hold on: a chat stream that is read as it comes, and the followers of events."""

from __future__ import annotations

import contextlib
import http.client
import json
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, TypeVar

import attrs

from tests.e2e.daemon import Daemon

T = TypeVar("T")
RESULT_S_MAX = 60.0


@attrs.define
class ChatStream:
    """One streamed chat. Lines are read when they are asked for."""

    connection: http.client.HTTPConnection
    answer: http.client.HTTPResponse | None = None
    lines: list[str] = attrs.field(factory=list)
    ended_s: float | None = None

    def open(self) -> ChatStream:
        """Wait for the head."""
        if self.answer is None:
            self.answer = self.connection.getresponse()
        return self

    def read(self, count: int | None = None) -> list[str]:
        """The next ``count`` data lines, or all until the end, which is noted."""
        self.open()
        assert self.answer is not None
        found: list[str] = []
        while count is None or len(found) < count:
            line = self.answer.readline()
            if not line:
                self.ended_s = time.monotonic()
                break
            if line.startswith(b"data: "):
                found.append(line[6:].strip().decode())
        self.lines += found
        return found

    @property
    def is_complete(self) -> bool:
        return bool(self.lines) and self.lines[-1] == "[DONE]"

    @property
    def is_cut(self) -> bool:
        """It ended without the last chunk that says so: no client takes it for whole."""
        assert self.ended_s is not None
        # http.client keeps what is left of a chunk until it has read the last one.
        return getattr(self.answer, "chunk_left", None) is not None

    @property
    def text(self) -> str:
        found = [json.loads(line) for line in self.lines if line != "[DONE]"]
        choices = [chunk["choices"][0] for chunk in found if chunk.get("choices")]
        return "".join(choice["delta"].get("content") or "" for choice in choices)

    def close(self) -> None:
        """Hang up, whatever is still to come."""
        self.connection.close()
        if self.answer is not None:
            self.answer.close()


@contextlib.contextmanager
def chat_stream(daemon: Daemon, model: str, **more: Any) -> Iterator[ChatStream]:
    """A chat that was sent; nothing is awaited yet."""
    found = ChatStream(send_chat(daemon, model, stream=True, **more))
    try:
        yield found
    finally:
        found.close()


def send_chat(daemon: Daemon, model: str, **more: Any) -> http.client.HTTPConnection:
    """A chat request on a connection of its own; the answer is not read."""
    port = int(daemon.base_url.rpartition(":")[2])
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=RESULT_S_MAX)
    body = {"model": model, "messages": [{"role": "user", "content": "Hello"}], **more}
    headers = {"Authorization": f"Bearer {daemon.key}", "Content-Type": "application/json"}
    with closed_if_it_fails(connection):
        connection.request("POST", "/v1/chat/completions", json.dumps(body).encode(), headers)
    return connection


@attrs.frozen
class Seen:
    """One event as a follower got it."""

    id: str
    kind: str
    data: dict[str, Any]

    @property
    def seq(self) -> int:
        return int(self.id.partition(":")[2])


def events(daemon: Daemon, after: str | None = None) -> list[Seen]:
    """Every event after a cursor, or from the oldest, up to the snapshot of now."""
    until = int(daemon.snapshot()["cursor"].partition(":")[2])
    if after is not None and int(after.partition(":")[2]) >= until:
        return []
    found: list[Seen] = []
    with contextlib.closing(open_events(daemon, after)) as answer:
        for seen in read_events(answer):
            found.append(seen)
            if seen.seq >= until:
                break
    return found


def open_events(daemon: Daemon, after: str | None = None) -> http.client.HTTPResponse:
    """An event stream whose head has come. Closing the answer closes the connection."""
    connection = http.client.HTTPConnection("127.0.0.1", daemon.management_port, timeout=30.0)
    path = "/management/v1/events" + (f"?after={after}" if after else "")
    headers = {"Authorization": f"Bearer {daemon.token}", "Connection": "close"}
    with closed_if_it_fails(connection):
        connection.request("GET", path, headers=headers)
        answer = connection.getresponse()
        assert answer.status == 200, answer.read()
    return answer


@contextlib.contextmanager
def closed_if_it_fails(connection: http.client.HTTPConnection) -> Iterator[None]:
    """A daemon that dies under a request leaves no open socket to the collector."""
    try:
        yield
    except BaseException:
        connection.close()
        raise


def read_events(answer: http.client.HTTPResponse) -> Iterator[Seen]:
    """Events as they come, until the stream ends."""
    fields: dict[str, str] = {}
    while line := answer.readline():
        name, colon, value = line.decode().rstrip("\n").partition(": ")
        if colon and name:
            fields[name] = value
        elif not line.strip() and "id" in fields:
            yield Seen(fields["id"], fields["event"], json.loads(fields["data"]))
            fields = {}


class Crowd:
    """Blocking clients side by side. Leaving the block waits for each of them."""

    def __init__(self, size: int) -> None:
        self._pool = ThreadPoolExecutor(size)
        self._started: list[Future[Any]] = []

    def __enter__(self) -> Crowd:
        return self

    def __exit__(self, *_: object) -> None:
        self._pool.shutdown(wait=True)

    def do(self, fn: Callable[..., T], *args: Any, **more: Any) -> Future[T]:
        future = self._pool.submit(fn, *args, **more)
        self._started.append(future)
        return future

    def results(self) -> list[Any]:
        """Of everything so far, in the order in which it was asked for."""
        return [future.result(RESULT_S_MAX) for future in self._started]


def all_at_once(count: int, fn: Callable[[int], T]) -> list[T]:
    """``fn(0)`` … in as many threads, let go together; their results in order."""
    barrier = threading.Barrier(count)

    def one(index: int) -> T:
        barrier.wait(RESULT_S_MAX)
        return fn(index)

    with Crowd(count) as crowd:
        for index in range(count):
            crowd.do(one, index)
        found: list[T] = crowd.results()
    return found
