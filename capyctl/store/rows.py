"""SQL over the tables: a batch in few statements, and everything back again.

Each statement lets go of the interpreter and takes it again, which is slow beside a busy event
loop; so rows are written many at a time.
"""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Iterator, Sequence
from typing import Any

import attrs

from capyctl.contracts.store import EventPage, Stored
from capyctl.domain.events import Event, Receipt
from capyctl.domain.ids import InstanceId
from capyctl.store.batch import (
    CERTIFICATES,
    DEPLOYMENTS,
    HOSTS,
    INSTANCES,
    INVITATIONS,
    OPERATIONS,
    Batch,
    ReceiptKey,
)
from capyctl.store.codec import Codec, R

OPERATIONS_KEPT_COUNT = 1_000
_LATEST = (
    "SELECT max(id) FROM operations WHERE deployment IN (SELECT id FROM deployments)"
    " GROUP BY deployment, number"
)
"""What is shown of each deployment and instance, however long ago it was."""
_CHUNKS = (64, 8, 1)
"""Few sizes, so that few statements are compiled; 64 rows are under any limit on variables."""

Row = Sequence[Any]


@attrs.define(kw_only=True)
class Meta:
    """The one row of ``meta``."""

    incarnation: str
    session_epoch: int
    closed: int
    """1 after an orderly close; 0 in a session, and after a crash."""
    last_seq: int
    payload_bytes: int
    """Of all retained events together."""
    file_identity: str
    witness: str
    """See `lineage`."""


_META_COLUMNS = tuple(field.name for field in attrs.fields(Meta))


def read_meta(connection: sqlite3.Connection) -> Meta:
    row = connection.execute(f"SELECT {', '.join(_META_COLUMNS)} FROM meta").fetchone()
    return Meta(**dict(zip(_META_COLUMNS, row, strict=True)))


def write_meta(connection: sqlite3.Connection, meta: Meta) -> None:
    settings = ", ".join(f"{name} = ?" for name in _META_COLUMNS)
    connection.execute(f"UPDATE meta SET {settings}", attrs.astuple(meta))


def find_receipts(
    connection: sqlite3.Connection, keys: Sequence[ReceiptKey]
) -> dict[ReceiptKey, Receipt]:
    """Those of ``keys`` that are stored."""
    found = {}
    for chunk in _chunks(keys):
        places = ", ".join(["(?, ?)"] * len(chunk))
        rows = connection.execute(
            "SELECT scope, key, fingerprint, response FROM receipts"
            f" WHERE (scope, key) IN (VALUES {places})",
            [value for key in chunk for value in key],
        )
        for scope, key, fingerprint, response in rows:
            found[scope, key] = Receipt(
                scope=scope, key=key, fingerprint=fingerprint, response=response
            )
    return found


def write_batch(connection: sqlite3.Connection, batch: Batch) -> None:
    """Inside the caller's transaction. Deletes go first: what survived them was put later."""
    for deployment in batch.deleted:
        connection.execute("DELETE FROM deployments WHERE id = ?", (deployment,))
        connection.execute("DELETE FROM instances WHERE deployment = ?", (deployment,))
    rows = batch.rows
    _write(connection, "REPLACE INTO deployments", list(rows.deployments.items()))
    instances = [(*key, text) for key, text in rows.instances.items()]
    _write(connection, "REPLACE INTO instances", instances)
    operations = [(key, *values) for key, values in rows.operations.items()]
    _write(connection, "REPLACE INTO operations", operations)
    _write(connection, "REPLACE INTO hosts", list(rows.hosts.items()))
    _write(connection, "REPLACE INTO invitations", list(rows.invitations.items()))
    _write(connection, "REPLACE INTO certificates", list(rows.certificates.items()))
    receipts = [(r.scope, r.key, r.fingerprint, r.response) for r in batch.receipts.values()]
    _write(connection, "INSERT INTO receipts", receipts)
    _write(connection, "INSERT INTO events", [_event_row(event) for event in batch.events])


def drop_old_operations(connection: sqlite3.Connection, *, count_max: int) -> int:
    """Delete up to ``count_max`` ended operations that are older than the newest 1,000, and not
    the latest of a deployment or instance.

    Returns:
        How many it deleted.
    """
    return connection.execute(
        "DELETE FROM operations WHERE id IN ("
        " SELECT id FROM operations WHERE ended = 1 AND id <"
        " (SELECT id FROM operations ORDER BY id DESC LIMIT 1 OFFSET ?)"
        f" AND id NOT IN ({_LATEST}) ORDER BY id LIMIT ?)",
        (OPERATIONS_KEPT_COUNT - 1, count_max),
    ).rowcount


