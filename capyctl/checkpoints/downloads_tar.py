"""Takes a tar archive of a model's directory apart, and takes nothing but files out of it."""

from __future__ import annotations

import os
import tarfile
from collections.abc import Callable
from pathlib import Path

from capyctl.checkpoints.downloads_hash import CHUNK_BYTES, FileHash
from capyctl.checkpoints.downloads_stream import not_written
from capyctl.checkpoints.sources_layout import FetchedFile, check_name
from capyctl.contracts.checkpoints import Unfetchable

MEMBERS_MAX = 100_000
LISTED_BYTES_MAX = 64 << 40
"""What the files of an archive may state together; admission has its own, lower bound."""


def extract(
    archive: Path,
    folder: Path,
    *,
    admit: Callable[[int], None],
    got: Callable[[int], None] = lambda _: None,
) -> tuple[FetchedFile, ...]:
    """Write the archive's files below ``folder``, hashing them. Blocks.

    A single directory that holds everything is left out of the names. Modes, owners and times
    are not taken over. ``admit`` is told the bytes of all files before the first is written.

    Raises:
        Unfetchable: ``unsafe_archive``: links, devices, names that lead elsewhere, a name
            twice, too many, or no tar archive at all; ``insufficient_space``, ``io_error``.
    """
    try:
        with tarfile.open(archive) as opened:
            names = _names(opened)
            admit(sum(member.size for member in names.values()))
            return tuple(
                _write(opened, member, name, folder, got) for name, member in names.items()
            )
    except (tarfile.TarError, EOFError, ValueError) as problem:
        raise _unsafe(f"this is no whole tar archive: {problem}") from None
    except OSError as problem:
        raise not_written(problem, folder) from None


def _names(opened: tarfile.TarFile) -> dict[str, tarfile.TarInfo]:
    """Regular members by their names below the model's directory."""
    found: dict[str, tarfile.TarInfo] = {}
    total = 0
    for count, member in enumerate(opened):
        total += member.size
        if count >= MEMBERS_MAX or total > LISTED_BYTES_MAX:
            raise _unsafe(f"more than {MEMBERS_MAX} members, or more bytes than any model has")
        if member.isdir():
            continue
        name = member.name.removeprefix("./")
        try:
            check_name(name)
        except ValueError as problem:
            raise _unsafe(str(problem)) from None
        if not member.isreg() or member.issparse():
            raise _unsafe(f"{name!r} is a link or special; pack the files themselves (tar -h)")
        if name in found:
            raise _unsafe(f"{name!r} is there twice")
        found[name] = member
    if not found:
        raise _unsafe("it holds no files")
    _check_folders(found)
    tops = {name.partition("/")[0] for name in found}
    if len(tops) == 1 and all("/" in name for name in found):
        return {name.partition("/")[2]: member for name, member in found.items()}
    return found


def _check_folders(found: dict[str, tarfile.TarInfo]) -> None:
    for name in found:
        for end in (i for i, c in enumerate(name) if c == "/"):
            if name[:end] in found:
                raise _unsafe(f"{name[:end]!r} is a file and a directory")


def _write(
    opened: tarfile.TarFile,
    member: tarfile.TarInfo,
    name: str,
    folder: Path,
    got: Callable[[int], None],
) -> FetchedFile:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    # The archive as a whole was verified: what comes out of it is right by definition.
    hashed = FileHash(FetchedFile(name=name, size_bytes=member.size))
    content = opened.extractfile(member)
    assert content is not None
    with content, path.open("wb") as file:
        while data := content.read(CHUNK_BYTES):
            file.write(data)
            hashed.update(data)
            got(len(data))
        file.flush()
        os.fsync(file.fileno())
    return hashed.trusted(path)


def _unsafe(what: str) -> Unfetchable:
    return Unfetchable("unsafe_archive", f"the archive: {what}", terminal=True, again=False)
