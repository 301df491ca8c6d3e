"""Fetches one file over HTTP(S) in a thread: goes on where it was cut, verifies as it comes."""

from __future__ import annotations

import errno
import http.client
import ipaddress
import os
import re
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any, NoReturn
from urllib.parse import urlsplit

import attrs

from capyctl.checkpoints.downloads_hash import CHUNK_BYTES, FileHash
from capyctl.checkpoints.sources_layout import FetchedFile
from capyctl.contracts.checkpoints import Unfetchable
from capyctl.domain.checkpoints import host_allowed

READ_S_MAX = 60.0
"""How long a server may be silent."""
PAUSES_S = (0.2, 1.0, 3.0, 10.0)
"""Between attempts that brought nothing; one more and the download gives up for now."""
ATTEMPTS_MAX = 1000
REDIRECTS_MAX = 10
_RANGE = re.compile(r"bytes ([0-9]+)-[0-9]+/(?:[0-9]+|\*)")
_PASSING = frozenset({408, 421, 425, 429, 500, 502, 503, 504})


@attrs.frozen(kw_only=True)
class Rules:
    """Where a download may go."""

    allowed_hosts: tuple[str, ...] | None = None
    plain_http: bool = False
    plain_loopback: bool = False
    """``http://`` to this very machine."""


@attrs.frozen(kw_only=True)
class Remote:
    """Where one file comes from."""

    url: str = attrs.field(repr=False)
    called: str
    """What people are told in place of the address, which may hold a secret."""
    token: str | None = attrs.field(default=None, repr=False)
    rules: Rules = attrs.field(factory=Rules)


Sized = Callable[[int | None], int | None]
"""Is told a file's size once the server says it; answers how many bytes may come (None: any)."""


def check_address(url: str, rules: Rules, called: str, *, secured: bool = False) -> None:
    """``secured``: an https:// address sent us there.

    Raises:
        Unfetchable: ``denied``.
    """
    parts = urlsplit(url)
    host = parts.hostname or ""
    if parts.scheme not in ("https", "http") or not host:
        raise _denied(called, "leads to something else than http")
    if parts.scheme == "http":
        if secured:
            raise _denied(called, "leads from https:// down to http://")
        if not rules.plain_http and not (rules.plain_loopback and _is_loopback(host)):
            raise _denied(called, "is fetched by https:// only (model_sources.plain_http)")
    if not host_allowed(host, rules.allowed_hosts):
        raise _denied(called, "leads to a host that is not in model_sources.allowed_hosts")


def _is_loopback(host: str) -> bool:
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _denied(called: str, what: str) -> Unfetchable:
    return Unfetchable("denied", f"{called} {what}", terminal=True, again=False)


class Redirects(urllib.request.HTTPRedirectHandler):
    """Follows redirects within the rules; the token stays with the host it was given for."""

    max_redirections = REDIRECTS_MAX

    def __init__(self, remote: Remote) -> None:
        self._remote = remote

    def redirect_request(
        self, req: Any, fp: Any, code: int, msg: str, headers: Any, newurl: str
    ) -> urllib.request.Request | None:
        secured = req.full_url.startswith("https:")
        try:
            check_address(newurl, self._remote.rules, self._remote.called, secured=secured)
        except Unfetchable:
            fp.close()
            raise
        fresh = super().redirect_request(req, fp, code, msg, headers, newurl)
        if fresh is not None:
            _authorize(fresh, self._remote)
        return fresh


def _authorize(request: urllib.request.Request, remote: Remote) -> None:
    ours, theirs = urlsplit(remote.url), urlsplit(request.full_url)
    if remote.token is not None and (ours.scheme, ours.netloc) == (theirs.scheme, theirs.netloc):
        request.add_unredirected_header("Authorization", f"Bearer {remote.token}")


