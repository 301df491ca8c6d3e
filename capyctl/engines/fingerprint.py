"""A digest over an engine's installed files, and whether they have changed since."""

from __future__ import annotations

import csv
import hashlib
import os
import stat
from collections.abc import Iterator
from pathlib import Path

import attrs

from capyctl.engines.installations import DISTRIBUTIONS, find_in_environment

FILES_MAX = 200_000
READ_BYTES = 1024 * 1024
NEIGHBOUR = "distribution"
"""Stands for the content of a distribution whose name and version alone count."""


class Unfingerprintable(Exception):
    """The installation's files could not be read. Says which and why."""


@attrs.frozen(kw_only=True)
class Fingerprint:
    """What an installation's files were at one moment."""

    digest: str
    """``sha256:`` and 64 hexadecimal digits over the manifest."""
    entries: tuple[tuple[str, str], ...] = attrs.field(repr=False)
    """Per file: path, and digest of its content or the text of its link. Sorted."""
    stats: tuple[tuple[str, int, int, int, int, int], ...] = attrs.field(repr=False)
    """Per file: path, device, inode, size, mtime ns, ctime ns. Sorted."""


def measure_installation(family: str, executable: str) -> Fingerprint:
    """Read every file of an installation. Takes seconds for a Python engine: use a thread.

    llama.cpp: the program and every `lib*.so*` beside it and in `<prefix>/lib`. A Python
    engine: its distribution's files, its script, and the versions of all that is beside it.

    Raises:
        Unfingerprintable: a file cannot be read, or there are none.
    """
    entries: list[tuple[str, str]] = []
    stats = []
    try:
        for path in _files_of(family, executable):
            stats.append(_stat_of(path))
            entries.append((str(path), _content_of(path)))
        entries += _neighbours_of(family, executable)
    except OSError as problem:
        raise Unfingerprintable(f"{problem.filename}: {problem.strerror}") from problem
    if not stats:
        raise Unfingerprintable(f"{executable} has no files that could be read")
    entries.sort()
    manifest = "".join(f"{path}\0{content}\n" for path, content in entries)
    digest = hashlib.sha256(manifest.encode("utf-8", "surrogateescape")).hexdigest()
    return Fingerprint(
        digest=f"sha256:{digest}", entries=tuple(entries), stats=tuple(sorted(stats))
    )


def find_drift(before: Fingerprint, family: str, executable: str) -> str | None:
    """None while the installation is what it was; else what changed, in a sentence.

    Files whose identity and times are the same are not read again.
    """
    try:
        now = tuple(sorted(_stat_of(path) for path in _files_of(family, executable)))
        neighbours = _neighbours_of(family, executable)
    except OSError as problem:
        return f"{problem.filename} cannot be read any more"
    known = [entry for entry in before.entries if entry[1] == NEIGHBOUR]
    if now == before.stats and sorted(neighbours) == known:
        return None
    try:
        after = measure_installation(family, executable)
    except Unfingerprintable as problem:
        return str(problem)
    if after.digest == before.digest:
        return None
    changed = sorted(set(before.entries) ^ set(after.entries))
    return f"{changed[0][0]} is not what it was when the engine was published"


def _files_of(family: str, executable: str) -> Iterator[Path]:
    files = (
        _llama_files(Path(executable))
        if family == "llamacpp"
        else _distribution_files(family, Path(executable))
    )
    for count, path in enumerate(files):
        if count >= FILES_MAX:
            raise OSError(0, f"more than {FILES_MAX} files", executable)
        yield path


def _llama_files(program: Path) -> Iterator[Path]:
    yield program
    folders = [program.parent]
    if program.parent.name == "bin":
        folders.append(program.parent.parent / "lib")
    for folder in folders:
        for library in sorted(folder.glob("lib*.so*")):
            if library.is_symlink() or library.is_file():
                yield library


def _distribution_files(family: str, executable: Path) -> Iterator[Path]:
    yield executable
    info = _dist_info(family, executable)
    if info is None:
        return
    site = info.parent
    with (info / "RECORD").open(newline="", encoding="utf-8") as record:
        for row in csv.reader(record):
            path = Path(os.path.normpath(site / row[0])) if row else site
            if path.suffix == ".pyc" or path == executable or not os.path.lexists(path):
                continue
            yield path


def _dist_info(family: str, executable: Path) -> Path | None:
    for one in find_in_environment(executable.parent.parent):
        if one.family == family and one.site_packages and one.distribution:
            name = one.distribution.replace("-", "_")
            return Path(one.site_packages, f"{name}-{one.version}.dist-info")
    return None


def _neighbours_of(family: str, executable: str) -> list[tuple[str, str]]:
    """Name and version of every distribution in the same `site-packages`."""
    if family not in DISTRIBUTIONS:
        return []
    info = _dist_info(family, Path(executable))
    if info is None:
        return []
    return [(str(one), NEIGHBOUR) for one in sorted(info.parent.glob("*.dist-info"))]


def _content_of(path: Path) -> str:
    if path.is_symlink():
        return f"link {os.readlink(path)}"
    digest = hashlib.sha256()
    with path.open("rb") as content:
        while piece := content.read(READ_BYTES):
            digest.update(piece)
    return digest.hexdigest()


def _stat_of(path: Path) -> tuple[str, int, int, int, int, int]:
    held = path.lstat()
    if not stat.S_ISREG(held.st_mode) and not stat.S_ISLNK(held.st_mode):
        raise OSError(0, "is neither a file nor a link", str(path))
    return (
        str(path),
        held.st_dev,
        held.st_ino,
        held.st_size,
        held.st_mtime_ns,
        held.st_ctime_ns,
    )
