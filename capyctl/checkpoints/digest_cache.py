"""Remembers file digests by stat identity: in memory, and in an owner-only file."""

from __future__ import annotations

import json
import os
import stat
import time
from pathlib import Path

from capyctl.checkpoints.model_files import Identity, ModelFile

ENTRIES_MAX = 50_000
FILE_BYTES_MAX = 32 << 20
SETTLED_NS = 50_000_000
"""A file changed this recently may change again within one tick of its clock, unseen."""

_NAME = "checkpoint-digests.json"
_VERSION = 1


class DigestCache:
    """File digests, oldest forgotten first. Blocks on the file system in `load` and `save`."""

    def __init__(self, folder: Path | None) -> None:
        self._path = None if folder is None else folder / _NAME
        self._digests: dict[Identity, str] = {}
        self._changed = False
        self._loaded = False

    def find(self, file: ModelFile) -> str | None:
        """Hexadecimal digest of the file as it is now, if it is known."""
        return self._digests.get(file.identity)

    def forget(self, file: ModelFile) -> None:
        self._digests.pop(file.identity, None)

    def remember(self, file: ModelFile, digest: str) -> None:
        ctime_ns = file.identity[4]
        if time.time_ns() - ctime_ns < SETTLED_NS:
            return
        self._digests.pop(file.identity, None)
        self._digests[file.identity] = digest
        self._changed = True
        while len(self._digests) > ENTRIES_MAX:
            del self._digests[next(iter(self._digests))]

    def load(self) -> None:
        """Read the file once. One that is damaged, or that others may write, is ignored."""
        if self._loaded or self._path is None:
            return
        self._loaded = True
        try:
            self._digests = _read(self._path) | self._digests
        except (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError):
            return

    def save(self) -> None:
        """Write the file if anything was learnt, in one step, readable by its owner only.

        Raises:
            OSError: it cannot be written; what is in memory stays.
        """
        if not self._changed or self._path is None:
            return
        self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        rows = [[*identity, digest] for identity, digest in self._digests.items()]
        fresh = self._path.with_name(f".{_NAME}.{os.getpid()}")
        descriptor = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o600)
        with open(descriptor, "w") as file:
            json.dump({"version": _VERSION, "files": rows}, file, separators=(",", ":"))
        os.replace(fresh, self._path)
        self._changed = False


def _read(path: Path) -> dict[Identity, str]:
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW)
    with open(descriptor, "rb") as file:
        status = os.fstat(file.fileno())
        private = status.st_uid == os.geteuid() and not stat.S_IMODE(status.st_mode) & 0o077
        if not private or status.st_size > FILE_BYTES_MAX:
            return {}
        found = json.loads(file.read())
    if found["version"] != _VERSION:
        return {}
    digests: dict[Identity, str] = {}
    for *identity, digest in found["files"]:
        device, inode, size, mtime, ctime = map(int, identity)
        if len(bytes.fromhex(digest)) == 32:
            digests[device, inode, size, mtime, ctime] = digest
    return digests
