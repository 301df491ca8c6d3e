"""Measures a model's files on this machine: digest, weights, attention. Implements `Checkpoints`.

The digest can be recomputed by anybody:

* Each file is cut into segments of 64 MiB (67,108,864 bytes), the last one shorter. The file's
  digest is the SHA-256 over the raw 32-byte SHA-256 digests of its segments, one after the
  other; that of an empty file is the SHA-256 of nothing.
* The manifest has one line per file, sorted by the bytes of the path relative to the model's
  directory: the path, a NUL byte, the size in decimal digits, a NUL byte, the file's digest in
  64 lower-case hexadecimal digits, and a line feed.
* The model's digest is ``sha256:`` and the SHA-256 of the manifest in hexadecimal.

A link counts as the file it leads to, under the link's own path.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import threading
from collections import deque
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TypeVar, TypeVarTuple

import trio

from capyctl.checkpoints import segments
from capyctl.checkpoints.digest_cache import DigestCache
from capyctl.checkpoints.facts import read_contents
from capyctl.checkpoints.model_files import Identity, ModelFile, ModelFiles, find_files
from capyctl.checkpoints.trusted import TrustedDigests
from capyctl.contracts.checkpoints import Unmeasurable
from capyctl.domain.checkpoints import CheckpointFacts

THREADS_MAX = 8
SMALL_BYTES_MAX = 1 << 20

T = TypeVar("T")
A = TypeVarTuple("A")


class LocalCheckpoints:
    """Measures models of this machine; remembers files that did not change.

    Hashing runs in at most eight threads (one per processor if those are fewer), apart from
    Trio's other threads. Each model is measured by one caller at a time; others wait.
    """

    def __init__(self, cache_dir: Path | None = None, *, trust_declared: bool = False) -> None:
        """``cache_dir``: an owner-only folder for digests of known files; None: memory only.
        ``trust_declared``: take a digest that a document declares as measured, the first time."""
        self._trusted = TrustedDigests(cache_dir) if trust_declared else None
        self._cache = DigestCache(cache_dir)
        self._cache_lock = threading.Lock()
        self._threads = trio.CapacityLimiter(max(1, min(THREADS_MAX, os.cpu_count() or 1)))
        self._measuring: dict[str, trio.Lock] = {}
        self._hashed_bytes = 0
        self._fetched: set[Identity] = set()

    def learn(self, digests: Iterable[tuple[Identity, str]]) -> None:
        """Take over digests of files that were hashed as they came in."""
        for identity, digest in digests:
            file = ModelFile(name="", path="", identity=identity)
            self._cache.remember(file, digest)
            if self._cache.find(file) == digest:
                self._fetched.add(identity)

    @property
    def hashed_bytes(self) -> int:
        """Bytes read and hashed so far; holes and remembered files cost none."""
        return self._hashed_bytes

    async def measure(
        self,
        model_path: str,
        *,
        weights_file: str | None = None,
        declared: str | None = None,
    ) -> CheckpointFacts:
        """Digest and sizes of every file under ``model_path``. Hashing runs in threads.

        Unchanged files (device, inode, size, mtime, ctime) are not read again. Cancelling
        takes effect once the segments that are being read (64 MiB each) are done; what was
        learnt of whole files stays.

        Args:
            model_path: A directory, or one file (a shard stands for its set).
            weights_file: The GGUF file to load, relative to the directory.
            declared: What the document says the digest is.

        Raises:
            Unmeasurable: ``invalid_root``, ``unsafe_file``, ``too_large``, ``changed`` or
                ``io_error``.
        """
        lock = self._measuring.setdefault(model_path, trio.Lock())
        async with lock:
            return await self._measure(model_path, weights_file, declared)

    async def _measure(
        self, model_path: str, weights_file: str | None, declared: str | None
    ) -> CheckpointFacts:
        found = await self._in_thread(find_files, model_path)
        digest, provenance = await self._digest_of(model_path, found, declared)
        contents = await self._in_thread(read_contents, found, weights_file)
        # Last of all, so that nothing above speaks of files that were replaced meanwhile.
        await self._in_thread(_check_still, model_path, found)
        with contextlib.suppress(OSError):
            await self._in_thread(self._save)
        return CheckpointFacts(
            digest=digest,
            weights_bytes=contents.weights_bytes,
            format=contents.format,
            weights_file=contents.weights_file,
            attention=contents.attention,
            attention_refused=contents.attention_refused,
            hybrid=contents.hybrid,
            model_type=contents.model_type,
            quantization=contents.quantization,
            template=contents.template,
            stat_identity=tuple((file.name, *file.identity) for file in found.files),
            provenance=provenance,
        )

    async def _digest_of(
        self, model_path: str, found: ModelFiles, declared: str | None
    ) -> tuple[str, str]:
        """The digest, and what it rests on. Files whose digests are known are never trusted."""
        await self._in_thread(self._cache.load)
        unknown = any(self._cache.find(file) is None for file in found.files)
        if self._trusted is not None and declared is not None and unknown:
            with contextlib.suppress(OSError):
                if await self._in_thread(self._trusted.take, model_path, found, declared):
                    return declared, "declared_trusted"
        fetched = all(file.identity in self._fetched for file in found.files)
        digests = await self._digests(found.files)
        digest = manifest_digest((file, digests[file.name]) for file in found.files)
        return digest, "fetched" if fetched else "measured"

    async def digest(self, model_path: str) -> str:
        """The digest as it is now; files that have not changed are not read again.

        But for files of up to 1 MiB, which are read whatever their times say, unless the digest
        was taken from a document.

        Raises:
            Unmeasurable: as `measure`.
        """
        async with self._measuring.setdefault(model_path, trio.Lock()):
            found = await self._in_thread(find_files, model_path)
            if self._trusted is not None:
                trusted = await self._in_thread(self._trusted.holds, model_path, found)
                if trusted is not None:
                    return trusted
            for file in found.files:
                if file.size_bytes <= SMALL_BYTES_MAX:
                    self._cache.forget(file)
            digests = await self._digests(found.files)
            await self._in_thread(_check_still, model_path, found)
            return manifest_digest((file, digests[file.name]) for file in found.files)

    async def _digests(self, files: tuple[ModelFile, ...]) -> dict[str, str]:
        await self._in_thread(self._cache.load)
        digests: dict[str, str] = {}
        unknown: list[ModelFile] = []
        for file in files:
            known = self._cache.find(file)
            if known is None:
                unknown.append(file)
            else:
                digests[file.name] = known
        hashes = await self._in_thread(_plan, unknown)
        pending = deque((found, index) for found in hashes for index in found.with_data)
        async with trio.open_nursery() as nursery:
            for _ in range(min(len(pending), int(self._threads.total_tokens))):
                nursery.start_soon(self._hash_some, pending)
        for found in hashes:
            digests[found.file.name] = found.digest()
            self._cache.remember(found.file, digests[found.file.name])
        return digests

    async def _hash_some(self, pending: deque[tuple[_FileHash, int]]) -> None:
        while pending:
            found, index = pending.popleft()
            digest = await self._in_thread(segments.hash_segment, found.file, index)
            found.put(index, digest)
            self._hashed_bytes += segments.segment_size(found.file, index)

    def _save(self) -> None:
        with self._cache_lock:
            self._cache.save()

    async def _in_thread(self, function: Callable[[*A], T], *args: *A) -> T:
        return await trio.to_thread.run_sync(function, *args, limiter=self._threads)


class _FileHash:
    """The segment digests of one file, as they come in."""

    def __init__(self, file: ModelFile, with_data: list[int]) -> None:
        self.file = file
        self.with_data = with_data
        count = -(-file.size_bytes // segments.SEGMENT_BYTES)
        self._digests: list[bytes | None] = [None] * count

    def put(self, index: int, digest: bytes) -> None:
        self._digests[index] = digest

    def digest(self) -> str:
        """Hexadecimal. Segments that were not put are holes."""
        whole = hashlib.sha256()
        for index, digest in enumerate(self._digests):
            hole = segments.segment_size(self.file, index)
            whole.update(digest or segments.zero_digest(hole))
        return whole.hexdigest()


def _plan(files: list[ModelFile]) -> list[_FileHash]:
    return [_FileHash(file, segments.segments_with_data(file)) for file in files]


def manifest_digest(files: Iterable[tuple[ModelFile, str]]) -> str:
    """``sha256:…`` over the manifest of files, already sorted, and their digests."""
    manifest = hashlib.sha256()
    for file, digest in files:
        line = b"%b\0%d\0%b\n" % (os.fsencode(file.name), file.size_bytes, digest.encode())
        manifest.update(line)
    return f"sha256:{manifest.hexdigest()}"


def _check_still(model_path: str, found: ModelFiles) -> None:
    """The same files, none more and none less, and none of them touched."""
    segments.check_same(found.files)
    if find_files(model_path) != found:
        raise Unmeasurable("changed", f"files came or went in {model_path} while it was measured")
