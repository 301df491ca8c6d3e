"""Tells a database that lived on from one that was put back.

A cursor names an incarnation of the database. When an older copy takes the place of what clients
have seen, sequences would be given out a second time, so the copy becomes a new incarnation. What
shows a copy is a witness: a file beside the database, made anew at each open and each orderly
close, whose inode and change time the database remembers. See docs/design/store.md.
"""

from __future__ import annotations

import os
from pathlib import Path

import attrs

WITNESSES = ("srv.incarnation.1", "srv.incarnation.2")
"""Two names, so that the next one is there before the database forgets the last one."""


@attrs.frozen(kw_only=True)
class Remembered:
    """What the database itself says about where it lived."""

    file_identity: str
    witness: str
    """Identity of the witness; "" before the first."""
    closed: bool
    """False from open to orderly close, so also after a crash."""


@attrs.frozen(kw_only=True)
class Found:
    """What lies on the disk before SQLite opens the database."""

    file_identity: str
    witnesses: frozenset[str]
    log_present: bool
    """A write-ahead log lies beside it: SQLite takes it away at the last orderly close."""


def why_put_back(found: Found, remembered: Remembered) -> str | None:
    """Why this database is not the one that was here last; None when it is.

    Cases, first match:
    1. Its witness is gone. Nobody can set a change time, so a witness that was put back together
       with its database is another one, too.
    2. The database is another file than the one that was written last.
    3. It was not closed in order, and yet its log is gone: a copy from within a session.
    """
    if remembered.witness not in found.witnesses:
        return "the witness of its last use is gone"
    if remembered.file_identity != found.file_identity:
        return "the file was replaced"
    if not remembered.closed and not found.log_present:
        return "it was not closed in order, and its log is gone"
    return None


def look(database: Path) -> Found:
    """Read what lies on the disk. To be called before SQLite opens the database."""
    paths = (database.with_name(name) for name in WITNESSES)
    return Found(
        file_identity=file_identity(database),
        witnesses=frozenset(identity for path in paths if (identity := witness_identity(path))),
        log_present=database.with_name(database.name + "-wal").exists(),
    )


def is_lost(database: Path) -> bool:
    """Whether nothing is left of a database that was there: its witness is, its content is not.

    A young database may be empty while all of it is in its log.
    """
    wal = database.with_name(database.name + "-wal")
    content = sum(part.stat().st_size for part in (database, wal) if part.exists())
    return content == 0 and any(database.with_name(name).exists() for name in WITNESSES)


def file_identity(database: Path) -> str:
    return str(database.stat().st_ino)


def witness_identity(path: Path) -> str:
    """ "" when there is none."""
    try:
        status = path.stat()
    except FileNotFoundError:
        return ""
    return f"{status.st_ino}:{status.st_ctime_ns}"


def make_witness(database: Path, *, keep: str, text: str) -> str:
    """Make a new witness, durably, beside the one whose identity is ``keep``.

    Returns:
        Its identity, for the database to remember. Until it does, ``keep`` holds.
    """
    paths = [database.with_name(name) for name in WITNESSES]
    path = next(path for path in paths if witness_identity(path) != keep or not keep)
    path.unlink(missing_ok=True)
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        os.write(descriptor, text.encode() + b"\n")
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
    return witness_identity(path)


def drop_witnesses_but(database: Path, keep: str) -> None:
    """Take the older ones away, once the database remembers ``keep``."""
    for name in WITNESSES:
        path = database.with_name(name)
        if witness_identity(path) != keep:
            path.unlink(missing_ok=True)
