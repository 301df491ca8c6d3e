"""The management API for programs that block: `Client`, on `http.client` alone."""

from __future__ import annotations

import contextlib
import http.client
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeVar

import attrs

from capyctl.client import requests
from capyctl.client.errors import ClientError, NotTheApi, RefusedByApi, Unanswered, WaitedTooLong
from capyctl.client.following import SILENCE_S_MAX, STREAMS, Following
from capyctl.client.frames import Frames
from capyctl.client.judging import Pending, started, stopped
from capyctl.client.models import Deployment, Event, Receipt, Snapshot
from capyctl.client.requests import ANSWER_BYTES_MAX, PREFIX, SNAPSHOT, Change
from capyctl.client.retrying import CHANGES, READS, Retries, covering, pause_before_next

ANSWER_S_MAX = 30.0
POLL_S = 1.0
GRACE_MS = 10_000
"""How long after its deadline the outcome of an action is still looked for."""
_CHUNK_BYTES = 65536
T = TypeVar("T")


@attrs.frozen(kw_only=True)
class Client:
    """One role's management API. Each call has a connection of its own; threads may share it."""

    host: str
    port: int
    token: str = attrs.field(repr=False)
    sleep: Callable[[float], object] = time.sleep
    wall_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000

    # -- one request -------------------------------------------------------------------------

    def get(self, path: str, *, within_s: float = ANSWER_S_MAX) -> dict[str, Any]:
        """The body of a read; ``path`` with its prefix.

        Raises:
            ClientError: unanswered, refused, or not this API.
        """
        return self._ask("GET", path, None, within_s)

    def send(self, change: Change, *, within_s: float = ANSWER_S_MAX) -> dict[str, Any]:
        """A change, sent once. The receipt's fields. Raises as `get`."""
        return self._ask(change.method, change.path, change, within_s)

    def events(self, after: str | None) -> Iterator[Event]:
        """Events after a cursor as they come, until the stream ends; None: from the oldest.

        Raises:
            ClientError: it does not open, or breaks.
        """
        path = f"{PREFIX}/events" + ("" if after is None else f"?after={after}")
        frames = Frames()
        with self._answering("GET", path, None, SILENCE_S_MAX, "text/event-stream") as response:
            if response.status != 200:
                requests.read_answer(response.status, response.read(ANSWER_BYTES_MAX + 1))
            while True:
                with _translated(sent=True):
                    data = response.read1(_CHUNK_BYTES)
                if not data:
                    return
                yield from frames.feed(data)

    # -- again and again ---------------------------------------------------------------------

    def read(self, path: str, *, retries: Retries = READS) -> dict[str, Any]:
        """As `get`, again while that can succeed."""
        return self._again(lambda: self.get(path), retries)

    def send_change(
        self, change: Change, *, retries: Retries = CHANGES, within_s: float = ANSWER_S_MAX
    ) -> Receipt:
        """Send a change until it is answered: the same key and bytes, while that can succeed.

        Raises:
            RefusedByApi: for good, or still after the last attempt.
            Unanswered: it may have been made. Send the very same `Change` later to find out.
            NotTheApi: something else answers.
        """
        return Receipt.read(self.send_raw(change, retries=retries, within_s=within_s))

    def send_raw(
        self, change: Change, *, retries: Retries = CHANGES, within_s: float = ANSWER_S_MAX
    ) -> dict[str, Any]:
        """As `send_change`, of any change: of hosts, too. The body of the answer as it is."""
        return self._again(lambda: self.send(change, within_s=within_s), retries)

    def snapshot(self, *, retries: Retries = READS) -> Snapshot:
        """What is deployed and what is running. At most about once a second, please."""
        return Snapshot.read(self.read(SNAPSHOT, retries=retries))

    def follow(
        self, after: str | None = None, *, retries: Retries = STREAMS
    ) -> Iterator[Snapshot | Event]:
        """Every event, for ever, across streams that end or break.

        Begins with a snapshot, unless ``after`` names where to go on, and gives another one
        whenever events may have been missed: what was known before it is void then.
        ``retries`` bounds the attempts in a row that bring nothing.

        Raises:
            ClientError: the API stays away, or refuses for good.
        """
        place = Following(cursor=after, retries=retries)
        while True:
            try:
                if place.cursor is None:
                    snapshot = self.snapshot()
                    place.cursor = snapshot.cursor
                    yield snapshot
                for event in self.events(place.cursor):
                    if place.is_told(event):
                        yield event
                pause_s = place.ended()
            except ClientError as problem:
                pause_s = place.broke(problem)
            if pause_s:
                self.sleep(pause_s)

    def wait_until(
        self,
        look: Callable[[Snapshot], T | Pending],
        *,
        until_ms: int,
        every_s: float = POLL_S,
        on_wait: Callable[[str], object] = lambda _: None,
    ) -> T:
        """What ``look`` makes of the first snapshot that it does not call `Pending`.

        An API that is busy, or away for a while, is asked again.

        Args:
            until_ms: Unix time; at least one snapshot is asked for.
            on_wait: told what is being waited for, before each pause.

        Raises:
            WaitedTooLong: the bound came first.
            ClientError: whatever ``look`` raises, and a read that is refused for good.
        """
        return self.wait_raw(
            lambda row: look(Snapshot.read(row)),
            until_ms=until_ms,
            every_s=every_s,
            on_wait=on_wait,
        )

    def wait_raw(
        self,
        look: Callable[[Mapping[str, Any]], T | Pending],
        *,
        until_ms: int,
        every_s: float = POLL_S,
        on_wait: Callable[[str], object] = lambda _: None,
    ) -> T:
        """As `wait_until`, over the snapshot as it came."""
        while True:
            found = self._look(look)
            if not isinstance(found, Pending):
                return found
            left_s = (until_ms - self.wall_ms()) / 1000
            if left_s <= 0:
                raise WaitedTooLong(found.what)
            on_wait(found.what)
            self.sleep(min(every_s, left_s))

    # -- whole sequences ---------------------------------------------------------------------

    def bring_up(self, document: Mapping[str, Any], *, run: str) -> Deployment:
        """Create, start, and wait until every instance serves.

        ``run`` makes the keys this run's own: the same one again, after a crash, finds what was
        made before.

        Raises:
            StartFailed, WaitedTooLong: the deployment is there, and does not serve.
            ClientError: as `send_change`.
        """
        name = document["name"]
        created = self.send_change(requests.create(document, key=f"create-{name}-{run}"))
        return self.start(created.deployment_id, key=f"start-{name}-{run}")

    def start(self, id: str, *, key: str, evict: bool = False) -> Deployment:
        """Start a deployment, and wait until every instance serves.

        A start that was accepted under this key before is not made again, only awaited. Raises
        as `bring_up`.
        """
        deployment = self._present(id)
        window_ms = deployment.timeouts["initialize_ms"]
        self._send_once(deployment, "start", key, window_ms, evict=evict)
        until_ms = self.wall_ms() + window_ms + GRACE_MS
        return self.wait_until(lambda seen: started(seen.find(id)), until_ms=until_ms)

    def stop(self, id: str, *, key: str) -> Deployment:
        """Stop a deployment, and wait until it is stopped; as `start`."""
        deployment = self._present(id)
        window_ms = deployment.timeouts["stop_ms"]
        self._send_once(deployment, "stop", key, window_ms)
        until_ms = self.wall_ms() + window_ms + GRACE_MS
        return self.wait_until(lambda seen: stopped(seen.find(id)), until_ms=until_ms)

    def take_down(self, id: str, *, run: str) -> Receipt:
        """Stop, wait, and delete. Raises as `bring_up`."""
        deployment = self.stop(id, key=f"stop-{id}-{run}")
        change = requests.action(
            deployment, "delete", key=f"delete-{id}-{run}", now_ms=self.wall_ms()
        )
        return self.send_change(change)

    # -- within ------------------------------------------------------------------------------

    def _send_once(
        self, deployment: Deployment, action: str, key: str, window_ms: int, *, evict: bool = False
    ) -> None:
        change = requests.action(deployment, action, key=key, now_ms=self.wall_ms(), evict=evict)
        within_s = max(ANSWER_S_MAX, window_ms / 1000) if evict else ANSWER_S_MAX
        try:
            self.send_change(change, retries=covering(window_ms), within_s=within_s)
        except RefusedByApi as refused:
            # The key is this action's own: only its deadline differs from when it was accepted.
            if refused.code != "idempotency_conflict":
                raise

    def _present(self, id: str) -> Deployment:
        found = self.snapshot().find(id)
        if found is None:
            raise RefusedByApi("not_found", f"There is no deployment {id}", status=404)
        return found

    def _look(self, look: Callable[[Mapping[str, Any]], T | Pending]) -> T | Pending:
        try:
            row = self.get(SNAPSHOT)
        except Unanswered as problem:
            return Pending(f"capyctl at {self._address} does not answer: {problem}")
        except (RefusedByApi, NotTheApi) as problem:
            if problem.retryable:
                return Pending(f"capyctl at {self._address} is busy: {problem}")
            raise
        return look(row)

    @property
    def _address(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    def _again(self, ask: Callable[[], dict[str, Any]], retries: Retries) -> dict[str, Any]:
        for attempt in range(retries.attempts_max):
            try:
                return ask()
            except ClientError as problem:
                pause_s = pause_before_next(retries, attempt, problem)
                if pause_s is None:
                    raise
            self.sleep(pause_s)
        raise AssertionError("the last attempt returns or raises")

    def _ask(
        self, method: str, path: str, change: Change | None, within_s: float
    ) -> dict[str, Any]:
        with self._answering(method, path, change, within_s) as response:
            with _translated(sent=True):
                data = response.read(ANSWER_BYTES_MAX + 1)
                # A bounded read says nothing of an answer that was cut short.
                if response.length and len(data) <= ANSWER_BYTES_MAX:
                    raise http.client.IncompleteRead(data, response.length)
        return requests.read_answer(response.status, data)

    @contextlib.contextmanager
    def _answering(
        self,
        method: str,
        path: str,
        change: Change | None,
        within_s: float,
        accept: str = "application/json",
    ) -> Iterator[http.client.HTTPResponse]:
        connection = http.client.HTTPConnection(self.host, self.port, timeout=within_s)
        headers = requests.headers(self.token, change=change, accept=accept)
        try:
            with _translated(sent=False):
                connection.connect()
            with _translated(sent=True):
                body = None if change is None else change.body
                connection.request(method, path, body=body, headers=headers)
                response = connection.getresponse()
            yield response
        finally:
            connection.close()


@contextlib.contextmanager
def _translated(*, sent: bool) -> Iterator[None]:
    try:
        yield
    except (OSError, http.client.HTTPException) as problem:
        raise Unanswered(_said(problem), sent=sent) from problem


def _said(problem: Exception) -> str:
    if isinstance(problem, TimeoutError):
        return "no answer in time"
    if isinstance(problem, OSError) and problem.strerror:
        return problem.strerror.lower()
    return "the connection broke off"
