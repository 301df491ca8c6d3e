"""What a path on the command line is refused for, in words that say what to do."""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Iterator, Mapping
from pathlib import Path

from capyctl.cli.failure import CommandFailed

_OWNER = f"user {os.geteuid()} may not use it: name another, or run the command as its owner"
_NO_FOLDER = "it is no folder: name another path"
_ROOM = "free some room there, or name a place on another disk"
_USAGE: Mapping[int, str] = {
    errno.ENOENT: "make what is missing of it first, or name another path",
    errno.ENOTDIR: _NO_FOLDER,
    errno.EEXIST: _NO_FOLDER,
    errno.EISDIR: "it is a folder: name a file",
    errno.EACCES: _OWNER,
    errno.EPERM: _OWNER,
    errno.EROFS: _OWNER,
    errno.ELOOP: "its links lead in a circle: name another path",
    errno.ENAMETOOLONG: "give it a shorter name",
    errno.EINVAL: "name another path",
    errno.ENODEV: "name another path",
}
_FAILED: Mapping[int, str] = {
    errno.ENOSPC: _ROOM,
    errno.EDQUOT: _ROOM,
    errno.EFBIG: _ROOM,
}


@contextlib.contextmanager
def path_of(option: str, path: Path | None = None) -> Iterator[None]:
    """The block uses a path that ``option`` named.

    Raises:
        CommandFailed: ``usage`` where another path would do, ``internal`` where the disk failed.
    """
    try:
        yield
    except BrokenPipeError:
        raise
    except OSError as problem:
        raise path_refused(problem, option=option, path=path) from problem


def path_refused(
    problem: OSError, *, option: str | None = None, path: Path | None = None
) -> CommandFailed:
    """What a path could not be used for; ``option``: what named it."""
    number = problem.errno or 0
    found = problem.filename if isinstance(problem.filename, str | os.PathLike) else path
    where = ": ".join(str(part) for part in (option, found) if part is not None)
    why = problem.strerror or str(problem)
    said = f"{where}: {why}" if where else why
    advice = _USAGE.get(number) or _FAILED.get(number)
    code = "usage" if number in _USAGE and found is not None else "internal"
    return CommandFailed(code, f"{said}; {advice}" if advice else said)
