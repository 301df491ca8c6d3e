"""SQLite connections as this store needs them, and the first look at a database file."""

from __future__ import annotations

import fcntl
import os
import sqlite3
import stat
from collections.abc import Callable, Sequence
from pathlib import Path

import attrs

from capyctl.store import lineage
from capyctl.store.errors import StoreCorrupt, StoreInUse, StoreLost, StoreUnusable
from capyctl.store.migrate import migrate, refuse_newer
from capyctl.store.retention import History, read_history
from capyctl.store.rows import Meta, read_meta, write_meta
from capyctl.store.schema import Step

BUSY_MAX_S = 10.0
"""Someone else's backup or shell may hold the file for a moment."""
DAMAGED = frozenset({sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB})


@attrs.define(kw_only=True)
class Opened:
    """A database that is ours: looked at, migrated, and in a session of its own."""

    connection: sqlite3.Connection
    meta: Meta
    history: History
    lock: int
    """Descriptor that keeps other processes out."""
    put_back: str | None
    """Why it was taken for a copy and has become a new incarnation; None when it lived on."""


def open_database(
    path: Path, *, new_incarnation: Callable[[], str], steps: Sequence[Step]
) -> Opened:
    """Open for writing, create or migrate, and begin the next session durably. Blocks.

    Raises:
        StoreUnusable: the file, its folder or its version does not allow it.
    """
    _require_private_folder(path.parent)
    _require_files(path)
    lock = _lock(path)
    try:
        return _translating(path, lambda: _open(path, new_incarnation, steps, lock))
    except BaseException:
        os.close(lock)
        raise


def connect_reader(path: Path) -> sqlite3.Connection:
    """A connection that cannot write. It may be used from one thread after another."""
    connection = sqlite3.connect(
        f"{path.absolute().as_uri()}?mode=ro",
        uri=True,
        timeout=BUSY_MAX_S,
        isolation_level=None,
        check_same_thread=False,
    )
    try:
        connection.execute("PRAGMA query_only = ON")
    except BaseException:
        connection.close()
        raise
    return connection


def close_in_order(path: Path, opened: Opened) -> None:
    """Note that the database was closed, empty its log into it, and let go of it. Blocks.

    After an error the next start takes it for a copy at worst: it gets a new incarnation.
    """
    connection = opened.connection
    try:
        # Not the writer's own copy: after a failed commit that is ahead of what is stored.
        meta = read_meta(connection)
        meta.closed = 1
        _move_on(path, connection, meta)
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    except (sqlite3.Error, OSError):
        pass
    finally:
        connection.close()
        os.close(opened.lock)


def is_damage(problem: sqlite3.Error) -> bool:
    return getattr(problem, "sqlite_errorcode", 0) & 0xFF in DAMAGED


def _open(
    path: Path, new_incarnation: Callable[[], str], steps: Sequence[Step], lock: int
) -> Opened:
    refuse_newer(path, len(steps))
    if lineage.is_lost(path):
        raise StoreLost(path)
    if not path.exists():
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600))
    elif stat.S_IMODE(path.stat().st_mode) != 0o600:
        path.chmod(0o600)
    found = lineage.look(path)
    connection = sqlite3.connect(
        path, timeout=BUSY_MAX_S, isolation_level=None, check_same_thread=False
    )
    try:
        (mode,) = connection.execute("PRAGMA journal_mode = WAL").fetchone()
        if mode != "wal":
            raise StoreUnusable(f"{path} cannot have a write-ahead log: put it on a local disk")
        connection.execute("PRAGMA synchronous = FULL")
        fresh = migrate(connection, steps) == 0
        meta = read_meta(connection)
        put_back = None
        if not fresh:
            remembered = lineage.Remembered(
                file_identity=meta.file_identity, witness=meta.witness, closed=bool(meta.closed)
            )
            put_back = lineage.why_put_back(found, remembered)
        if put_back is not None:
            _require_sound(path, connection)
        if fresh or put_back is not None:
            meta.incarnation = new_incarnation()
        meta.session_epoch += 1
        meta.closed, meta.file_identity = 0, found.file_identity
        _move_on(path, connection, meta)
        history = read_history(connection, last_seq=meta.last_seq, payload_bytes=meta.payload_bytes)
    except BaseException:
        connection.close()
        raise
    return Opened(connection=connection, meta=meta, history=history, lock=lock, put_back=put_back)


def _move_on(path: Path, connection: sqlite3.Connection, meta: Meta) -> None:
    """Store ``meta`` with a new witness. A crash at any point leaves the old one or the new."""
    meta.witness = lineage.make_witness(path, keep=meta.witness, text=meta.incarnation)
    write_meta(connection, meta)
    lineage.drop_witnesses_but(path, meta.witness)


def _require_sound(path: Path, connection: sqlite3.Connection) -> None:
    """A copy may have been made from a file in use, or met the log of another one."""
    (verdict,) = connection.execute("PRAGMA quick_check(1)").fetchone()
    if verdict != "ok":
        raise StoreCorrupt(path, verdict)


def _translating(path: Path, work: Callable[[], Opened]) -> Opened:
    try:
        return work()
    except sqlite3.DatabaseError as problem:
        if is_damage(problem):
            raise StoreCorrupt(path, str(problem)) from problem
        raise StoreUnusable(f"cannot open {path}: {problem}") from problem
    except OSError as problem:
        raise StoreUnusable(f"cannot open {path}: {problem}") from problem


def _require_private_folder(folder: Path) -> None:
    try:
        status = folder.stat()
    except OSError as problem:
        raise StoreUnusable(f"cannot open the folder {folder}: {problem}") from problem
    if status.st_uid != os.geteuid() or stat.S_IMODE(status.st_mode) & 0o077:
        raise StoreUnusable(
            f"{folder} has mode {stat.S_IMODE(status.st_mode):04o} and owner {status.st_uid};"
            f" it must belong to user {os.geteuid()} alone: chown it and chmod 0700"
        )


def _require_files(path: Path) -> None:
    sides = (path.with_name(path.name + ending) for ending in ("-wal", "-shm"))
    for one in (path, *sides, _lock_path(path)):
        if one.is_dir():
            raise StoreUnusable(f"{one} is a directory, where a file belongs: move it away")


def _lock_path(path: Path) -> Path:
    return path.with_name(path.stem + ".lock")


def _lock(path: Path) -> int:
    lock_path = _lock_path(path)
    try:
        lock = os.open(lock_path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    except OSError as problem:
        raise StoreUnusable(f"cannot open {lock_path}: {problem}") from problem
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(lock)
        raise StoreInUse(path) from None
    except OSError as problem:
        os.close(lock)
        raise StoreUnusable(f"cannot lock {lock_path}: {problem.strerror}") from problem
    return lock
