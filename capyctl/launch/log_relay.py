"""A program that takes an engine's output from stdin until it ends, and keeps its log.

It runs as ``python -I -S log_relay.py <log> <leader>`` in a session of its own, so that it
outlives the daemon, with descriptor 3 to be told its secrets and bounds as JSON. Reading
never waits for writing: what the disk cannot take is dropped, counted and noted.
"""

from __future__ import annotations

import collections
import contextlib
import errno
import fcntl
import json
import os
import signal
import sys
import threading
import time
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING or __package__:
    from capyctl.launch.redaction import LineScrubber, Redactor
else:  # run as a file, without any package around it
    sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
    from redaction import LineScrubber, Redactor

CONTROL = 3
EXIT_NOT_TOLD = 125
READ_BYTES = 256 * 1024
PIPE_BYTES = 1024 * 1024
PIECE_BYTES = 128
"""What a piece costs beside its own bytes, so that tiny pieces are bounded as well."""
BACKLOG_BYTES_MAX = 16 * 1024 * 1024
RETRY_S = 1.0
FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


class RotatingFile:
    """Appends whole lines to a file of bounded size; drops and counts what cannot be written."""

    def __init__(self, path: str, *, bytes_max: int, keep_count: int) -> None:
        self.path = path
        self._bytes_max = bytes_max
        self._keep_count = keep_count
        self._file = -1
        self._size_bytes = 0
        self._dropped_bytes = 0
        self._reason = ""
        self._retry_at_s = 0.0

    def open(self) -> None:
        """Open or create the file. Raises OSError."""
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW
        self._file = os.open(self.path, flags, 0o600)
        self._size_bytes = os.fstat(self._file).st_size

    def write(self, lines: bytes) -> None:
        """Append whole lines. Never raises; after an error it tries again a second later."""
        if self._dropped_bytes:
            if time.monotonic() < self._retry_at_s:
                self._dropped_bytes += len(lines)
                return
            lines = self._note() + lines
        rest = memoryview(lines)
        try:
            while rest:
                rest = rest[self._write_piece(rest) :]
        except OSError as error:
            self._reason = error.strerror or str(error)
            self._retry_at_s = time.monotonic() + RETRY_S
            self._dropped_bytes += len(rest)
        else:
            self._dropped_bytes = 0

    def dropped(self, count: int, reason: str) -> None:
        """Bytes that never came here were lost; the next write says so."""
        self._dropped_bytes += count
        self._reason = reason

    def close(self) -> None:
        """One last attempt to note what was dropped."""
        self._retry_at_s = 0.0
        if self._dropped_bytes:
            self.write(b"")
        if self._file >= 0:
            os.close(self._file)
            self._file = -1

    def _note(self) -> bytes:
        what = f"[capyctl: {self._dropped_bytes} bytes of output were not logged: {self._reason}]\n"
        return what.encode()

    def _write_piece(self, lines: memoryview) -> int:
        """Write as many whole lines as the file still takes; how many bytes that was."""
        if self._file < 0:
            self.open()
        room = self._bytes_max - self._size_bytes
        piece = lines
        if len(lines) > room:
            fitting = bytes(lines[: max(0, room)]).rfind(b"\n") + 1
            if not fitting and self._size_bytes:
                self._rotate()
                return 0
            piece = lines[: fitting or bytes(lines).find(b"\n") + 1 or len(lines)]
        return self._append(piece)

    def _append(self, piece: memoryview) -> int:
        """Write the lines; fewer if the disk takes no more, and OSError if it takes none."""
        written = 0
        try:
            while written < len(piece):
                written += os.write(self._file, piece[written:])
        except OSError:
            kept = bytes(piece[:written]).rfind(b"\n") + 1
            if written > kept:
                with contextlib.suppress(OSError):  # half a line is worse than none
                    os.ftruncate(self._file, self._size_bytes + kept)
            written = kept
            if not kept:
                raise
        self._size_bytes += written
        return written

    def _rotate(self) -> None:
        os.close(self._file)
        self._file = -1
        for number in range(self._keep_count, 0, -1):
            older = f"{self.path}.{number}"
            newer = self.path if number == 1 else f"{self.path}.{number - 1}"
            with contextlib.suppress(FileNotFoundError):
                os.replace(newer, older)
        self.open()


