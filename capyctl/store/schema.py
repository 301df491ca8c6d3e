"""Tables of the database, one step a version: a step that was released never changes."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable
from typing import TypeAlias

APPLICATION_ID = 0x43415059
"""``CAPY`` in the file's header."""

Step: TypeAlias = Callable[[sqlite3.Connection], None]
"""Takes the tables from one version to the next, inside the caller's transaction."""

_VERSION_1 = (
    """CREATE TABLE meta (
        only_row INTEGER PRIMARY KEY CHECK (only_row = 1),
        incarnation TEXT NOT NULL,
        session_epoch INTEGER NOT NULL,
        closed INTEGER NOT NULL,
        last_seq INTEGER NOT NULL,
        payload_bytes INTEGER NOT NULL,
        file_identity TEXT NOT NULL,
        witness TEXT NOT NULL
    )""",
    "INSERT INTO meta VALUES (1, '', 0, 1, 0, 0, '', '')",
    "CREATE TABLE deployments (id TEXT PRIMARY KEY, record TEXT NOT NULL) WITHOUT ROWID",
    """CREATE TABLE instances (
        deployment TEXT NOT NULL,
        number INTEGER NOT NULL,
        record TEXT NOT NULL,
        PRIMARY KEY (deployment, number)
    ) WITHOUT ROWID""",
    """CREATE TABLE operations (
        id TEXT PRIMARY KEY,
        ended INTEGER NOT NULL,
        record TEXT NOT NULL
    ) WITHOUT ROWID""",
    """CREATE TABLE receipts (
        scope TEXT NOT NULL,
        key TEXT NOT NULL,
        fingerprint TEXT NOT NULL,
        response TEXT NOT NULL,
        PRIMARY KEY (scope, key)
    )""",
    """CREATE TABLE events (
        seq INTEGER PRIMARY KEY,
        kind TEXT NOT NULL,
        deployment TEXT,
        operation TEXT,
        payload TEXT NOT NULL,
        payload_bytes INTEGER NOT NULL,
        recorded_at_ms INTEGER NOT NULL
    )""",
)


def create(connection: sqlite3.Connection) -> None:
    """Version 1: everything."""
    for statement in _VERSION_1:
        connection.execute(statement)


def add_hosts(connection: sqlite3.Connection) -> None:
    """Version 2: machines, how they were invited, and the certificates they were given."""
    for table in ("hosts", "invitations", "certificates"):
        connection.execute(
            f"CREATE TABLE {table} (id TEXT PRIMARY KEY, record TEXT NOT NULL) WITHOUT ROWID"
        )


def name_owners(connection: sqlite3.Connection) -> None:
    """Version 3: whose each operation is, so that the latest of each deployment is kept."""
    connection.execute("ALTER TABLE operations ADD COLUMN deployment TEXT")
    connection.execute("ALTER TABLE operations ADD COLUMN number INTEGER")
    for key, text in connection.execute("SELECT id, record FROM operations").fetchall():
        record = json.loads(text)
        owner = (record["deployment"], record.get("instance"))
        connection.execute(
            "UPDATE operations SET deployment = ?, number = ? WHERE id = ?", (*owner, key)
        )
    connection.execute("CREATE INDEX operations_of ON operations (deployment, number, id)")


STEPS: tuple[Step, ...] = (create, add_hosts, name_owners)
"""Step ``n`` leads from version ``n`` to ``n + 1``; an empty file is version 0."""
