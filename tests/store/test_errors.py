"""What a person is told when the disk does not take a change."""

from __future__ import annotations

import contextlib
import errno
import sqlite3
from pathlib import Path

import pytest

from capyctl.store.errors import why_not_stored


def sqlite_error(*statements, uri="file::memory:"):
    """The error that SQLite itself raises for the last of ``statements``."""
    with contextlib.closing(sqlite3.connect(uri, uri=True)) as connection:
        *before, last = statements
        for statement in before:
            connection.execute(statement)
        with pytest.raises(sqlite3.Error) as caught:
            connection.execute(last)
    return caught.value


TABLE = "CREATE TABLE t (x)"
FULL = sqlite_error(TABLE, "PRAGMA max_page_count = 3", "INSERT INTO t VALUES (zeroblob(100000))")
READ_ONLY = sqlite_error("PRAGMA query_only = ON", TABLE)
ODD = sqlite_error(
    "CREATE TABLE t (x UNIQUE)", "INSERT INTO t VALUES (1)", "INSERT INTO t VALUES (1)"
)


@pytest.mark.parametrize(
    ("problem", "words"),
    [
        (FULL, "is full ("),
        (OSError(errno.ENOSPC, "No space left on device"), "is full ("),
        (OSError(errno.EDQUOT, "Disk quota exceeded"), "is full ("),
        (READ_ONLY, "cannot be written any more (SQLITE_READONLY)"),
        (OSError(errno.EROFS, "Read-only file system"), "cannot be written any more (OSError)"),
        (ODD, "could not be stored in"),
        (ValueError("a secret"), "could not be stored in"),
    ],
    ids=repr,
)
def test_what_happened_where_and_what_to_do(tmp_path, problem, words):
    path = tmp_path / "srv.sqlite3"

    told = why_not_stored(path, problem)

    assert words in told
    assert str(path) in told
    assert "start" in told
    assert str(problem) not in told


def test_the_room_that_is_left_is_told_in_bytes(tmp_path):
    assert "bytes are free)" in why_not_stored(tmp_path / "srv.sqlite3", FULL)
    assert "bytes are free)" not in why_not_stored(Path("/nowhere/at/all"), FULL)
