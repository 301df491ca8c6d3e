"""Digests that a document declared and this host took as measured, by its own policy."""

from __future__ import annotations

import json
import os
import re
import stat
from pathlib import Path

import attrs

from capyctl.checkpoints.model_files import ModelFiles

MODELS_MAX = 1_000
FILE_BYTES_MAX = 32 << 20
_NAME = "trusted-digests.json"
_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")


@attrs.frozen(kw_only=True)
class _Trusted:
    digest: str
    files: str
    """Names and stat identities at that time, as text."""


class TrustedDigests:
    """By the model's path; oldest forgotten first. Blocks on the file system."""

    def __init__(self, folder: Path | None) -> None:
        """``folder``: owner-only; None: memory only."""
        self._path = None if folder is None else folder / _NAME
        self._known: dict[str, _Trusted] | None = None

    def holds(self, model_path: str, found: ModelFiles) -> str | None:
        """The digest of files that nobody has touched since it was taken."""
        known = self._load().get(model_path)
        return known.digest if known is not None and known.files == _identities(found) else None

    def take(self, model_path: str, found: ModelFiles, declared: str) -> bool:
        """Whether ``declared`` counts as the files' digest from now on.

        It does the first time, and while the files are as they were; once they have changed
        they have to be measured.
        """
        if _DIGEST.fullmatch(declared) is None:
            return False
        known = self._load()
        before = known.get(model_path)
        if before is not None and before.digest == declared:
            return before.files == _identities(found)
        known[model_path] = _Trusted(digest=declared, files=_identities(found))
        while len(known) > MODELS_MAX:
            del known[next(iter(known))]
        self._save(known)
        return True

    def _load(self) -> dict[str, _Trusted]:
        if self._known is None:
            self._known = {} if self._path is None else _read(self._path)
        return self._known

    def _save(self, known: dict[str, _Trusted]) -> None:
        if self._path is None:
            return
        self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        rows = {path: [one.digest, one.files] for path, one in known.items()}
        fresh = self._path.with_name(f".{_NAME}.{os.getpid()}")
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC
        with os.fdopen(os.open(fresh, flags, 0o600), "w") as file:
            json.dump(rows, file)
        os.replace(fresh, self._path)


def _identities(found: ModelFiles) -> str:
    rows = [[file.name, *file.identity] for file in found.files]
    return json.dumps(rows, separators=(",", ":"))


def _read(path: Path) -> dict[str, _Trusted]:
    """Nothing where there is no file, or none that can be trusted: damaged, or others' too."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
        with open(descriptor, "rb") as file:
            status = os.fstat(file.fileno())
            private = status.st_uid == os.geteuid() and not stat.S_IMODE(status.st_mode) & 0o077
            if not private or status.st_size > FILE_BYTES_MAX:
                return {}
            rows = json.loads(file.read())
        return {
            str(model): _Trusted(digest=str(digest), files=str(files))
            for model, (digest, files) in rows.items()
            if _DIGEST.fullmatch(str(digest))
        }
    except (OSError, ValueError, TypeError, AttributeError, RecursionError):
        return {}
