"""Where the files of a remote source lie, and the owner-only manifest of what they must be."""

from __future__ import annotations

import json
import os
import stat
from pathlib import Path

import attrs

from capyctl.checkpoints.model_files import Identity, identity_of

MANIFEST_BYTES_MAX = 64 << 20
_VERSION = 1


@attrs.frozen(kw_only=True)
class FetchedFile:
    """One file of a source: what it must be, and once it is here, what it is."""

    name: str
    """Path below the model's directory, with ``/``."""
    size_bytes: int | None
    """None where nobody says it beforehand."""
    sha256: str | None = None
    git_sha1: str | None = None
    """Of small files of the Hub: the hash that git gives them."""
    digest: str | None = None
    """The file's part of the model's digest, in hexadecimal; None until it is verified."""
    identity: Identity | None = None

    def is_at(self, path: Path, *, untouched: bool = False) -> bool:
        """Whether the verified file is there still; ``untouched``: by its ctime too."""
        if self.identity is None or self.digest is None:
            return False
        try:
            status = path.lstat()
        except OSError:
            return False
        found, known = identity_of(status), self.identity
        same = found == known if untouched else found[:4] == known[:4]
        return stat.S_ISREG(status.st_mode) and same


@attrs.frozen(kw_only=True)
class Manifest:
    """All files of a source. ``complete``: they were all verified and put in place."""

    complete: bool
    files: tuple[FetchedFile, ...]

    @property
    def size_bytes(self) -> int:
        return sum(file.size_bytes or 0 for file in self.files)

    def is_whole(self, folder: Path) -> bool:
        """Whether every file is in ``folder``, as it was verified. Blocks; reads no contents."""
        return self.complete and all(file.is_at(folder / file.name) for file in self.files)

    def known_digests(self, folder: Path) -> list[tuple[Identity, str]]:
        """Digests of the files that nobody has touched since they were verified. Blocks."""
        return [
            (file.identity, file.digest)
            for file in self.files
            if file.identity and file.digest and file.is_at(folder / file.name, untouched=True)
        ]


@attrs.frozen
class Place:
    """The paths of one source."""

    root: Path
    key: str

    @property
    def folder(self) -> Path:
        """The model's directory, once everything is there."""
        return self.root / self.key

    @property
    def partial(self) -> Path:
        """What is still coming."""
        return self.root / f"{self.key}.partial"

    @property
    def archive(self) -> Path:
        """A tar archive that is still coming."""
        return self.root / f"{self.key}.partial.tar"

    @property
    def manifest(self) -> Path:
        return self.root / f"{self.key}.manifest"


def read_manifest(path: Path) -> Manifest | None:
    """None when there is none, or none that can be trusted: damaged, or others may write it."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
        with open(descriptor, "rb") as file:
            status = os.fstat(file.fileno())
            private = status.st_uid == os.geteuid() and not stat.S_IMODE(status.st_mode) & 0o077
            if not private or status.st_size > MANIFEST_BYTES_MAX:
                return None
            found = json.loads(file.read())
        if found["version"] != _VERSION:
            return None
        files = tuple(_file(row) for row in found["files"])
        return Manifest(complete=found["complete"] is True and bool(files), files=files)
    except (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return None


def _file(row: dict[str, object]) -> FetchedFile:
    identity = row.get("identity")
    held = {**row, "identity": tuple(identity) if isinstance(identity, list) else None}
    file = FetchedFile(**held)  # type: ignore[arg-type]  # checked by what follows
    check_name(file.name)
    return file


def write_manifest(path: Path, manifest: Manifest) -> None:
    """Replace it whole, mode 0600.

    Raises:
        OSError: it cannot be written.
    """
    rows = [attrs.asdict(file) for file in manifest.files]
    text = json.dumps({"version": _VERSION, "complete": manifest.complete, "files": rows})
    fresh = path.with_name(f"{path.name}.new")
    descriptor = os.open(
        fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600
    )
    with open(descriptor, "w") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    os.replace(fresh, path)


def check_name(name: str) -> None:
    """A path that stays below the model's directory. Raises ValueError."""
    parts = name.split("/")
    plain = name.isprintable() and "\\" not in name
    if not plain or not name or any(part in ("", ".", "..") for part in parts):
        raise ValueError(f"{name!r} is no name of a file below a directory")


def bytes_below(path: Path) -> int:
    """Sizes of everything under ``path``, links not followed; 0 when it is not there. Blocks."""
    if path.is_file() and not path.is_symlink():
        return path.stat().st_size
    total = 0
    for folder, _, names in os.walk(path):
        for name in names:
            try:
                total += os.lstat(os.path.join(folder, name)).st_size
            except FileNotFoundError:
                continue
    return total
