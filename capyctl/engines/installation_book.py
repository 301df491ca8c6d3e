"""Remembers what an engine's files were when its profile was first used, and compares later."""

from __future__ import annotations

import contextlib
import json
import os
import threading
from pathlib import Path
from typing import Any

import attrs

from capyctl.domain.launches import Installation
from capyctl.engines.fingerprint import Fingerprint, find_drift, measure_installation

_NAME = "installations.json"
_VERSION = 1


@attrs.frozen(kw_only=True)
class Looked:
    """An installation as it was recorded and as it is."""

    installation: Installation
    changed: str | None
    """What changed, in a sentence; None while it is what it was."""


@attrs.frozen(kw_only=True)
class _Known:
    revision: int
    executable: str
    fingerprint: Fingerprint


class InstallationBook:
    """Fingerprints by profile, in memory and in an owner-only file.

    A profile that is registered anew (another revision or program) is recorded anew. Calls
    block, the first one of a profile for as long as its files take to read: use a thread.
    """

    def __init__(self, folder: Path) -> None:
        self._path = folder / _NAME
        self._known: dict[str, _Known] = {}
        self._loaded = False
        self._flagged: set[tuple[str, str]] = set()
        self._lock = threading.Lock()

    def look(self, profile: str, *, revision: int, family: str, executable: str) -> Looked:
        """What the installation was when first looked at, and what it is now.

        Raises:
            Unfingerprintable: its files cannot be read.
        """
        with self._lock:
            return self._look(profile, _Asked(revision, family, executable))

    def _look(self, profile: str, asked: _Asked) -> Looked:
        self._load()
        known = self._known.get(profile)
        if known is None or (known.revision, known.executable) != (
            asked.revision,
            asked.executable,
        ):
            found = measure_installation(asked.family, asked.executable)
            self._known[profile] = _Known(
                revision=asked.revision, executable=asked.executable, fingerprint=found
            )
            with contextlib.suppress(OSError):
                self._save()
            return Looked(
                installation=Installation(registered=found.digest, observed=found.digest),
                changed=None,
            )
        registered = known.fingerprint.digest
        changed = find_drift(known.fingerprint, asked.family, asked.executable)
        if changed is None:
            same = Installation(registered=registered, observed=registered)
            return Looked(installation=same, changed=None)
        observed = measure_installation(asked.family, asked.executable).digest
        flag = (profile, observed) not in self._flagged
        self._flagged.add((profile, observed))
        drifted = Installation(registered=registered, observed=observed, flag=flag)
        return Looked(installation=drifted, changed=changed)

    def _load(self) -> None:
        if self._loaded:
            return
        self._loaded = True
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
            stored = json.loads(self._path.read_bytes())
            if stored["version"] == _VERSION:
                self._known = {name: _read(row) for name, row in stored["profiles"].items()}

    def _save(self) -> None:
        """In one step, readable by its owner only."""
        rows = {name: _row(known) for name, known in self._known.items()}
        fresh = self._path.with_name(f".{_NAME}.{os.getpid()}")
        descriptor = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o600)
        with open(descriptor, "w") as file:
            json.dump({"version": _VERSION, "profiles": rows}, file, separators=(",", ":"))
        os.replace(fresh, self._path)


@attrs.frozen
class _Asked:
    revision: int
    family: str
    executable: str


def _row(known: _Known) -> dict[str, Any]:
    return {
        "revision": known.revision,
        "executable": known.executable,
        "digest": known.fingerprint.digest,
        "entries": known.fingerprint.entries,
        "stats": known.fingerprint.stats,
    }


def _read(row: dict[str, Any]) -> _Known:
    fingerprint = Fingerprint(
        digest=str(row["digest"]),
        entries=tuple((str(path), str(content)) for path, content in row["entries"]),
        stats=tuple(
            (str(path), int(dev), int(ino), int(size), int(mtime), int(ctime))
            for path, dev, ino, size, mtime, ctime in row["stats"]
        ),
    )
    return _Known(
        revision=int(row["revision"]),
        executable=str(row["executable"]),
        fingerprint=fingerprint,
    )
