"""The management API for Trio programs: `AsyncClient`, as `sync.Client` but for waiting."""

from __future__ import annotations

import contextlib
import time
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from typing import Any, TypeVar

import attrs
import h11
import trio

from capyctl.client import requests
from capyctl.client.errors import ClientError, NotTheApi, RefusedByApi, Unanswered, WaitedTooLong
from capyctl.client.following import SILENCE_S_MAX, Following
from capyctl.client.frames import Frames
from capyctl.client.judging import Pending
from capyctl.client.models import Event, Receipt, Snapshot
from capyctl.client.requests import ANSWER_BYTES_MAX, PREFIX, SNAPSHOT, Change
from capyctl.client.retrying import CHANGES, READS, Retries, pause_before_next

ANSWER_S_MAX = 30.0
POLL_S = 1.0
_CHUNK_BYTES = 65536
T = TypeVar("T")


@attrs.frozen(kw_only=True)
class AsyncClient:
    """One role's management API. Each call has a connection of its own; tasks may share it.

    Cancelling a call closes its connection. A change may then have been made.
    """

    host: str
    port: int
    token: str = attrs.field(repr=False)
    wall_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000

    async def get(self, path: str, *, within_s: float = ANSWER_S_MAX) -> dict[str, Any]:
        """The body of a read; ``path`` with its prefix. Raises ClientError."""
        return await self._ask("GET", path, None, within_s)

    async def send(self, change: Change, *, within_s: float = ANSWER_S_MAX) -> dict[str, Any]:
        """A change, sent once. The receipt's fields. Raises ClientError."""
        return await self._ask(change.method, change.path, change, within_s)

    @contextlib.asynccontextmanager
    async def events(self, after: str | None) -> AsyncIterator[AsyncIterator[Event]]:
        """Opens the events after a cursor, which then come until the stream ends.

        Raises:
            ClientError: it does not open; iterating: it breaks.
        """
        path = f"{PREFIX}/events" + ("" if after is None else f"?after={after}")
        async with _Exchange.opened(self, SILENCE_S_MAX) as exchange:
            await exchange.send("GET", path, None, accept="text/event-stream")
            if exchange.status != 200:
                requests.read_answer(exchange.status, await exchange.body())
            async with contextlib.aclosing(_events(exchange)) as events:
                yield events

    async def read(self, path: str, *, retries: Retries = READS) -> dict[str, Any]:
        """As `get`, again while that can succeed."""
        return await self._again(lambda: self.get(path), retries)

    async def send_change(
        self, change: Change, *, retries: Retries = CHANGES, within_s: float = ANSWER_S_MAX
    ) -> Receipt:
        """Send a change until it is answered; as `sync.Client.send_change`."""
        fields = await self._again(lambda: self.send(change, within_s=within_s), retries)
        return Receipt.read(fields)

    async def snapshot(self, *, retries: Retries = READS) -> Snapshot:
        """What is deployed and what is running. At most about once a second, please."""
        return Snapshot.read(await self.read(SNAPSHOT, retries=retries))

    @contextlib.asynccontextmanager
    async def follow(
        self, after: str | None = None
    ) -> AsyncIterator[AsyncIterator[Snapshot | Event]]:
        """Every event, for ever; as `sync.Client.follow`, for the length of the block."""
        async with contextlib.aclosing(self._follow(Following(cursor=after))) as told:
            yield told

    async def _follow(self, place: Following) -> AsyncGenerator[Snapshot | Event, None]:
        while True:
            try:
                if place.cursor is None:
                    snapshot = await self.snapshot()
                    place.cursor = snapshot.cursor
                    yield snapshot
                async with self.events(place.cursor) as events:
                    async for event in events:
                        if place.is_told(event):
                            yield event
                pause_s = place.ended()
            except ClientError as problem:
                pause_s = place.broke(problem)
            await trio.sleep(pause_s)

    async def wait_until(
        self,
        look: Callable[[Snapshot], T | Pending],
        *,
        until_ms: int,
        every_s: float = POLL_S,
    ) -> T:
        """What ``look`` makes of a snapshot; as `sync.Client.wait_until`."""
        while True:
            found = await self._look(look)
            if not isinstance(found, Pending):
                return found
            left_s = (until_ms - self.wall_ms()) / 1000
            if left_s <= 0:
                raise WaitedTooLong(found.what)
            await trio.sleep(min(every_s, left_s))

    async def _look(self, look: Callable[[Snapshot], T | Pending]) -> T | Pending:
        try:
            row = await self.get(SNAPSHOT)
        except Unanswered as problem:
            return Pending(f"capyctl does not answer: {problem}")
        except (RefusedByApi, NotTheApi) as problem:
            if problem.retryable:
                return Pending(f"capyctl is busy: {problem}")
            raise
        return look(Snapshot.read(row))

    async def _again(
        self, ask: Callable[[], Awaitable[dict[str, Any]]], retries: Retries
    ) -> dict[str, Any]:
        for attempt in range(retries.attempts_max):
            try:
                return await ask()
            except ClientError as problem:
                pause_s = pause_before_next(retries, attempt, problem)
                if pause_s is None:
                    raise
            await trio.sleep(pause_s)
        raise AssertionError("the last attempt returns or raises")

    async def _ask(
        self, method: str, path: str, change: Change | None, within_s: float
    ) -> dict[str, Any]:
        async with _Exchange.opened(self, within_s) as exchange:
            await exchange.send(method, path, change)
            return requests.read_answer(exchange.status, await exchange.body())


