"""Reads beside the writer: a few connections, each used by one thread at a time."""

from __future__ import annotations

import functools
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import trio

from capyctl.contracts.store import StoreBroken
from capyctl.store.connection import connect_reader

T = TypeVar("T")


class ReadPool:
    """At most ``count`` reads at once; more wait in line."""

    def __init__(self, path: Path, count: int) -> None:
        self._path = path
        self._count = count
        self._limiter = trio.CapacityLimiter(count)
        self._idle: list[sqlite3.Connection] = []
        self._closed = False

    async def read(self, work: Callable[[sqlite3.Connection], T]) -> T:
        """What ``work`` returns, from a thread. A cancelled read is waited for: it is short.

        Raises:
            StoreBroken: the database could not be read, or is closed.
        """
        if self._closed:
            raise StoreBroken("the store is closed")
        return await trio.to_thread.run_sync(
            functools.partial(self._work, work), limiter=self._limiter
        )

    async def close(self) -> None:
        """Wait for reads under way, then close the connections. Runs to its end when cancelled."""
        self._closed = True
        with trio.CancelScope(shield=True):
            for _ in range(self._count):
                await self._limiter.acquire_on_behalf_of(object())
        while self._idle:
            self._idle.pop().close()

    def _work(self, work: Callable[[sqlite3.Connection], T]) -> T:
        try:
            try:
                connection = self._idle.pop()
            except IndexError:
                connection = connect_reader(self._path)
            try:
                return work(connection)
            finally:
                self._idle.append(connection)
        except sqlite3.Error as problem:
            raise StoreBroken(f"cannot read {self._path}: {problem}") from problem
