"""The one thread that writes: takes all changes that wait and makes them durable together."""

from __future__ import annotations

import contextlib
import queue
import sqlite3
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import attrs
import trio

from capyctl.contracts.store import Change, Committed, ReceiptTaken, StoreBroken
from capyctl.store.batch import Batch, Encoded, receipt_keys
from capyctl.store.connection import Opened, close_in_order
from capyctl.store.errors import why_not_stored
from capyctl.store.retention import Retention
from capyctl.store.rows import drop_old_operations, find_receipts, write_batch, write_meta

CHANGES_PER_COMMIT_MAX = 256
"""More than this many wait for the next transaction, so that none takes long."""
OPERATIONS_DROPPED_MAX = 256
"""In one transaction, and also how many new ones set off the next look."""
RIDE_S = 0.005
"""How long what nobody waits for is kept for a change that somebody does: they cost one sync."""
IDLE_S = 60.0
"""How often a store without changes looks for events that are too old."""

BeforeCommit = Callable[[list[Change]], None]


@attrs.define(eq=False)
class Waiting:
    """One change on its way through the writer, and the task that waits for it."""

    encoded: Encoded
    is_awaited: bool = True
    """Somebody waits: it is written at once, and with it what nobody waits for."""
    done: trio.Event = attrs.field(factory=trio.Event, init=False)
    outcome: Committed | ReceiptTaken | StoreBroken | None = attrs.field(default=None, init=False)
    """Set by the writer before the event is."""


class Writer:
    """Owns the writing connection from ``start`` to the end of its thread.

    Everything but `run` and what it calls belongs to the event loop's thread.
    """

    def __init__(
        self,
        path: Path,
        opened: Opened,
        *,
        clock_wall_ms: Callable[[], int],
        retention: Retention,
        before_commit: BeforeCommit | None,
        deliver: Callable[[Sequence[Waiting]], None],
        ended: Callable[[], None],
    ) -> None:
        """``deliver`` and ``ended`` are called in the event loop; ``clock_wall_ms`` is not."""
        self._path = path
        self._opened = opened
        self._clock_wall_ms = clock_wall_ms
        self._retention = retention
        self._before_commit = before_commit
        self._deliver = deliver
        self._ended = ended
        self._queue: queue.SimpleQueue[Waiting | None] = queue.SimpleQueue()
        self._token = trio.lowlevel.current_trio_token()
        self._failure: BaseException | None = None
        # The first look comes with the first change: earlier sessions may have left some.
        self._new_operations_count = OPERATIONS_DROPPED_MAX
        # A daemon thread: when the event loop dies without closing the store, the process may end.
        self._thread = threading.Thread(target=self._run, name="capyctl-store", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def submit(self, waiting: Waiting) -> None:
        self._queue.put(waiting)

    def finish(self) -> None:
        """Write what was submitted before this, close the database, end the thread."""
        self._queue.put(None)

    def fail(self, problem: BaseException) -> None:
        """Write nothing more: what was announced and what is stored have come apart."""
        self._failure = self._failure or problem

    # -- in the writing thread ---------------------------------------------------------------

    def _run(self) -> None:
        going_on = True
        while going_on:
            batch, going_on = self._take()
            if batch:
                self._write(batch)
                self._post(self._deliver, batch)
            else:
                self._tidy()
        close_in_order(self._path, self._opened)
        self._post(self._ended)

    def _take(self) -> tuple[list[Waiting], bool]:
        """All that wait, at least one unless it is time to tidy; and whether more may come."""
        batch: list[Waiting] = []
        is_awaited = False
        try:
            one = self._queue.get(timeout=0 if self._behind() else IDLE_S)
            while one is not None:
                batch.append(one)
                if len(batch) == CHANGES_PER_COMMIT_MAX:
                    return batch, True
                is_awaited = is_awaited or one.is_awaited
                one = self._queue.get(timeout=0 if is_awaited else RIDE_S)
        except queue.Empty:
            return batch, True
        return batch, False

    def _behind(self) -> bool:
        if self._failure is not None:
            return False
        return self._opened.history.over(self._retention, self._clock_wall_ms())

    def _write(self, waiting: Sequence[Waiting]) -> None:
        try:
            if self._failure is not None:
                raise self._failure
            if self._before_commit is not None:
                self._before_commit([one.encoded.change for one in waiting])
            outcomes = self._commit([one.encoded for one in waiting])
        except Exception as problem:
            self._failure = problem
            for one in waiting:
                one.outcome = broken(self._path, problem)
        else:
            for one, outcome in zip(waiting, outcomes, strict=True):
                one.outcome = outcome

    def _commit(self, changes: Sequence[Encoded]) -> list[Committed | ReceiptTaken]:
        connection, meta, history = self._opened.connection, self._opened.meta, self._opened.history
        now_ms = self._clock_wall_ms()
        with _transaction(connection):
            batch = Batch(
                stored=find_receipts(connection, receipt_keys(changes)),
                next_seq=history.last_seq + 1,
                recorded_at_ms=now_ms,
            )
            outcomes = [batch.add(change) for change in changes]
            if batch.empty:
                return outcomes
            write_batch(connection, batch)
            self._drop_operations(len(batch.rows.operations))
            history.append(batch.events)
            history.trim(connection, self._retention, now_ms)
            meta.last_seq, meta.payload_bytes = history.last_seq, history.payload_bytes
            write_meta(connection, meta)
        return outcomes

    def _drop_operations(self, written_count: int) -> None:
        self._new_operations_count += written_count
        if self._new_operations_count < OPERATIONS_DROPPED_MAX:
            return
        dropped_count = drop_old_operations(
            self._opened.connection, count_max=OPERATIONS_DROPPED_MAX
        )
        if dropped_count < OPERATIONS_DROPPED_MAX:
            self._new_operations_count = 0

    def _tidy(self) -> None:
        if not self._behind():
            return
        connection, meta, history = self._opened.connection, self._opened.meta, self._opened.history
        try:
            with _transaction(connection):
                history.trim(connection, self._retention, self._clock_wall_ms())
                meta.payload_bytes = history.payload_bytes
                write_meta(connection, meta)
        except Exception as problem:
            # Told to the next caller: nobody waits for this.
            self._failure = problem

    def _post(self, call: Callable[..., None], *args: object) -> None:
        try:
            self._token.run_sync_soon(call, *args)
        except trio.RunFinishedError:
            # Nobody waits any more; what is in the queue is still written.
            return


def broken(path: Path, problem: BaseException) -> StoreBroken:
    """What the callers of `commit` are told."""
    error = StoreBroken(why_not_stored(path, problem))
    error.__cause__ = problem
    return error


@contextlib.contextmanager
def _transaction(connection: sqlite3.Connection) -> Iterator[None]:
    """Commit at the end, or undo everything."""
    connection.execute("BEGIN IMMEDIATE")
    try:
        yield
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise
