"""Hashes a file as it comes in: by what its source states, and for the model's digest."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path

import attrs

from capyctl.checkpoints.model_files import identity_of
from capyctl.checkpoints.segments import SEGMENT_BYTES
from capyctl.checkpoints.sources_layout import FetchedFile
from capyctl.contracts.checkpoints import Unfetchable

CHUNK_BYTES = 1 << 20


class FileHash:
    """Every hash of one file, in one pass over its bytes."""

    def __init__(self, wanted: FetchedFile) -> None:
        self._wanted = wanted
        self._whole = hashlib.sha256()
        self._git = None
        if wanted.git_sha1 is not None and wanted.size_bytes is not None:
            # Git's own name for the content; nothing is protected by it alone.
            self._git = hashlib.sha1(usedforsecurity=False)
            self._git.update(b"blob %d\0" % wanted.size_bytes)
        self._segments = hashlib.sha256()
        self._segment = hashlib.sha256()
        self._segment_left = SEGMENT_BYTES
        self.bytes_count = 0

    def update(self, data: bytes) -> None:
        self.bytes_count += len(data)
        self._whole.update(data)
        if self._git is not None:
            self._git.update(data)
        rest = memoryview(data)
        while rest:
            part = rest[: self._segment_left]
            rest = rest[len(part) :]
            self._segment.update(part)
            self._segment_left -= len(part)
            if self._segment_left == 0:
                self._next_segment()

    def _next_segment(self) -> None:
        self._segments.update(self._segment.digest())
        self._segment = hashlib.sha256()
        self._segment_left = SEGMENT_BYTES

    def read(self, path: Path, read: Callable[[int], None] = lambda _: None) -> None:
        """All of a file; ``read`` is told of bytes as they go by. Blocks."""
        with path.open("rb") as file:
            while data := file.read(CHUNK_BYTES):
                self.update(data)
                read(len(data))

    def mismatch(self) -> str | None:
        """How the bytes so far differ from what the source states; None: they are the file."""
        wanted = self._wanted
        if wanted.size_bytes is not None and self.bytes_count != wanted.size_bytes:
            return f"{wanted.name} has {self.bytes_count} bytes instead of {wanted.size_bytes}"
        if wanted.sha256 is not None and self._whole.hexdigest() != wanted.sha256:
            return (
                f"{wanted.name} has the SHA-256 {self._whole.hexdigest()} instead of the stated one"
            )
        if wanted.sha256 is None and (
            self._git is None or self._git.hexdigest() != wanted.git_sha1
        ):
            return f"{wanted.name} has another git hash than the stated one"
        return None

    def verified(self, path: Path) -> FetchedFile:
        """The file at ``path``, whose bytes were hashed here and are the wanted ones.

        Raises:
            Unfetchable: ``checksum_mismatch``.
        """
        wrong = self.mismatch()
        if wrong is not None:
            raise Unfetchable("checksum_mismatch", wrong, terminal=True, again=False)
        return self.trusted(path)

    def trusted(self, path: Path) -> FetchedFile:
        """The file at ``path`` with the hashes of what came, whatever was stated."""
        if self._segment_left < SEGMENT_BYTES:
            self._next_segment()
        return attrs.evolve(
            self._wanted,
            size_bytes=self.bytes_count,
            sha256=self._whole.hexdigest(),
            git_sha1=None,
            digest=self._segments.hexdigest(),
            identity=identity_of(path.lstat()),
        )
