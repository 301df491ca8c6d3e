"""Which files a model consists of: regular files under its root, links followed inside it only."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import TypeAlias

import attrs

from capyctl.checkpoints.gguf_files import shard_names
from capyctl.contracts.checkpoints import Unmeasurable

LINK_HOPS_MAX = 8
FILES_MAX = 100_000
DEPTH_MAX = 64

Identity: TypeAlias = tuple[int, int, int, int, int]
"""Device, inode, size, mtime ns, ctime ns."""


@attrs.frozen(kw_only=True)
class ModelFile:
    """One regular file of a model."""

    name: str
    """Path relative to the root, with ``/``. Undecodable bytes are surrogate escapes."""
    path: str
    """Where its bytes are, links resolved."""
    identity: Identity

    @property
    def size_bytes(self) -> int:
        return self.identity[2]


@attrs.frozen(kw_only=True)
class ModelFiles:
    """Every file of a model, sorted by name (by the bytes of it)."""

    root: str
    """Real path of the directory."""
    files: tuple[ModelFile, ...]
    single: str | None = None
    """Name of the file, when the model was given as a file."""

    def named(self, name: str) -> ModelFile | None:
        return next((file for file in self.files if file.name == name), None)


def identity_of(status: os.stat_result) -> Identity:
    return (
        status.st_dev,
        status.st_ino,
        status.st_size,
        status.st_mtime_ns,
        status.st_ctime_ns,
    )


def find_files(model_path: str) -> ModelFiles:
    """Walk a model's directory, or take a single file. Blocks; reads no contents.

    Raises:
        Unmeasurable: ``invalid_root``, ``unsafe_file``, ``too_large`` or ``io_error``.
    """
    root = os.path.realpath(model_path)
    try:
        status = os.stat(root)
        if stat.S_ISREG(status.st_mode):
            return _single_file(root, status)
        if not stat.S_ISDIR(status.st_mode):
            raise Unmeasurable("invalid_root", f"{model_path} is neither a directory nor a file")
        files = [_model_file(root, entry) for entry in _entries(root)]
    except (FileNotFoundError, NotADirectoryError) as error:
        raise Unmeasurable("invalid_root", f"{model_path}: {error.strerror}") from error
    except OSError as error:
        raise Unmeasurable(
            "io_error", f"{error.filename or model_path}: {error.strerror}"
        ) from error
    if not files:
        raise Unmeasurable("invalid_root", f"{model_path} holds no files")
    files.sort(key=lambda file: os.fsencode(file.name))
    return ModelFiles(root=root, files=tuple(files))


def _single_file(path: str, status: os.stat_result) -> ModelFiles:
    """The file, with the other shards of its set where its name says that it has some."""
    folder, name = os.path.split(path)
    found = [ModelFile(name=name, path=path, identity=identity_of(status))]
    found += [
        _model_file(folder, os.path.join(folder, shard))
        for shard in shard_names(name)
        if shard != name and Path(folder, shard).exists()
    ]
    found.sort(key=lambda file: os.fsencode(file.name))
    return ModelFiles(root=folder, files=tuple(found), single=name)


def _entries(root: str) -> Iterator[str]:
    """Paths of everything under ``root`` that is not a real directory."""
    pending = [(root, 0)]
    seen = 0
    while pending:
        folder, depth = pending.pop()
        if depth > DEPTH_MAX:
            raise Unmeasurable("too_large", f"{folder} lies more than {DEPTH_MAX} directories deep")
        with os.scandir(folder) as entries:
            for entry in entries:
                seen += 1
                if seen > FILES_MAX:
                    raise Unmeasurable("too_large", f"{root} holds more than {FILES_MAX} entries")
                if entry.is_dir(follow_symlinks=False):
                    pending.append((entry.path, depth + 1))
                else:
                    yield entry.path


def _model_file(root: str, path: str) -> ModelFile:
    name = os.path.relpath(path, root)
    real = _follow(root, path, name)
    status = os.lstat(real)
    if not stat.S_ISREG(status.st_mode):
        raise Unmeasurable("unsafe_file", f"{name} is {_kind(status.st_mode)}, not a regular file")
    return ModelFile(name=name.replace(os.sep, "/"), path=real, identity=identity_of(status))


def _follow(root: str, path: str, name: str) -> str:
    """The path behind a chain of links, each end of which lies inside the root."""
    for _ in range(LINK_HOPS_MAX + 1):
        folder = os.path.realpath(os.path.dirname(path))
        path = os.path.join(folder, os.path.basename(path))
        if os.path.commonpath((root, path)) != root:
            raise Unmeasurable(
                "unsafe_file",
                f"{name} is a link that leads out of {root}, to {path}; "
                "copy the model with its links resolved (cp -rL), or link inside it only",
            )
        if not os.path.islink(path):
            break
        path = os.path.normpath(os.path.join(folder, os.readlink(path)))
    else:
        raise Unmeasurable("unsafe_file", f"{name} is a chain of more than {LINK_HOPS_MAX} links")
    if not os.path.lexists(path):
        raise Unmeasurable("unsafe_file", f"{name} is a link to {path}, which does not exist")
    return path


_KINDS = {
    stat.S_IFDIR: "a link to a directory",
    stat.S_IFIFO: "a pipe",
    stat.S_IFSOCK: "a socket",
    stat.S_IFBLK: "a block device",
    stat.S_IFCHR: "a character device",
}


def _kind(mode: int) -> str:
    return _KINDS.get(stat.S_IFMT(mode), "special")