def open_remote(remote: Remote, offset: int) -> http.client.HTTPResponse:
    """The answer to a GET from ``offset`` on, headers read.

    Raises:
        Unfetchable: ``denied``, ``unauthorized``, ``not_found`` or ``unreachable``.
    """
    check_address(remote.url, remote.rules, remote.called)
    request = urllib.request.Request(
        remote.url, headers={"User-Agent": "capyctl", "Accept-Encoding": "identity"}
    )
    # Also from 0 on: some stores serve files above 50 GB by ranges only.
    request.add_header("Range", f"bytes={offset}-")
    _authorize(request, remote)
    opener = urllib.request.build_opener(Redirects(remote))
    try:
        answer = opener.open(request, timeout=READ_S_MAX)
    except urllib.error.HTTPError as problem:
        with problem:
            raise refused(problem.code, remote.called) from None
    except (OSError, http.client.HTTPException, ValueError) as problem:
        _unreachable(remote.called, problem)
    assert isinstance(answer, http.client.HTTPResponse)
    if answer.headers.get("Content-Encoding", "identity") != "identity":
        answer.close()
        raise Unfetchable("unreachable", f"{remote.called} answers in a compressed form")
    return answer


def refused(status: int, called: str) -> Unfetchable:
    """What an HTTP status comes to."""
    if status in (401, 403):
        detail = f"{called} answers {status}: a token that may read it is needed"
        return Unfetchable("unauthorized", detail, terminal=True)
    if status in (404, 410):
        return Unfetchable("not_found", f"{called} answers {status}", terminal=True)
    if 300 <= status < 400:
        return _denied(called, "redirects in a circle, or to something else than http")
    if status == 416 or status in _PASSING or status >= 500:
        return Unfetchable("unreachable", f"{called} answers {status}")
    return Unfetchable("unreachable", f"{called} answers {status}", terminal=True)


def _unreachable(called: str, problem: BaseException) -> NoReturn:
    inner = getattr(problem, "reason", problem)
    text = inner.strerror if isinstance(inner, OSError) and inner.strerror else str(inner)
    kind = type(inner).__name__
    raise Unfetchable("unreachable", f"{called} does not answer: {text or kind}") from None


