"""A small Hub and file server on loopback, with faults."""

from __future__ import annotations

import contextlib
import hashlib
import json
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import unquote, urlsplit

import attrs

COMMIT = "0123456789abcdef0123456789abcdef01234567"
LFS_BYTES_MIN = 1000
"""Smaller files have only a git hash, as on the Hub."""


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def git_sha1(data: bytes) -> str:
    return hashlib.sha1(b"blob %d\0" % len(data) + data, usedforsecurity=False).hexdigest()


@attrs.define(kw_only=True)
class Fault:
    """What goes wrong with requests whose path ends with ``path``; ``times`` times."""

    path: str
    times: int = 1
    status: int | None = None
    """Answer this and nothing else."""
    error_code: str | None = None
    """``X-Error-Code`` of the Hub, with ``status``."""
    cut_after: int | None = None
    """Close the connection after so many bytes of the answer's body."""
    body: bytes | None = None
    """Send this instead."""
    location: str | None = None
    """Redirect there."""
    ignores_range: bool = False
    encoding: str | None = None
    chunk_pause_s: float = 0.0
    """Between chunks of 64 KiB."""
    hold: threading.Event | None = None
    """Send the first half, then wait for it."""


@attrs.define
class Asked:
    """One request as it came in."""

    method: str
    path: str
    headers: dict[str, str]


@attrs.define(eq=False)
class FakeHub:
    """Repositories by name and plain files by path; stops at the end of `serving`."""

    repositories: dict[str, dict[str, bytes]] = attrs.field(factory=dict)
    files: dict[str, bytes] = attrs.field(factory=dict)
    token: str | None = None
    """Wanted of whoever asks for a repository."""
    faults: list[Fault] = attrs.field(factory=list)
    asked: list[Asked] = attrs.field(factory=list)
    port: int = 0
    without_lengths: bool = False
    _lock: threading.Lock = attrs.field(factory=threading.Lock)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def foreign_url(self) -> str:
        """The same server under another host's name."""
        return f"http://localhost:{self.port}"

    def fail(self, path: str, **fault: Any) -> Fault:
        made = Fault(path=path, **fault)
        self.faults.append(made)
        return made

    def fault(self, path: str) -> Fault | None:
        with self._lock:
            for fault in self.faults:
                if fault.times > 0 and path.endswith(fault.path):
                    fault.times -= 1
                    return fault
        return None

    def paths(self, method: str = "GET") -> list[str]:
        return [one.path for one in self.asked if one.method == method]


@contextlib.contextmanager
def serving(hub: FakeHub) -> Iterator[FakeHub]:
    """Serve it on a free port of loopback for the length of the block."""

    class Handler(_Handler):
        fake = hub

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    server.block_on_close = False
    hub.port = server.server_address[1]
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield hub
    finally:
        for fault in hub.faults:
            if fault.hold is not None:
                fault.hold.set()
        server.shutdown()
        thread.join()
        server.server_close()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    fake: FakeHub

    def log_message(self, format: str, *args: Any) -> None:
        pass

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        path = unquote(urlsplit(self.path).path)
        self.fake.asked.append(Asked(self.command, self.path, dict(self.headers.items())))
        fault = self.fake.fault(path) or Fault(path="", times=0)
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            self._answer(path, fault)

    def _answer(self, path: str, fault: Fault) -> None:
        if fault.status is not None:
            self._status(fault.status, fault.error_code)
        elif fault.location is not None:
            self.send_response(302)
            self.send_header("Location", fault.location)
            self.send_header("Content-Length", "0")
            self.end_headers()
        elif path.startswith("/api/models/"):
            self._info(path.removeprefix("/api/models/"))
        elif "/resolve/" in path:
            self._resolve(path, fault)
        elif path in self.fake.files:
            self._bytes(self.fake.files[path], fault)
        else:
            self._status(404)

    def _status(self, status: int, code: str | None = None) -> None:
        self.send_response(status)
        if code is not None:
            self.send_header("X-Error-Code", code)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def _may(self) -> bool:
        wanted = self.fake.token
        if wanted is None or self.headers.get("Authorization") == f"Bearer {wanted}":
            return True
        self._status(401, "RepoNotFound")
        return False

    def _info(self, rest: str) -> None:
        name, _, revision = rest.partition("/revision/")
        files = self.fake.repositories.get(name)
        if not self._may():
            return
        if files is None:
            self._status(404, "RepoNotFound")
        elif revision not in ("main", COMMIT, ""):
            self._status(404, "RevisionNotFound")
        else:
            body = {"id": name, "sha": COMMIT, "siblings": [_sibling(*f) for f in files.items()]}
            self._bytes(json.dumps(body).encode(), Fault(path=""))

    def _resolve(self, path: str, fault: Fault) -> None:
        name, _, rest = path.removeprefix("/").partition("/resolve/")
        commit, _, file = rest.partition("/")
        data = self.fake.repositories.get(name, {}).get(file)
        if not self._may():
            return
        if data is None or commit != COMMIT:
            self._status(404, "EntryNotFound")
        else:
            self._bytes(data, fault)

    def _bytes(self, data: bytes, fault: Fault) -> None:
        data = data if fault.body is None else fault.body
        begin = 0
        asked = self.headers.get("Range")
        if asked and not fault.ignores_range:
            begin = int(asked.removeprefix("bytes=").partition("-")[0])
            if begin >= len(data) > 0:
                self._status(416)
                return
            self.send_response(206)
            self.send_header("Content-Range", f"bytes {begin}-{len(data) - 1}/{len(data)}")
        else:
            self.send_response(200)
        self.send_header("X-Repo-Commit", COMMIT)
        self.send_header("ETag", f'"{sha256(data)}"')
        if fault.encoding is not None:
            self.send_header("Content-Encoding", fault.encoding)
        if self.fake.without_lengths:
            self.send_header("Connection", "close")
            self.close_connection = True
        else:
            self.send_header("Content-Length", str(len(data) - begin))
        self.end_headers()
        if self.command != "HEAD":
            self._body(data[begin:], fault)

    def _body(self, rest: bytes, fault: Fault) -> None:
        if fault.cut_after is not None:
            self.wfile.write(rest[: fault.cut_after])
            self.wfile.flush()
            self.close_connection = True
            return
        if fault.hold is not None:
            half = len(rest) // 2
            self.wfile.write(rest[:half])
            self.wfile.flush()
            fault.hold.wait(30)
            rest = rest[half:]
        for at in range(0, len(rest), 65536):
            self.wfile.write(rest[at : at + 65536])
            self.wfile.flush()
            if fault.chunk_pause_s:
                time.sleep(fault.chunk_pause_s)


def _sibling(name: str, data: bytes) -> dict[str, Any]:
    found: dict[str, Any] = {"rfilename": name, "size": len(data), "blobId": git_sha1(data)}
    if len(data) >= LFS_BYTES_MIN:
        found["lfs"] = {"sha256": sha256(data), "size": len(data), "pointerSize": 134}
    return found
