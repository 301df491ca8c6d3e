"""Why a database cannot be used. Each is for the person who runs the daemon."""

from __future__ import annotations

import errno
import os
import sqlite3
from pathlib import Path

FULL = frozenset({sqlite3.SQLITE_FULL})
READ_ONLY = frozenset({sqlite3.SQLITE_READONLY, sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_PERM})
FAILING = frozenset({sqlite3.SQLITE_IOERR})


class StoreUnusable(Exception):
    """The database cannot be opened as it is. Nothing in it was changed."""

    code = "store_unusable"


class StoreFromNewerVersion(StoreUnusable):
    """A newer capyctl wrote it. Its bytes were left as they are."""

    code = "store_from_newer_version"

    def __init__(self, path: Path, *, found_version: int, known_version: int) -> None:
        super().__init__(
            f"{path} has schema version {found_version}, this capyctl knows up to {known_version}:"
            " start the newer capyctl, or put back a backup made with this one"
        )
        self.found_version = found_version
        self.known_version = known_version


class StoreCorrupt(StoreUnusable):
    """What is in the file is not what was written there."""

    code = "store_corrupt"

    def __init__(self, path: Path, problem: str) -> None:
        super().__init__(
            f"{path} is damaged ({problem}): stop the daemon, move {path.name}, {path.name}-wal and"
            f" {path.name}-shm away together, and put a backup of {path.name} in their place"
        )


class StoreLost(StoreUnusable):
    """The database was here and is gone or empty. Engines of its deployments may still run."""

    code = "store_lost"

    def __init__(self, path: Path) -> None:
        super().__init__(
            f"{path} is missing or empty, though it was in use before: put a backup of {path.name}"
            f" in its place; to begin with nothing instead, remove {path.name} and"
            " srv.incarnation.*, and end the engines that still run"
        )


class StoreInUse(StoreUnusable):
    """Another process has it open."""

    code = "store_in_use"

    def __init__(self, path: Path) -> None:
        super().__init__(f"{path} is open in another capyctl process: stop that one first")


class RecordUnreadable(StoreUnusable):
    """A stored record does not have the shape that this capyctl knows."""

    code = "store_record_unreadable"

    def __init__(self, table: str, row: str, problem: str) -> None:
        super().__init__(f"table {table}, row {row}: {problem}")
        self.table = table
        self.row = row


def why_not_stored(path: Path, problem: BaseException) -> str:
    """What keeps ``path`` from being written, and what to do about it. Fit for an answer: of the
    error's own text nothing is in it."""
    kind = getattr(problem, "sqlite_errorcode", -1) & 0xFF
    number = getattr(problem, "errno", None)
    name = getattr(problem, "sqlite_errorname", type(problem).__name__)
    if kind in FULL or number in (errno.ENOSPC, errno.EDQUOT):
        return (
            f"the disk that holds {path} is full{_free(path)}: free some space on it, then start "
            "capyctl again; no change is taken until then, and engines that run go on serving"
        )
    if kind in READ_ONLY or number == errno.EROFS:
        return (
            f"{path} cannot be written any more ({name}): make {path.parent} writable for user "
            f"{os.geteuid()}, then start capyctl again; no change is taken until then"
        )
    if kind in FAILING:
        return (
            f"the disk that holds {path} failed ({name}){_free(path)}: see to the disk (its quota "
            "too), then start capyctl again; no change is taken until then"
        )
    return (
        f"a change could not be stored in {path} ({name}; the log says more); no change is taken "
        "until capyctl is started again"
    )


def _free(path: Path) -> str:
    try:
        found = os.statvfs(path.parent)
    except OSError:
        return ""
    return f" ({found.f_bavail * found.f_frsize} bytes are free)"
