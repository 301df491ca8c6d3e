"""The store: `contracts.store.Store` on one SQLite file. How it works: docs/design/store.md."""

from __future__ import annotations

import contextlib
import functools
import sqlite3
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path

import trio

from capyctl.contracts.clock import Ids
from capyctl.contracts.store import (
    Change,
    Committed,
    EventPage,
    OnCommitted,
    StoreBroken,
    Stored,
)
from capyctl.domain.events import Receipt
from capyctl.store import rows
from capyctl.store.batch import encode
from capyctl.store.connection import Opened, is_damage, open_database
from capyctl.store.errors import StoreCorrupt
from capyctl.store.reader import ReadPool
from capyctl.store.retention import Retention
from capyctl.store.schema import STEPS, Step
from capyctl.store.writer import BeforeCommit, Waiting, Writer, broken

READS_MAX = 2
EVENT_READS_MAX = 4


@contextlib.asynccontextmanager
async def open_store(
    path: Path,
    *,
    clock_wall_ms: Callable[[], int],
    ids: Ids,
    retention: Retention | None = None,
    before_commit: BeforeCommit | None = None,
    on_broken: Callable[[StoreBroken], None] | None = None,
    steps: Sequence[Step] = STEPS,
) -> AsyncIterator[SqliteStore]:
    """The store in the file ``path``, for the length of the block.

    Creates or migrates the database, tells whether it was put back from a copy, and begins the
    next session. At the end of the block, cancelled or not, all accepted changes are written and
    the file is closed.

    Args:
        path: the database file; its folder belongs to this user alone.
        clock_wall_ms: milliseconds since 1970; called in the writing thread.
        ids: for the name of a new incarnation.
        before_commit: called in the writing thread with the changes of each transaction, before
            it; what it raises is a failed commit. For tests.
        on_broken: called once, in the event loop, when the store takes no change any more.

    Raises:
        StoreUnusable: the file cannot be used, see `store.errors`; it was not changed.
    """
    opening = functools.partial(open_database, path, new_incarnation=ids.ulid, steps=steps)
    opened = await trio.to_thread.run_sync(opening)
    store = SqliteStore(
        path,
        opened,
        clock_wall_ms=clock_wall_ms,
        retention=retention or Retention(),
        before_commit=before_commit,
        on_broken=on_broken,
    )
    try:
        yield store
    finally:
        await store._close()


class SqliteStore:
    """Implements `contracts.store.Store`. Made by `open_store` only."""

    def __init__(
        self,
        path: Path,
        opened: Opened,
        *,
        clock_wall_ms: Callable[[], int],
        retention: Retention,
        before_commit: BeforeCommit | None,
        on_broken: Callable[[StoreBroken], None] | None,
    ) -> None:
        self.put_back = opened.put_back
        """Why the database was taken for a copy; None when it lived on, or is new."""
        self.incarnation = opened.meta.incarnation
        self._path = path
        self._listeners: list[OnCommitted] = []
        self._failure: BaseException | None = None
        self._why_broken: str | None = None
        self._on_broken = on_broken
        self._closing = False
        self._ended = trio.Event()
        self._reads = ReadPool(path, READS_MAX)
        self._event_reads = ReadPool(path, EVENT_READS_MAX)
        self._writer = Writer(
            path,
            opened,
            clock_wall_ms=clock_wall_ms,
            retention=retention,
            before_commit=before_commit,
            deliver=self._deliver,
            ended=self._ended.set,
        )
        self._writer.start()

    @property
    def broken(self) -> bool:
        return self._failure is not None

    @property
    def why_broken(self) -> str | None:
        """Why no change is taken any more, and what to do; None while all is well."""
        return self._why_broken

    async def load(self) -> Stored:
        """Everything that is stored. Each call reads again; the session stays the same.

        Raises:
            StoreUnusable: a record cannot be read.
            StoreBroken: the file cannot be read.
        """
        try:
            return await self._reads.read(rows.read_stored)
        except StoreBroken as problem:
            cause = problem.__cause__
            if isinstance(cause, sqlite3.Error) and is_damage(cause):
                raise StoreCorrupt(self._path, str(cause)) from cause
            raise

    async def commit(self, change: Change) -> Committed:
        """As `contracts.store.Store.commit`. A task that is cancelled already stores nothing.

        Raises:
            TypeError, ValueError, AssertionError: ``change`` cannot be stored. Always a bug.
        """
        await trio.lowlevel.checkpoint_if_cancelled()
        if self._failure is not None:
            raise broken(self._path, self._failure)
        if self._closing:
            raise StoreBroken("the store is closed")
        waiting = Waiting(encode(change))
        self._writer.submit(waiting)
        await waiting.done.wait()
        match waiting.outcome:
            case Committed():
                return waiting.outcome
            case None:
                raise AssertionError("woken without an outcome")
            case _:
                raise waiting.outcome

    def submit(self, change: Change) -> None:
        """As `contracts.store.Store.submit`.

        Raises:
            TypeError, ValueError, AssertionError: ``change`` cannot be stored, or does more than
                tell. Always a bug.
        """
        assert change == Change(events=change.events), "only what tells is not waited for"
        if self._failure is None and not self._closing:
            self._writer.submit(Waiting(encode(change), is_awaited=False))

    def listen(self, listener: OnCommitted) -> None:
        """As `contracts.store.Store.listen`. A listener that raises breaks the store."""
        self._listeners.append(listener)

    async def find_receipt(self, scope: str, key: str) -> Receipt | None:
        """The durable receipt. One that is about to be committed is not found yet.

        Raises:
            StoreBroken: the file cannot be read.
        """
        wanted = (scope, key)
        found = await self._reads.read(lambda connection: rows.find_receipts(connection, [wanted]))
        return found.get(wanted)

    async def read_events(
        self, after_seq: int, *, count_max: int = 64, bytes_max: int = 262_144
    ) -> EventPage:
        """As `contracts.store.Store.read_events`; four at once, apart from other reads.

        Raises:
            StoreBroken: the file cannot be read.
        """
        reading = functools.partial(
            rows.read_event_page, after_seq=after_seq, count_max=count_max, bytes_max=bytes_max
        )
        return await self._event_reads.read(reading)

    def _deliver(self, batch: Sequence[Waiting]) -> None:
        """In the event loop: announce what is durable, then wake those who wait for it."""
        was_broken = self.broken
        committed: list[Committed] = []
        for one in batch:
            if isinstance(one.outcome, StoreBroken):
                self._failure = self._failure or one.outcome.__cause__
            elif isinstance(one.outcome, Committed):
                committed.append(one.outcome)
        try:
            if committed and self._failure is None:
                for listener in self._listeners:
                    listener(tuple(committed))
        except Exception as problem:
            # An announcement that was lost would leave its readers wrong for good.
            self._writer.fail(problem)
            self._failure = problem
        if self._failure is not None and not was_broken:
            self._note_failure(broken(self._path, self._failure))
        for one in batch:
            if self._failure is not None:
                one.outcome = broken(self._path, self._failure)
            one.done.set()

    def _note_failure(self, failure: StoreBroken) -> None:
        self._why_broken = str(failure)
        if self._on_broken is not None:
            self._on_broken(failure)

    async def _close(self) -> None:
        self._closing = True
        await self._reads.close()
        await self._event_reads.close()
        self._writer.finish()
        with trio.CancelScope(shield=True):
            await self._ended.wait()
