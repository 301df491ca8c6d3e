"""Chunked framing, read without loss: bodies taken out of it, or followed as they pass.

Pure: bytes in, bytes out.
"""

from __future__ import annotations

SIZE_LINE_MAX = 1024
"""Bytes of a chunk's size line, extensions included."""
TRAILER_MAX = 16 * 1024
_HEX = frozenset(b"0123456789abcdefABCDEF")
_SIZE_DIGITS_MAX = 15


class BrokenFraming(ValueError):
    """The bytes are no chunked body."""


def chunk_size(line: bytes) -> int:
    """The size in a chunk's first line, which may have extensions.

    Raises:
        BrokenFraming: no hexadecimal number, or one of more than 15 digits.
    """
    digits = line.partition(b";")[0].rstrip(b" \t")
    if not digits or len(digits) > _SIZE_DIGITS_MAX or not _HEX.issuperset(digits):
        raise BrokenFraming("a chunk's size is not a hexadecimal number")
    return int(digits, 16)


def as_chunk(payload: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(payload), payload)


LAST_CHUNK = b"0\r\n\r\n"


class ChunkFollower:
    """Passes chunked bytes on as they are, and always stops at the end of a chunk.

    So that at any moment a chunk of our own can follow what was passed on. A chunk that
    arrives in pieces is passed on as several chunks; a size line in pieces is held back.
    """

    __slots__ = ("_held", "_left", "ended", "extra")

    def __init__(self) -> None:
        self._held = b""
        self._left = 0
        """Bytes to come of a chunk whose first part was passed on, its line end included."""
        self.ended = False
        """The last chunk and its trailer have been passed on."""
        self.extra = b""
        """What came after the end: not part of this body."""

    def feed(self, data: bytes) -> bytes:
        """What can be passed on now.

        Raises:
            BrokenFraming: what came before was passed on, nothing of this was.
        """
        if self._held:
            data = self._held + data
            self._held = b""
        if self._left:
            return self._resume(data)
        position, length = 0, len(data)
        while position < length:
            line_end = data.find(b"\r\n", position, position + SIZE_LINE_MAX)
            if line_end < 0:
                if length - position >= SIZE_LINE_MAX:
                    raise BrokenFraming("a chunk's size line is too long")
                return self._hold(data, position)
            size = chunk_size(data[position:line_end])
            if size == 0:
                return self._end(data, position, line_end)
            after = line_end + 4 + size
            if after > length:
                return self._split(data, position, line_end + 2, size)
            if data[after - 2 : after] != b"\r\n":
                raise BrokenFraming("a chunk is longer than its size")
            position = after
        return data

    def _hold(self, data: bytes, position: int) -> bytes:
        self._held = data[position:]
        return data[:position]

    def _end(self, data: bytes, position: int, line_end: int) -> bytes:
        blank = data.find(b"\r\n\r\n", line_end)
        if blank < 0:
            if len(data) - position > TRAILER_MAX:
                raise BrokenFraming("the trailer is too long")
            return self._hold(data, position)
        self.ended = True
        self.extra = data[blank + 4 :]
        return data[: blank + 4]

    def _split(self, data: bytes, position: int, start: int, size: int) -> bytes:
        payload = data[start : start + size]
        if not payload:
            return self._hold(data, position)
        self._left = size + 2 - len(payload)
        return data[:position] + as_chunk(payload) + self._resume(data[start + len(payload) :])

    def _resume(self, data: bytes) -> bytes:
        passed = b""
        if self._left > 2:
            payload = data[: self._left - 2]
            if payload:
                passed = as_chunk(payload)
                self._left -= len(payload)
                data = data[len(payload) :]
        if self._left <= 2 and data:
            line_end = data[: self._left]
            if not b"\r\n"[2 - self._left :].startswith(line_end):
                raise BrokenFraming("a chunk is longer than its size")
            self._left -= len(line_end)
            data = data[len(line_end) :]
            if data:
                passed += self.feed(data)
        return passed


class ChunkReader:
    """Takes the payload out of a chunked body."""

    __slots__ = ("_held", "_left", "ended", "extra")

    def __init__(self) -> None:
        self._held = b""
        self._left = 0
        self.ended = False
        self.extra = b""
        """What came after the end: not part of this body."""

    def feed(self, data: bytes) -> bytes:
        """The payload that these bytes complete.

        Raises:
            BrokenFraming: it is no chunked body.
        """
        if self._held:
            data = self._held + data
            self._held = b""
        parts: list[bytes] = []
        position, length = 0, len(data)
        while position < length:
            if self._left > 2:
                part = data[position : position + self._left - 2]
                parts.append(part)
                self._left -= len(part)
                position += len(part)
            elif self._left:
                line_end = data[position : position + self._left]
                if not b"\r\n"[2 - self._left :].startswith(line_end):
                    raise BrokenFraming("a chunk is longer than its size")
                self._left -= len(line_end)
                position += len(line_end)
            else:
                after = self._next_chunk(data, position)
                if after < 0:
                    self._held = data[position:]
                    break
                position = after
                if self.ended:
                    self.extra = data[position:]
                    break
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def _next_chunk(self, data: bytes, position: int) -> int:
        """Where the payload of the chunk that starts here begins; -1 when more must come."""
        line_end = data.find(b"\r\n", position, position + SIZE_LINE_MAX)
        if line_end < 0:
            if len(data) - position >= SIZE_LINE_MAX:
                raise BrokenFraming("a chunk's size line is too long")
            return -1
        size = chunk_size(data[position:line_end])
        if size:
            self._left = size + 2
            return line_end + 2
        blank = data.find(b"\r\n\r\n", line_end)
        if blank < 0:
            if len(data) - position > TRAILER_MAX:
                raise BrokenFraming("the trailer is too long")
            return -1
        self.ended = True
        return blank + 4
