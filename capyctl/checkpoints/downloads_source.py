"""Brings one source's files to where they belong: what is missing, verified, then put in place."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Protocol
from urllib.parse import unquote, urlsplit

import attrs

from capyctl.checkpoints import hub
from capyctl.checkpoints.downloads_hash import FileHash
from capyctl.checkpoints.downloads_stream import (
    PAUSES_S,
    FileDownload,
    Remote,
    Rules,
    not_written,
)
from capyctl.checkpoints.downloads_tar import extract
from capyctl.checkpoints.model_files import identity_of
from capyctl.checkpoints.sources_layout import (
    FetchedFile,
    Manifest,
    Place,
    read_manifest,
    write_manifest,
)
from capyctl.contracts.checkpoints import Unfetchable

FILES_AT_ONCE = 4
LOCK_S_MAX = 5.0
NAME_CHARACTERS_MAX = 200


class Daemon(Protocol):
    """Who asked for the download. Its methods may be called from any thread."""

    def admit(self, total_bytes: int | None) -> int:
        """Ask for room; the most bytes that may come."""

    def expect(self, total_bytes: int) -> None:
        """So many bytes make a whole, though none of them needs room."""

    def got(self, change: int) -> None:
        """So many bytes more are here, or fewer."""

    def start_over(self) -> None:
        """Nothing that was counted so far counts."""


@attrs.frozen(kw_only=True)
class Request:
    """What is to be downloaded, as the daemon puts it."""

    root: str
    key: str
    endpoint: str = hub.ENDPOINT
    repository: str = ""
    commit: str = ""
    files: tuple[str, ...] = ()
    token: str | None = attrs.field(default=None, repr=False)
    url: str = attrs.field(default="", repr=False)
    called: str = ""
    sha256: str = ""
    archive: bool = False
    allowed_hosts: tuple[str, ...] | None = None
    plain_http: bool = False
    pauses_s: tuple[float, ...] = PAUSES_S

    @property
    def rules(self) -> Rules:
        return Rules(
            allowed_hosts=self.allowed_hosts,
            plain_http=self.plain_http,
            plain_loopback=self.endpoint.startswith("http://"),
        )


def fetch(request: Request, daemon: Daemon) -> int:
    """Bytes of the source's files, once all of them are where they belong. Blocks.

    Raises:
        Unfetchable: see there.
    """
    place = Place(Path(request.root), request.key)
    try:
        place.partial.mkdir(parents=True, exist_ok=True)
        lock = os.open(place.partial, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            _hold(lock, request.key)
            with _alone_in(place.folder, lock, request.key):
                return _fetch(request, place, daemon)
        finally:
            os.close(lock)
            with contextlib.suppress(OSError):
                place.partial.rmdir()
    except OSError as problem:
        raise not_written(problem, Path(problem.filename or place.partial)) from None


@contextlib.contextmanager
def _alone_in(folder: Path, lock: int, key: str) -> Iterator[None]:
    """Also of the model's directory: it is what another one of us locked under its earlier name,
    and that one may not have written the last of its manifest.
    """
    try:
        there = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except FileNotFoundError:
        yield
        return
    try:
        if not os.path.samestat(os.fstat(there), os.fstat(lock)):
            _hold(there, key)
        yield
    finally:
        os.close(there)


def _hold(lock: int, key: str) -> None:
    """A daemon that was killed may have left one of us, which is about to end."""
    until = time.monotonic() + LOCK_S_MAX
    while True:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except BlockingIOError:
            if time.monotonic() > until:
                detail = f"another capyctl is downloading {key} into the same directory"
                raise Unfetchable("io_error", detail) from None
            time.sleep(0.05)


def _fetch(request: Request, place: Place, daemon: Daemon) -> int:
    known = read_manifest(place.manifest)
    if known is not None and place.folder.is_dir():
        known = _look_again(place, known, daemon)
        if known.is_whole(place.folder):
            write_manifest(place.manifest, known)
            _clear(place)
            return known.size_bytes
        daemon.start_over()
    if request.archive:
        files = _fetch_archive(request, place, daemon)
    elif request.sha256:
        files = _fetch_address(request, place, daemon)
    else:
        files = _fetch_commit(request, place, known, daemon)
    return _put_in_place(place, files)


def _look_again(place: Place, known: Manifest, daemon: Daemon) -> Manifest:
    """The manifest with what is really there, as when the files were copied from elsewhere."""
    daemon.expect(known.size_bytes)
    files = tuple(_seen(place.folder, file, daemon.got) for file in known.files)
    whole = all(file.is_at(place.folder / file.name) for file in files)
    return Manifest(complete=whole, files=files)


def _seen(folder: Path, file: FetchedFile, got: Callable[[int], None]) -> FetchedFile:
    """The file as it is, if it is what it must be; else as one that is still to come."""
    path = folder / file.name
    if file.is_at(path):
        got(file.size_bytes or 0)
        return file
    missing = attrs.evolve(file, digest=None, identity=None)
    if path.is_symlink() or not path.is_file() or path.stat().st_size != file.size_bytes:
        return missing
    hashed = FileHash(missing)
    hashed.read(path, got)
    return missing if hashed.mismatch() else hashed.verified(path)


# A commit of the Hub


def _fetch_commit(
    request: Request, place: Place, known: Manifest | None, daemon: Daemon
) -> tuple[FetchedFile, ...]:
    if known is None:
        listed = hub.list_files(
            request.repository,
            request.commit,
            request.files,
            endpoint=request.endpoint,
            token=request.token,
            rules=request.rules,
        )
        known = Manifest(complete=False, files=listed)
        write_manifest(place.manifest, known)
    daemon.admit(known.size_bytes)
    return _Commit(request, place, known, daemon).run()


class _Commit:
    """The files of one commit; each is on record as soon as it is verified."""

    def __init__(self, request: Request, place: Place, manifest: Manifest, daemon: Daemon) -> None:
        self._request = request
        self._place = place
        self._daemon = daemon
        self._files = {file.name: file for file in manifest.files}
        self._lock = threading.Lock()
        self._failed = threading.Event()

    def run(self) -> tuple[FetchedFile, ...]:
        with ThreadPoolExecutor(FILES_AT_ONCE) as pool:
            outcomes = [pool.submit(self._one, file) for file in self._files.values()]
        problems = [outcome.exception() for outcome in outcomes]
        for problem in sorted(filter(None, problems), key=_gravity):
            raise problem
        return tuple(self._files.values())

    def _one(self, file: FetchedFile) -> None:
        if self._failed.is_set():
            return
        try:
            arrived = self._arrived(file)
        except BaseException as problem:
            if getattr(problem, "terminal", True):
                self._failed.set()
            raise
        with self._lock:
            self._files[file.name] = arrived
            manifest = Manifest(complete=False, files=tuple(self._files.values()))
            write_manifest(self._place.manifest, manifest)

    def _arrived(self, file: FetchedFile) -> FetchedFile:
        for folder in (self._place.folder, self._place.partial):
            if file.is_at(folder / file.name):
                self._daemon.got(file.size_bytes or 0)
                return file
        there = self._place.folder / file.name
        if there.exists():
            seen = _seen(self._place.folder, file, lambda _: None)
            if seen.identity is not None:
                self._daemon.got(file.size_bytes or 0)
                return seen
        request = self._request
        path = self._place.partial / file.name
        path.parent.mkdir(parents=True, exist_ok=True)
        remote = Remote(
            url=hub.file_url(request.endpoint, request.repository, request.commit, file.name),
            called=f"{urlsplit(request.endpoint).netloc.rpartition('@')[2]}: {file.name}",
            token=request.token,
            rules=request.rules,
        )
        wanted = attrs.evolve(file, digest=None, identity=None)
        return FileDownload(
            remote=remote, wanted=wanted, path=path, got=self._daemon.got, pauses_s=request.pauses_s
        ).run()


def _gravity(problem: BaseException) -> int:
    """What must be said first when several files failed."""
    if not isinstance(problem, Unfetchable):
        return 0
    return 1 if problem.terminal else 2


# One address


def _remote(request: Request) -> Remote:
    return Remote(url=request.url, called=request.called, rules=request.rules)


def _fetch_address(request: Request, place: Place, daemon: Daemon) -> tuple[FetchedFile, ...]:
    name = file_name(request.url)
    wanted = FetchedFile(name=name, size_bytes=None, sha256=request.sha256)
    if place.folder.is_dir():
        for path in place.folder.iterdir():
            kept = attrs.evolve(wanted, name=path.name, size_bytes=path.stat().st_size)
            seen = _seen(place.folder, kept, daemon.got)
            if seen.identity is not None:
                return (seen,)
        daemon.start_over()
    return (_download(request, wanted, place.partial / name, daemon),)


def _download(request: Request, wanted: FetchedFile, path: Path, daemon: Daemon) -> FetchedFile:
    return FileDownload(
        remote=_remote(request),
        wanted=wanted,
        path=path,
        got=daemon.got,
        sized=daemon.admit,
        pauses_s=request.pauses_s,
    ).run()


def _fetch_archive(request: Request, place: Place, daemon: Daemon) -> tuple[FetchedFile, ...]:
    wanted = FetchedFile(name=place.archive.name, size_bytes=None, sha256=request.sha256)
    arrived = _download(request, wanted, place.archive, daemon)
    for leftover in place.partial.iterdir():
        shutil.rmtree(leftover) if leftover.is_dir() else leftover.unlink()

    def admit(files_bytes: int) -> None:
        daemon.admit((arrived.size_bytes or 0) + files_bytes)

    files = extract(place.archive, place.partial, admit=admit, got=daemon.got)
    place.archive.unlink()
    return files


def file_name(url: str) -> str:
    """What a downloaded file is called: the last part of its address, in plain characters."""
    last = unquote(urlsplit(url).path).rpartition("/")[2]
    plain = "".join(c if c.isascii() and (c.isalnum() or c in "._-") else "_" for c in last)
    return plain.lstrip(".")[-NAME_CHARACTERS_MAX:] or "model"


# The end


def _put_in_place(place: Place, files: tuple[FetchedFile, ...]) -> int:
    write_manifest(place.manifest, Manifest(complete=False, files=files))
    if not place.folder.exists():
        os.rename(place.partial, place.folder)
    else:
        for file in files:
            _move(place.partial / file.name, place.folder / file.name)
    here = Manifest(complete=True, files=tuple(_settled(place.folder, files)))
    write_manifest(place.manifest, here)
    _clear(place)
    return here.size_bytes


def _move(coming: Path, there: Path) -> None:
    if coming.exists():
        there.parent.mkdir(parents=True, exist_ok=True)
        os.replace(coming, there)


def _settled(folder: Path, files: Iterable[FetchedFile]) -> Iterable[FetchedFile]:
    """Moving a file changes its ctime, and nothing else."""
    for file in files:
        identity = identity_of((folder / file.name).lstat())
        if not file.is_at(folder / file.name):
            raise Unfetchable("io_error", f"{file.name} was changed while it was put in place")
        yield attrs.evolve(file, identity=identity)


def _clear(place: Place) -> None:
    """What was only needed on the way."""
    shutil.rmtree(place.partial, ignore_errors=True)
    place.archive.unlink(missing_ok=True)
