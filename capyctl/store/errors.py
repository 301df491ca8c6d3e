"""Why a database cannot be used. Each is for the person who starts the daemon."""

from __future__ import annotations

from pathlib import Path


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
