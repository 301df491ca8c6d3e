"""Stores, records and changes for the tests of the store and of what follows it."""

from __future__ import annotations

import contextlib
import itertools
import threading
from collections.abc import AsyncIterator
from pathlib import Path

from capyctl.contracts.store import Change
from capyctl.domain.certificates import IssuedCertificate
from capyctl.domain.events import NewEvent, Receipt
from capyctl.domain.hosts import HostRecord, Invitation
from capyctl.domain.ids import DeploymentId, HostId, OperationId
from capyctl.domain.operations import Operation, OperationKind, OperationState
from capyctl.store.sqlite_store import SqliteStore, open_store

D = DeploymentId("01ARZ3NDEKTSV4RRFFQ69G5FAV")
NOW_MS = 1_760_000_000_000


class CountingIds:
    """ULIDs that sort in the order they were given out in."""

    def __init__(self) -> None:
        self._numbers = itertools.count(1)

    def ulid(self) -> str:
        return f"{next(self._numbers):026d}"


IDS = CountingIds()
"""One for the whole run: two stores never have the same incarnation."""


class Clock:
    def __init__(self) -> None:
        self.now_ms = NOW_MS

    def wall_ms(self) -> int:
        return self.now_ms


class Blocker:
    """Holds the writing thread before its transaction, and sees what it is about to write."""

    def __init__(self) -> None:
        self.batches: list[list[Change]] = []
        self.failure: Exception | None = None
        self._open = threading.Event()
        self._open.set()

    def close(self) -> None:
        self._open.clear()

    def open(self) -> None:
        self._open.set()

    def __call__(self, changes: list[Change]) -> None:
        self.batches.append(changes)
        assert self._open.wait(timeout=30)
        if self.failure is not None:
            raise self.failure


def operation_id(number: int) -> OperationId:
    return OperationId(f"01{number:024d}")


def operation(number: int, state: OperationState = OperationState.SUCCEEDED) -> Operation:
    return Operation(
        id=operation_id(number),
        deployment=D,
        instance=None,
        kind=OperationKind.INITIALIZE,
        state=state,
        accepted_at_ms=NOW_MS + number,
    )


def host(number: int) -> HostRecord:
    return HostRecord(id=HostId(f"02{number:024d}"), name=f"host-{number}")


def invitation(number: int) -> Invitation:
    return Invitation(
        id=f"03{number:024d}",
        host_name=f"host-{number}",
        secret_digest="d" * 64,
        expires_at_ms=NOW_MS,
    )


def certificate(number: int) -> IssuedCertificate:
    return IssuedCertificate(
        serial=f"{number:040x}",
        host=host(number).id,
        fingerprint=f"{number:064x}",
        key_digest="c" * 64,
        issued_at_ms=0,
        expires_at_ms=NOW_MS,
        pem="-----BEGIN CERTIFICATE-----",
    )


def event(number: int = 0, text: str = "") -> NewEvent:
    return NewEvent(
        kind="tested",
        deployment=D,
        operation=operation_id(number),
        payload={"z": text, "number": str(number)},
    )


def receipt(key: str, response: str = "{}", scope: str = "create") -> Receipt:
    return Receipt(scope=scope, key=key, fingerprint="0" * 64, response=response)


def noted(number: int) -> Change:
    """A change with one event, and nothing else."""
    return Change(events=(event(number),))


def accepted(number: int) -> Change:
    """A change with all there is: an operation, a receipt and two events."""
    return Change(
        puts=(operation(number),),
        receipt=receipt(str(number), response=str(number)),
        events=(event(number), event(number)),
    )


def database(folder: Path) -> Path:
    return folder / "srv.sqlite3"


@contextlib.asynccontextmanager
async def opened(folder: Path, **settings) -> AsyncIterator[SqliteStore]:
    clock = settings.pop("clock", None) or Clock()
    async with open_store(
        database(folder), clock_wall_ms=clock.wall_ms, ids=IDS, **settings
    ) as store:
        yield store


async def all_events(store, after_seq: int = 0) -> list:
    events = []
    while page := (await store.read_events(after_seq)).events:
        events += page
        after_seq = page[-1].seq
    return events