class _Exchange:
    """One request and its answer on a connection of their own; each step within a bound."""

    def __init__(self, client: AsyncClient, stream: trio.SocketStream, within_s: float) -> None:
        self.status = 0
        self._client = client
        self._stream = stream
        self._within_s = within_s
        self._http = h11.Connection(h11.CLIENT)

    @classmethod
    @contextlib.asynccontextmanager
    async def opened(cls, client: AsyncClient, within_s: float) -> AsyncIterator[_Exchange]:
        with _translated(sent=False):
            with trio.fail_after(within_s):
                stream = await trio.open_tcp_stream(client.host, client.port)
        try:
            yield cls(client, stream, within_s)
        finally:
            await trio.aclose_forcefully(stream)

    async def send(
        self, method: str, path: str, change: Change | None, *, accept: str = "application/json"
    ) -> None:
        """Send it, and read the answer's head into ``status``."""
        body = b"" if change is None else change.body
        headers = requests.headers(self._client.token, change=change, accept=accept)
        named = {"Host": self._client.host, **headers, "Connection": "close"}
        if change is not None:
            named["Content-Length"] = str(len(body))
        request = h11.Request(method=method, target=path, headers=[*named.items()])
        data = self._http.send(request) or b""
        data += self._http.send(h11.Data(data=body)) or b""
        data += self._http.send(h11.EndOfMessage()) or b""
        with _translated(sent=True), trio.fail_after(self._within_s):
            await self._stream.send_all(data)
            while not isinstance(head := await self._next(), h11.Response):
                pass
        self.status = head.status_code

    async def body(self) -> bytes:
        """The rest of the answer, up to a little more than is accepted."""
        found = b""
        while len(found) <= ANSWER_BYTES_MAX and (data := await self.piece()):
            found += data
        return found

    async def piece(self) -> bytes:
        """What comes next of the body; empty at its end."""
        with _translated(sent=True), trio.fail_after(self._within_s):
            event = await self._next()
            return bytes(event.data) if isinstance(event, h11.Data) else b""

    async def _next(self) -> h11.Event:
        while (event := self._http.next_event()) is h11.NEED_DATA:
            self._http.receive_data(await self._stream.receive_some(_CHUNK_BYTES))
        if isinstance(event, h11.ConnectionClosed) or event is h11.PAUSED:
            raise h11.RemoteProtocolError("closed")
        assert not isinstance(event, type)
        return event


async def _events(exchange: _Exchange) -> AsyncGenerator[Event, None]:
    frames = Frames()
    while data := await exchange.piece():
        for event in frames.feed(data):
            yield event


@contextlib.contextmanager
def _translated(*, sent: bool) -> Any:
    try:
        yield
    except trio.TooSlowError as problem:
        raise Unanswered("no answer in time", sent=sent) from problem
    except (OSError, trio.BrokenResourceError) as problem:
        raise Unanswered("the connection broke off", sent=sent) from problem
    except h11.LocalProtocolError as problem:
        raise NotTheApi(f"the request cannot be sent: {problem}") from problem
    except h11.RemoteProtocolError as problem:
        raise Unanswered("the connection broke off", sent=sent) from problem
