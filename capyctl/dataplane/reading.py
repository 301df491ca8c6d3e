"""One client connection's requests, out of bytes that arrive anyhow. Pure; pipelining included."""

from __future__ import annotations

from capyctl.dataplane.bodies import Body
from capyctl.dataplane.framing import BrokenFraming, ChunkReader
from capyctl.dataplane.head_cache import HeadCache
from capyctl.dataplane.heads import HEAD_END, BadHead, RequestHead

_STARTS = frozenset(b"ABCDEFGHIJKLMNOPQRSTUVWXYZ")
_LINE_END = b"\r\n"
"""Blank lines before a request are passed over."""


class RequestReader:
    """Feed it, look at `head` and `complete`, take the request, say `next`.

    Bytes of later requests are kept; feed nothing more while a request is complete, but `keep`
    what arrives.

    Attributes:
        head: of the request being read; None before it is complete.
        complete: the request is here, `body` included.
        stopped: its body is larger than allowed; no more of it is taken.
        begun: anything of a request has arrived.
    """

    __slots__ = (
        "_body_max",
        "_chunks",
        "_filled",
        "_head_max",
        "_heads",
        "_parts",
        "_rest",
        "_view",
        "body",
        "body_count",
        "complete",
        "head",
        "stopped",
    )

    def __init__(self, heads: HeadCache, *, head_bytes_max: int, body_bytes_max: int) -> None:
        self._heads = heads
        self._head_max = head_bytes_max
        self._body_max = body_bytes_max
        self._rest = b""
        self._clear()

    def _clear(self) -> None:
        self.head: RequestHead | None = None
        self.body: Body = b""
        self.body_count = 0
        """Bytes of the body that have arrived."""
        self.complete = False
        self.stopped = False
        self._view: memoryview | None = None
        self._filled = 0
        self._chunks: ChunkReader | None = None
        self._parts: list[bytes] = []

    @property
    def begun(self) -> bool:
        return self.head is not None or len(self._rest) > 0

    @property
    def kept_count(self) -> int:
        """Bytes kept for later requests."""
        return len(self._rest)

    def feed(self, data: bytes) -> None:
        """Take what arrived.

        Raises:
            BadHead: this connection speaks no HTTP that can be answered any further.
        """
        if self.head is None:
            self._feed_head(data)
        elif self._chunks is not None:
            self._feed_chunks(data)
        else:
            assert self._view is not None, "fed a request that is complete"
            count = min(len(data), len(self._view) - self._filled)
            self._view[self._filled : self._filled + count] = data[:count]
            self._rest = data[count:]
            self.filled(count)

    def space(self) -> memoryview | None:
        """Where the rest of a body of known length may be received into, else None."""
        return None if self._view is None else self._view[self._filled :]

    def filled(self, count: int) -> None:
        """So many bytes were received into `space`."""
        self._filled += count
        self.body_count = self._filled
        if self._view is not None and self._filled == len(self._view):
            self._view = None
            self.complete = True

    def keep(self, data: bytes) -> None:
        """Bytes that arrived while a request is being answered."""
        self._rest += data

    def next(self) -> None:
        """Forget the request, and read the next one out of what was kept.

        Raises:
            BadHead: as `feed`.
        """
        self._clear()
        if self._rest:
            rest, self._rest = self._rest, b""
            self._feed_head(rest)

    def _feed_head(self, data: bytes) -> None:
        known_count = len(self._rest)
        buffer = self._rest + data if known_count else data.lstrip(_LINE_END)
        end = buffer.find(HEAD_END, max(0, known_count - 3))
        if end < 0:
            self._check_beginning(buffer)
            self._rest = buffer
            return
        if end > self._head_max:
            raise BadHead(f"the request's head is larger than {self._head_max} bytes", 431)
        self._rest = b""
        body_start = end + len(HEAD_END)
        head, length = self._heads.request(buffer[:body_start])
        self.head = head
        body = buffer[body_start:] if body_start < len(buffer) else b""
        if head.is_chunked:
            self._chunks = ChunkReader()
            if body:
                self._feed_chunks(body)
        else:
            self._begin_sized(length, body)

    def _check_beginning(self, buffer: bytes) -> None:
        if len(buffer) > self._head_max:
            raise BadHead(f"the request's head is larger than {self._head_max} bytes", 431)
        if buffer and buffer[0] not in _STARTS:
            raise BadHead("this is no HTTP request (is the client using TLS?)")
        if b"\n\n" in buffer:
            raise BadHead("the request's lines must end with CR LF")

    def _begin_sized(self, length: int, data: bytes) -> None:
        if length > self._body_max:
            self.stopped = True
            return
        count = min(len(data), length)
        if count == length:
            self.body = data if count == len(data) else data[:count]
            self.body_count = count
            self._rest = data[count:]
            self.complete = True
            return
        self.body = bytearray(length)
        self._view = memoryview(self.body)
        self._view[:count] = data
        self.filled(count)

    def _feed_chunks(self, data: bytes) -> None:
        chunks = self._chunks
        assert chunks is not None
        try:
            part = chunks.feed(data)
        except BrokenFraming as error:
            raise BadHead(f"the request's body is malformed: {error}") from None
        self.body_count += len(part)
        if self.body_count > self._body_max:
            self.stopped = True
            self._parts.clear()
            return
        self._parts.append(part)
        if chunks.ended:
            self.body = b"".join(self._parts)
            self._parts.clear()
            self._rest = chunks.extra
            self.complete = True