class Backlog:
    """Output between the reader, which never waits, and the writer, which may."""

    def __init__(self, bytes_max: int = BACKLOG_BYTES_MAX) -> None:
        self._bytes_max = bytes_max
        self._pieces: collections.deque[bytes | int] = collections.deque()
        self._bytes = 0
        self._changed = threading.Condition()
        self._ended = False

    def put(self, data: bytes) -> None:
        """Take the piece, or count it as lost while there is no room."""
        with self._changed:
            last = self._pieces[-1] if self._pieces else None
            if self._bytes + len(data) + PIECE_BYTES <= self._bytes_max:
                self._pieces.append(data)
                self._bytes += len(data) + PIECE_BYTES
            elif isinstance(last, int):
                self._pieces[-1] = last + len(data)
            else:
                self._pieces.append(len(data))
            self._changed.notify()

    def end(self) -> None:
        with self._changed:
            self._ended = True
            self._changed.notify()

    def take(self) -> bytes | int | None:
        """The next piece; a number is bytes lost at that place; None at the end. Waits."""
        with self._changed:
            while not self._pieces and not self._ended:
                self._changed.wait()
            if not self._pieces:
                return None
            piece = self._pieces.popleft()
            if isinstance(piece, bytes):
                self._bytes -= len(piece) + PIECE_BYTES
            return piece


def write_out(backlog: Backlog, log: RotatingFile, scrubber: LineScrubber | None) -> None:
    """Move everything to the log until the backlog ends. ``scrubber`` None: as it is."""
    while (piece := backlog.take()) is not None:
        if isinstance(piece, int):
            held = 0 if scrubber is None else scrubber.gap()
            log.dropped(piece + held, "the log could not keep up")
            continue
        lines = piece if scrubber is None else scrubber.feed(piece)
        if lines:
            log.write(lines)
    last = b"" if scrubber is None else scrubber.close()
    if last:
        log.write(last)
    log.close()


def read_all(descriptor: int, backlog: Backlog) -> None:
    """Empty the pipe as fast as it fills, to its end."""
    with contextlib.suppress(OSError):  # the number of big pipes per user is bounded
        fcntl.fcntl(descriptor, fcntl.F_SETPIPE_SZ, PIPE_BYTES)
    try:
        while data := os.read(descriptor, READ_BYTES):
            backlog.put(data)
    finally:
        backlog.end()


def main() -> None:
    # Ends with its input and by nothing else: without it the engine's writes would fail.
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    os.set_inheritable(CONTROL, False)
    told = _read_told()
    log = RotatingFile(sys.argv[1], bytes_max=told["bytes_max"], keep_count=told["keep_count"])
    try:
        log.open()
    except OSError as error:
        if error.errno not in FULL:
            _answer(f"{sys.argv[1]}: {error.strerror}".encode())
            sys.exit(EXIT_NOT_TOLD)
    scrubber = None if told["raw"] else LineScrubber(Redactor(told["secrets"]))
    backlog = Backlog()
    writer = threading.Thread(target=write_out, args=(backlog, log, scrubber))
    writer.start()
    _answer(b"r")
    os.close(CONTROL)
    read_all(0, backlog)
    writer.join()


def _read_told() -> dict[str, Any]:
    data = b""
    try:
        while more := os.read(CONTROL, READ_BYTES):
            data += more
        told: dict[str, Any] = json.loads(data)
    except (OSError, ValueError):
        sys.exit(EXIT_NOT_TOLD)
    return told


def _answer(word: bytes) -> None:
    try:
        os.write(CONTROL, word)
    except OSError:  # the daemon is gone; the output then ends soon as well
        return


if __name__ == "__main__":
    main()
