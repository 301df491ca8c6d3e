"""Small files that only their owner may read: written whole or not at all, never shown."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import stat
import time
from collections.abc import Iterator
from pathlib import Path

_GROUP_OR_OTHERS = 0o077
_NO_LINKS = frozenset({errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS})
"""Of a file system without them, as on a memory stick."""
_ALONE_TRIES_MAX = 400
_ALONE_EVERY_S = 0.005
"""Together 2 s. A command that was halted while it wrote holds nobody up for longer."""


class OwnerFileUnusable(Exception):
    """The file cannot be trusted or read. The text says why and never holds what is in it."""

    def __init__(self, path: Path, detail: str) -> None:
        super().__init__(f"{path}: {detail}")
        self.path = path
        self.detail = detail


def read_owner_file(path: Path, *, bytes_max: int) -> bytes:
    """What ``path`` holds.

    Raises:
        FileNotFoundError: it is not there.
        OwnerFileUnusable: a link, another user's, open to others, over ``bytes_max``, or the
            system will not read it.
    """
    try:
        # Not blocking, or a pipe in its place would hold up the whole program.
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
    except FileNotFoundError:
        raise
    except OSError as problem:
        raise OwnerFileUnusable(path, problem.strerror or "cannot be read") from problem
    try:
        facts = os.fstat(descriptor)
        if stat.S_ISDIR(facts.st_mode):
            raise OwnerFileUnusable(path, "a directory, not a file; move it away")
        if not stat.S_ISREG(facts.st_mode) or facts.st_uid not in (os.getuid(), 0):
            raise OwnerFileUnusable(path, "not a file of this user")
        if stat.S_IMODE(facts.st_mode) & _GROUP_OR_OTHERS:
            raise OwnerFileUnusable(path, "open to other users; set its mode to 0600")
        with open(descriptor, "rb", closefd=False) as file:
            body = file.read(bytes_max + 1)
    finally:
        os.close(descriptor)
    if len(body) > bytes_max:
        raise OwnerFileUnusable(path, f"over {bytes_max} bytes, so it is not what it should be")
    return body


def write_owner_file(path: Path, text: str) -> None:
    """Replace ``path`` whole and durably, mode 0600; its folder is made 0700 if missing.

    Raises:
        OSError: it cannot be written; what was there before still is.
    """
    with _alone_in(path.parent) as (folder, _):
        os.replace(_written_beside(path, text), path)
        os.fsync(folder)


def write_new_owner_file(path: Path, text: str) -> bool:
    """The same unless something is there already; whether it was written.

    Raises:
        OSError: it cannot be written; nothing is there.
    """
    with _alone_in(path.parent) as (folder, alone):
        if os.path.lexists(path):
            return False
        fresh = _written_beside(path, text)
        if alone:
            # In one step: killed between two, it would leave the secret under both names.
            os.replace(fresh, path)
        elif not _linked(fresh, path):
            return False
        os.fsync(folder)
    return True


def _linked(fresh: Path, path: Path) -> bool:
    """Gives ``fresh`` its name unless somebody came first, whom no lock held back."""
    try:
        os.link(fresh, path)  # Unlike a rename it takes nothing's place.
    except FileExistsError:
        return False
    except OSError as problem:
        if problem.errno not in _NO_LINKS:
            raise
        os.replace(fresh, path)
    finally:
        fresh.unlink(missing_ok=True)
    return True


@contextlib.contextmanager
def _alone_in(folder: Path) -> Iterator[tuple[int, bool]]:
    """The folder's descriptor, and whether we are alone. Others who write here wait: two commands
    at once would take each other's unfinished file. A process that dies lets go.
    """
    alone = False
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        for _ in range(_ALONE_TRIES_MAX):
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                time.sleep(_ALONE_EVERY_S)
            except OSError:
                break  # A file system without locks.
            else:
                alone = True
                break
        yield descriptor, alone
    finally:
        os.close(descriptor)


def _written_beside(path: Path, text: str) -> Path:
    fresh = path.with_name(f"{path.name}.new")
    fresh.unlink(missing_ok=True)
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    descriptor = os.open(fresh, flags, 0o600)
    try:
        with os.fdopen(descriptor, "w") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
    except OSError as problem:
        fresh.unlink(missing_ok=True)
        # Of a write the system does not say which file it was.
        raise OSError(problem.errno, problem.strerror or str(problem), str(path)) from problem
    return fresh
