"""Hashes one segment of a file, and finds the segments that are nothing but holes."""

from __future__ import annotations

import errno
import functools
import hashlib
import os
from pathlib import Path

from capyctl.checkpoints.model_files import ModelFile, identity_of
from capyctl.contracts.checkpoints import Unmeasurable
from capyctl.domain.units import MIB

SEGMENT_BYTES = 64 * MIB
_READ_BYTES = MIB


@functools.lru_cache(maxsize=64)
def zero_digest(size_bytes: int) -> bytes:
    """SHA-256 of that many zero bytes (at most a segment)."""
    found = hashlib.sha256()
    zeros = bytes(_READ_BYTES)
    for _ in range(size_bytes // _READ_BYTES):
        found.update(zeros)
    found.update(zeros[: size_bytes % _READ_BYTES])
    return found.digest()


def segment_size(file: ModelFile, index: int) -> int:
    return min(SEGMENT_BYTES, file.size_bytes - index * SEGMENT_BYTES)


def segments_with_data(file: ModelFile) -> list[int]:
    """Indices of the segments that hold any data. Blocks; reads no contents.

    A file system that knows no holes calls everything data.

    Raises:
        Unmeasurable: ``changed`` or ``io_error``.
    """
    found: list[int] = []
    descriptor = open_same(file)
    try:
        offset = 0
        while offset < file.size_bytes:
            try:
                begin = os.lseek(descriptor, offset, os.SEEK_DATA)
            except OSError as error:
                if error.errno == errno.ENXIO:
                    break
                raise
            end = min(os.lseek(descriptor, begin, os.SEEK_HOLE), file.size_bytes)
            first = max(begin // SEGMENT_BYTES, found[-1] + 1 if found else 0)
            found.extend(range(first, (end - 1) // SEGMENT_BYTES + 1))
            # The rest of a segment that is hashed anyway need not be looked at.
            offset = max(end, (found[-1] + 1) * SEGMENT_BYTES if found else end)
    except OSError as error:
        raise _io_error(file, error) from error
    finally:
        os.close(descriptor)
    return [index for index in found if index * SEGMENT_BYTES < file.size_bytes]


def hash_segment(file: ModelFile, index: int) -> bytes:
    """SHA-256 of segment ``index``. Blocks for as long as reading 64 MiB takes.

    Raises:
        Unmeasurable: ``changed`` when the file is not, or no longer, the one that was found;
            ``io_error``.
    """
    offset, left = index * SEGMENT_BYTES, segment_size(file, index)
    found = hashlib.sha256()
    buffer = bytearray(min(_READ_BYTES, left))
    view = memoryview(buffer)
    descriptor = open_same(file)
    try:
        while left:
            count = os.preadv(descriptor, [view[: min(left, len(buffer))]], offset)
            if count == 0:
                raise _changed(file)
            found.update(view[:count])
            offset += count
            left -= count
        if identity_of(os.fstat(descriptor)) != file.identity:
            raise _changed(file)
    except OSError as error:
        raise _io_error(file, error) from error
    finally:
        os.close(descriptor)
    return found.digest()


def open_same(file: ModelFile) -> int:
    """A descriptor of the very file that was found.

    Raises:
        Unmeasurable: ``changed`` or ``io_error``.
    """
    try:
        # Non-blocking: a pipe put in the file's place must not hang us.
        descriptor = os.open(file.path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError as error:
        raise _changed(file) from error
    except OSError as error:
        raise _io_error(file, error) from error
    if identity_of(os.fstat(descriptor)) != file.identity:
        os.close(descriptor)
        raise _changed(file)
    return descriptor


def check_same(files: tuple[ModelFile, ...]) -> None:
    """Look at every file again. Blocks; reads no contents.

    Raises:
        Unmeasurable: ``changed``.
    """
    for file in files:
        try:
            same = identity_of(Path(file.path).lstat()) == file.identity
        except OSError:
            same = False
        if not same:
            raise _changed(file)


def _changed(file: ModelFile) -> Unmeasurable:
    return Unmeasurable(
        "changed", f"{file.name} changed while it was measured; measure it again once it is still"
    )


def _io_error(file: ModelFile, error: OSError) -> Unmeasurable:
    return Unmeasurable("io_error", f"{file.name}: {error.strerror or error}")
