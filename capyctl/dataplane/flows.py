"""How an answer's body passes from the engine's framing to the client's. Pure: bytes in, out."""

from __future__ import annotations

from typing import Protocol

from capyctl.dataplane.framing import LAST_CHUNK, ChunkFollower, ChunkReader, as_chunk
from capyctl.dataplane.heads import AnswerHead


class Flow(Protocol):
    """A body on its way.

    Attributes:
        ended: the engine's body is complete and all of it was returned.
        extra: bytes after its end, which belong to nothing.
    """

    @property
    def ended(self) -> bool: ...
    @property
    def extra(self) -> bytes: ...

    def feed(self, data: bytes) -> bytes:
        """What goes to the client for these bytes of the engine.

        Raises:
            BrokenFraming: the engine's body is malformed.
        """


class SizedReader:
    """A body of known length."""

    __slots__ = ("_left", "ended", "extra")

    def __init__(self, length: int) -> None:
        self._left = length
        self.ended = length == 0
        self.extra = b""

    def feed(self, data: bytes) -> bytes:
        left = self._left
        if len(data) < left:
            self._left = left - len(data)
            return data
        self._left = 0
        self.ended = True
        if len(data) == left:
            return data
        self.extra += data[left:]
        return data[:left]


class ClosingReader:
    """A body that ends with the engine's connection."""

    __slots__ = ("ended", "extra")

    def __init__(self) -> None:
        self.ended = False
        self.extra = b""

    def feed(self, data: bytes) -> bytes:
        return data

    def at_eof(self) -> bytes:
        self.ended = True
        return b""


class Wrapped:
    """The payload in chunks of our own, whatever framing it came in."""

    __slots__ = ("_reader",)

    def __init__(self, reader: Flow) -> None:
        self._reader = reader

    @property
    def ended(self) -> bool:
        return self._reader.ended

    @property
    def extra(self) -> bytes:
        return self._reader.extra

    def feed(self, data: bytes) -> bytes:
        payload = self._reader.feed(data)
        wrapped = as_chunk(payload) if payload else b""
        return wrapped + LAST_CHUNK if self._reader.ended else wrapped

    def at_eof(self) -> bytes:
        reader = self._reader
        assert isinstance(reader, ClosingReader), "the end of the connection ends no other body"
        reader.at_eof()
        return LAST_CHUNK


def payload_reader(head: AnswerHead, length: int | None) -> Flow:
    """Takes the payload out of the engine's framing."""
    if head.is_chunked:
        return ChunkReader()
    if head.status in (204, 304):
        return SizedReader(0)
    return ClosingReader() if length is None else SizedReader(length)


def client_flow(head: AnswerHead, length: int | None, *, chunked: bool) -> Flow:
    """From the engine's framing to chunks, or (``chunked`` false) to plain bytes."""
    if chunked and head.is_chunked:
        return ChunkFollower()
    reader = payload_reader(head, length)
    return Wrapped(reader) if chunked else reader