def read_stored(connection: sqlite3.Connection) -> Stored:
    """Everything a start finds, as of one moment.

    Raises:
        RecordUnreadable: a row does not have the shape of its record.
    """
    with _one_moment(connection):
        meta = read_meta(connection)
        deployments = connection.execute("SELECT id, record FROM deployments ORDER BY id")
        instances = connection.execute(
            "SELECT deployment, number, record FROM instances ORDER BY deployment, number"
        )
        operations = connection.execute(
            "SELECT id, record FROM operations WHERE ended = 0 OR id >= coalesce("
            " (SELECT id FROM operations ORDER BY id DESC LIMIT 1 OFFSET ?), '')"
            f" OR id IN ({_LATEST}) ORDER BY id",
            (OPERATIONS_KEPT_COUNT - 1,),
        )
        return Stored(
            incarnation=meta.incarnation,
            session_epoch=meta.session_epoch,
            last_seq=meta.last_seq,
            deployments=tuple(DEPLOYMENTS.from_text(text, row=key) for key, text in deployments),
            instances=tuple(
                INSTANCES.from_text(text, row=str(InstanceId(deployment, number)))
                for deployment, number, text in instances
            ),
            operations=tuple(OPERATIONS.from_text(text, row=key) for key, text in operations),
            hosts=_read(connection, HOSTS),
            invitations=_read(connection, INVITATIONS),
            certificates=tuple(
                sorted(_read(connection, CERTIFICATES), key=lambda one: one.issued_at_ms)
            ),
        )


def _read(connection: sqlite3.Connection, codec: Codec[R]) -> tuple[R, ...]:
    found = connection.execute(f"SELECT id, record FROM {codec.table} ORDER BY id")
    return tuple(codec.from_text(text, row=key) for key, text in found)


def read_event_page(
    connection: sqlite3.Connection, after_seq: int, *, count_max: int, bytes_max: int
) -> EventPage:
    """A page of events, and where the history begins and ends, as of one moment."""
    events: list[Event] = []
    size_bytes = 0
    with _one_moment(connection):
        last_seq = read_meta(connection).last_seq
        (floor_seq,) = connection.execute("SELECT min(seq) FROM events").fetchone()
        rows = connection.execute(
            "SELECT seq, kind, deployment, operation, payload, recorded_at_ms, payload_bytes"
            " FROM events WHERE seq > ? ORDER BY seq LIMIT ?",
            (after_seq, count_max),
        )
        for seq, kind, deployment, operation, payload, recorded_at_ms, payload_bytes in rows:
            size_bytes += payload_bytes
            if events and size_bytes > bytes_max:
                break
            events.append(
                Event(
                    seq=seq,
                    kind=kind,
                    deployment=deployment,
                    operation=operation,
                    payload_json=payload,
                    recorded_at_ms=recorded_at_ms,
                )
            )
        rows.close()
    floor_seq = last_seq + 1 if floor_seq is None else floor_seq
    return EventPage(events=tuple(events), floor_seq=floor_seq, last_seq=last_seq)


def _event_row(event: Event) -> Row:
    payload = event.payload_json
    return (
        event.seq,
        event.kind,
        event.deployment,
        event.operation,
        payload,
        len(payload.encode()),
        event.recorded_at_ms,
    )


def _write(connection: sqlite3.Connection, statement: str, rows: Sequence[Row]) -> None:
    for chunk in _chunks(rows):
        places = ", ".join([f"({', '.join('?' * len(chunk[0]))})"] * len(chunk))
        connection.execute(f"{statement} VALUES {places}", [v for row in chunk for v in row])


def _chunks(rows: Sequence[Row]) -> Iterator[Sequence[Row]]:
    start = 0
    for size in _CHUNKS:
        while len(rows) - start >= size:
            yield rows[start : start + size]
            start += size


@contextlib.contextmanager
def _one_moment(connection: sqlite3.Connection) -> Iterator[None]:
    """A read transaction: all statements inside see the same committed state."""
    connection.execute("BEGIN")
    try:
        yield
    finally:
        connection.execute("COMMIT")
