"""Brings a database to the version of this program: forward only, all steps or none."""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Iterator, Sequence
from pathlib import Path

from capyctl.store.errors import StoreCorrupt, StoreFromNewerVersion
from capyctl.store.schema import APPLICATION_ID, STEPS, Step


def refuse_newer(path: Path, known_version: int = len(STEPS)) -> None:
    """Look at the version without changing a byte of the database or its log.

    Raises:
        StoreFromNewerVersion: it was written by a newer program.
        StoreCorrupt: it is another program's database.
    """
    if not path.exists() or path.stat().st_size == 0:
        return
    with _removing_new_side_files(path):
        # Read only: closing it neither checkpoints nor deletes the log.
        connection = sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True)
        try:
            found_version = _pragma(connection, "user_version")
            application_id = _pragma(connection, "application_id")
            tables = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]
        finally:
            connection.close()
    if tables and application_id != APPLICATION_ID:
        raise StoreCorrupt(path, f"application id {application_id:#x} is not capyctl's")
    if found_version > known_version:
        raise StoreFromNewerVersion(path, found_version=found_version, known_version=known_version)


def migrate(connection: sqlite3.Connection, steps: Sequence[Step] = STEPS) -> int:
    """Run the steps that are missing, in one transaction.

    The connection must be in autocommit mode.

    Returns:
        The version that was found; 0 for an empty file.
    """
    found_version = _pragma(connection, "user_version")
    assert found_version <= len(steps), "refuse_newer comes first"
    if found_version == len(steps):
        return found_version
    connection.execute("BEGIN IMMEDIATE")
    try:
        for step in steps[found_version:]:
            step(connection)
        connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
        connection.execute(f"PRAGMA user_version = {len(steps)}")
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise
    return found_version


def _pragma(connection: sqlite3.Connection, name: str) -> int:
    value = connection.execute(f"PRAGMA {name}").fetchone()[0]
    assert isinstance(value, int)
    return value


@contextlib.contextmanager
def _removing_new_side_files(path: Path) -> Iterator[None]:
    """Even a reader makes an empty log and its index; take away what was not there."""
    sides = [path.with_name(path.name + ending) for ending in ("-wal", "-shm")]
    new = [side for side in sides if not side.exists()]
    try:
        yield
    finally:
        for side in new:
            side.unlink(missing_ok=True)