@attrs.define(kw_only=True)
class FileDownload:
    """One file on its way to ``path``; what is there already is taken for its beginning."""

    remote: Remote
    wanted: FetchedFile
    path: Path
    got: Callable[[int], None]
    """Is told of bytes that are here now; of negative ones when some are given up."""
    sized: Sized = attrs.field(default=lambda _: None)
    pauses_s: tuple[float, ...] = PAUSES_S
    _counted: int = attrs.field(default=0, init=False)
    _hashed: FileHash | None = attrs.field(default=None, init=False)
    """Of what is there, so that a cut does not cost reading it all again."""

    def run(self) -> FetchedFile:
        """The verified file. Blocks; tries again as long as something comes.

        Raises:
            Unfetchable: ``checksum_mismatch`` after two whole downloads; ``unreachable`` or
                ``interrupted`` after the last pause; others at once.
        """
        quiet, mismatches = 0, 0
        for _ in range(ATTEMPTS_MAX):
            before = self._size()
            try:
                return self._attempt()
            except Unfetchable as problem:
                last = problem
            if last.reason == "checksum_mismatch":
                mismatches += 1
                self._drop()
                if mismatches == 2:
                    raise last
                continue
            if last.terminal or last.reason not in ("unreachable", "interrupted"):
                raise last
            quiet = 0 if self._size() > before else quiet + 1
            if quiet > len(self.pauses_s):
                raise last
            time.sleep(self.pauses_s[max(0, quiet - 1)] if self.pauses_s else 0)
        raise last

    def _size(self) -> int:
        try:
            return self.path.lstat().st_size
        except FileNotFoundError:
            return 0

    def _drop(self) -> None:
        self.path.unlink(missing_ok=True)
        self._hashed = None
        self._count(-self._counted)

    def _count(self, change: int) -> None:
        self._counted += change
        self.got(change)

    def _attempt(self) -> FetchedFile:
        wanted = self.wanted.size_bytes
        if wanted is not None and self._size() > wanted:
            self._drop()
        hashed = self._hashed
        if hashed is None or hashed.bytes_count != self._size():
            self._hashed = hashed = FileHash(self.wanted)
            self._count(-self._counted)
            if self.path.exists():
                hashed.read(self.path, self._count)
        if wanted is None or hashed.bytes_count < wanted:
            hashed = self._receive(hashed)
        elif wanted == 0:
            self.path.touch()
        return hashed.verified(self.path)

    def _receive(self, hashed: FileHash) -> FileHash:
        """Ask for what is missing and write it; the hash of everything."""
        offset = hashed.bytes_count
        try:
            answer = open_remote(self.remote, offset)
        except Unfetchable as problem:
            if problem.detail.endswith(" 416") and offset:
                self._drop()
            raise
        with answer:
            begin = _begin(answer)
            if begin not in (offset, 0):
                raise Unfetchable("unreachable", f"{self.remote.called} answers another range")
            if begin != offset:
                self._drop()
                self._hashed = hashed = FileHash(self.wanted)
            self._check_size(answer, begin)
            try:
                with self.path.open("r+b" if begin else "wb") as file:
                    file.seek(begin)
                    self._copy(answer, file, hashed)
            except OSError as problem:
                raise not_written(problem, self.path) from None
        return hashed

    def _check_size(self, answer: http.client.HTTPResponse, begin: int) -> None:
        stated = answer.headers.get("Content-Length", "")
        total = begin + int(stated) if stated.isdecimal() else None
        wanted = self.wanted.size_bytes
        if wanted is None:
            self.wanted = attrs.evolve(self.wanted, size_bytes=total)
        elif total is not None and total != wanted:
            raise Unfetchable(
                "checksum_mismatch",
                f"{self.wanted.name} has {total} bytes at {self.remote.called}, not {wanted}",
                terminal=True,
                again=False,
            )

    def _copy(self, answer: http.client.HTTPResponse, file: IO[bytes], hashed: FileHash) -> None:
        """To the end of the answer, whose size must be the stated one."""
        bytes_max = self.sized(self.wanted.size_bytes)
        while data := self._read(answer):
            if bytes_max is not None and hashed.bytes_count + len(data) > bytes_max:
                detail = f"{self.remote.called} is larger than the {bytes_max} bytes left for it"
                raise Unfetchable("too_large", detail, terminal=True)
            wanted = self.wanted.size_bytes
            if wanted is not None and hashed.bytes_count + len(data) > wanted:
                detail = f"{self.remote.called} sends more than the {wanted} bytes it should have"
                raise Unfetchable("checksum_mismatch", detail, terminal=True, again=False)
            file.write(data)
            file.flush()
            hashed.update(data)
            self._count(len(data))
        os.fsync(file.fileno())
        wanted = self.wanted.size_bytes
        if wanted is not None and hashed.bytes_count < wanted:
            detail = f"{self.remote.called} was cut at {hashed.bytes_count} of {wanted} bytes"
            raise Unfetchable("interrupted", detail)

    def _read(self, answer: http.client.HTTPResponse) -> bytes:
        try:
            return answer.read1(CHUNK_BYTES)
        except http.client.IncompleteRead:
            raise Unfetchable("interrupted", f"{self.remote.called} was cut") from None
        except (OSError, http.client.HTTPException) as problem:
            what = str(problem) or type(problem).__name__
            raise Unfetchable("interrupted", f"{self.remote.called} was cut: {what}") from None


def _begin(answer: http.client.HTTPResponse) -> int | None:
    """Where the answer's first byte belongs; None when that cannot be read."""
    if answer.status != 206:
        return 0
    found = _RANGE.match(answer.headers.get("Content-Range", ""))
    return int(found[1]) if found else None


def not_written(problem: OSError, path: Path) -> Unfetchable:
    """What a failed write comes to."""
    if problem.errno in (errno.ENOSPC, errno.EDQUOT):
        return Unfetchable("insufficient_space", f"the disk of {path.parent} is full")
    return Unfetchable("io_error", f"{path.name} cannot be written: {problem.strerror}")
