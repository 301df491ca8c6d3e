"""Profiles that are being removed: nothing new starts on them, whoever stops what still runs.

`engine remove` begins one, stops the models or has it done, and takes the profile out. One that
nobody went on with ends by itself, so that a command that died leaves no profile unusable.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from pathlib import Path

WINDOW_MS = 900_000
"""How long one lasts after its last begin."""
FILE_NAME = "retirements.json"
FILE_BYTES_MAX = 64 * 1024


class Retirements:
    """Durable: a restart of the daemon changes nothing. Blocks for one small write."""

    def __init__(self, folder: Path, *, now_ms: Callable[[], int]) -> None:
        """``folder``: owner-only, and there."""
        self._path = folder / FILE_NAME
        self._now_ms = now_ms
        self._until_ms = _read(self._path)

    def __contains__(self, profile: object) -> bool:
        until_ms = self._until_ms.get(str(profile))
        return until_ms is not None and self._now_ms() < until_ms

    def begin(self, profile: str) -> None:
        """From now on, for 900 s; again from now on where it was begun before.

        Raises:
            OSError: it cannot be written; nothing changed.
        """
        self._replace({**self._until_ms, profile: self._now_ms() + WINDOW_MS})

    def end(self, profile: str) -> None:
        """The profile is gone, or stays after all. Raises OSError."""
        if profile in self._until_ms:
            self._replace({name: at for name, at in self._until_ms.items() if name != profile})

    def _replace(self, until_ms: Mapping[str, int]) -> None:
        now_ms = self._now_ms()
        left = {name: at_ms for name, at_ms in until_ms.items() if now_ms < at_ms}
        fresh = self._path.with_name(f"{FILE_NAME}.new")
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC
        with os.fdopen(os.open(fresh, flags, 0o600), "w") as file:
            json.dump(left, file)
            file.flush()
            os.fsync(file.fileno())
        os.replace(fresh, self._path)
        self._until_ms = dict(left)


def _read(path: Path) -> dict[str, int]:
    """Nothing where there is no such file, or none that makes sense."""
    try:
        with path.open("rb") as file:
            found = json.loads(file.read(FILE_BYTES_MAX))
    except (OSError, ValueError):
        return {}
    if not isinstance(found, dict):
        return {}
    return {name: at_ms for name, at_ms in found.items() if type(at_ms) is int}
