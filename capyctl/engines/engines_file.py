"""`engines.yaml` on disk: one writer at a time, replaced whole. What is in it others read."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import re
import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import attrs

from capyctl.contracts.engine_documents import DOCUMENT_MAX_BYTES, EngineDocuments, Invalid
from capyctl.domain.profiles import StoredProfile
from capyctl.engines.profile_checks import check_profile

FILE_NAME = "engines.yaml"
LOCK_TRIES_MAX = 10_000
"""Each one more that finds the lock removed by its holder has waited for that holder."""
_REVISION = re.compile(r"# capyctl-document-revision: ([0-9]{1,18})\s*")


@attrs.frozen(kw_only=True)
class EnginesFile:
    """The document as it stands."""

    path: Path
    revision: int
    """How often it was written; 0 while there is no file."""
    profiles: Mapping[str, StoredProfile]


def engines_file_path(config: str | None, environ: Mapping[str, str]) -> Path:
    """Beside the role's document where one is named, else in the user's configuration."""
    if config:
        return Path(os.path.abspath(config)).parent / FILE_NAME
    stated = environ.get("XDG_CONFIG_HOME") or ""
    base = Path(stated) if stated.startswith("/") else Path(environ.get("HOME", "/"), ".config")
    return base / "capyctl" / FILE_NAME


def read_engines_file(path: Path, documents: EngineDocuments) -> EnginesFile:
    """The document at ``path``; an empty one of revision 0 where there is no file.

    Raises:
        Invalid: it cannot be read or is not what it should be; names the setting.
    """
    try:
        with path.open("rb") as source:
            data = source.read(DOCUMENT_MAX_BYTES + 1)
    except FileNotFoundError:
        return EnginesFile(path=path, revision=0, profiles={})
    except OSError as problem:
        raise Invalid(str(path), problem.strerror or "cannot be read") from problem
    if len(data) > DOCUMENT_MAX_BYTES:
        raise Invalid(str(path), f"is over {DOCUMENT_MAX_BYTES} bytes")
    try:
        text = data.decode()
    except UnicodeDecodeError as problem:
        raise Invalid(str(path), "is not UTF-8") from problem
    profiles = documents.read(text, name=str(path))
    for name, stored in profiles.items():
        check_profile(f"runtime_profiles.{name}", stored)
    return EnginesFile(path=path, revision=_revision_of(text), profiles=profiles)


def edit_engines_file(
    path: Path,
    change: Callable[[EnginesFile], Mapping[str, StoredProfile]],
    documents: EngineDocuments,
    *,
    owner: tuple[int, int] | None = None,
) -> EnginesFile:
    """Replace the profiles by what ``change`` makes of them, one writer at a time.

    Whatever ``change`` raises leaves the file alone. The new file is complete on disk before
    it takes the name. ``owner`` (uid, gid) is for a file that does not exist yet.

    Raises:
        Invalid: the old or the new document is not valid, or cannot be written.
    """
    path = Path(os.path.realpath(path))
    try:
        with _folder(path.parent), _locked(path):
            before = read_engines_file(path, documents)
            after = EnginesFile(
                path=path, revision=before.revision + 1, profiles=dict(change(before))
            )
            _replace(path, _text_of(after, documents), owner)
    except OSError as problem:
        raise Invalid(str(path), problem.strerror or "cannot be written") from problem
    return after


def _revision_of(text: str) -> int:
    first = text.split("\n", 1)[0]
    found = _REVISION.fullmatch(first)
    return int(found.group(1)) if found else 0


def _text_of(document: EnginesFile, documents: EngineDocuments) -> str:
    dumped = documents.write(document.profiles)
    text = f"# capyctl-document-revision: {document.revision}\n{dumped}"
    if len(text.encode()) > DOCUMENT_MAX_BYTES:
        raise Invalid(str(document.path), f"would be over {DOCUMENT_MAX_BYTES} bytes")
    return text


@contextlib.contextmanager
def _folder(folder: Path) -> Iterator[None]:
    """A folder that is not left behind when it was made for a change that failed."""
    is_new = not folder.exists()
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    try:
        yield
    except BaseException:
        if is_new:
            with contextlib.suppress(OSError):
                folder.rmdir()
        raise


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    """The lock file is there only while it is held."""
    name = f"{path}.lock"
    lock = _held(name)
    try:
        yield
    finally:
        os.unlink(name)
        os.close(lock)


def _held(name: str) -> int:
    """The lock, held. Raises OSError: it cannot be had."""
    for _ in range(LOCK_TRIES_MAX):
        lock = os.open(name, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX)
            # Whoever held it has removed it; the name may be another file's by now.
            with contextlib.suppress(FileNotFoundError):
                if os.path.samestat(os.fstat(lock), os.lstat(name)):
                    return lock
        except BaseException:
            os.close(lock)
            raise
        os.close(lock)
    raise OSError(errno.EBUSY, "is being changed again and again by others", name)


def _replace(path: Path, text: str, owner: tuple[int, int] | None) -> None:
    """Write beside, flush, rename, flush the folder. Owner and mode of an older file are kept."""
    mode = 0o600
    with contextlib.suppress(FileNotFoundError):
        held = path.lstat()
        owner, mode = (held.st_uid, held.st_gid), held.st_mode & 0o777
    fresh, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    try:
        with os.fdopen(fresh, "w", encoding="utf-8") as target:
            os.fchmod(target.fileno(), mode)
            if owner is not None and owner != (os.geteuid(), os.getegid()):
                os.fchown(target.fileno(), *owner)
            target.write(text)
            target.flush()
            os.fsync(target.fileno())
        os.replace(name, path)
    except BaseException:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(name)
        raise
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
