"""What one client is told: head, body, comments, failures, in the form that is still possible."""

from __future__ import annotations

from capyctl.dataplane.client import Client
from capyctl.dataplane.failures import Failure
from capyctl.dataplane.framing import as_chunk
from capyctl.dataplane.heads import AnswerHead, RequestHead, answer_head

KEEP_ALIVE_COMMENT = b": keep-alive\n\n"
_STREAM_HEAD = b"Content-Type: text/event-stream; charset=utf-8\r\nCache-Control: no-cache\r\n"
_EVENT_ENDS = (b"\n\n", b"\r\n\r\n")


class Answer:
    """One answer, from nothing sent to all sent.

    Attributes:
        status: sent to the client; 0 before.
        chunked: the body is sent in chunks; false before the head, and for old clients.
        is_stream: the body is an event stream.
        closes: the connection ends with this answer.
        broken: it was broken off after the head; the client must not take it for complete.
    """

    __slots__ = (
        "_client",
        "_last",
        "_no_body",
        "_old_version",
        "broken",
        "chunked",
        "closes",
        "identity",
        "is_sized",
        "is_stream",
        "sent_bytes",
        "status",
    )

    def __init__(self, client: Client, head: RequestHead | None, identity: bytes) -> None:
        self._client = client
        self._old_version = head is None or head.old_version
        self._no_body = head is not None and head.method == b"HEAD"
        self._last = b""
        self.identity = identity
        self.status = 0
        self.chunked = False
        self.is_stream = False
        self.is_sized = False
        self.closes = head is None or not head.keep_alive
        self.broken = False
        self.sent_bytes = 0

    def whole(self, status: int, lines: bytes, body: bytes) -> None:
        """Head and body at once."""
        self.status = status
        self.is_sized = True
        self.sent_bytes = len(body)
        lines += b"Content-Length: %d\r\n" % len(body)
        head = answer_head(status, lines, self.identity, closes=self.closes)
        self._client.push(head if self._no_body else head + body)

    def comment(self) -> None:
        """A keep-alive comment; the first one fixes the status as 200 and the body as a stream."""
        if self._client.is_blocked:
            return
        data = b""
        if not self.status:
            self.status = 200
            self.is_stream = True
            data = self._open(_STREAM_HEAD)
        framed = as_chunk(KEEP_ALIVE_COMMENT) if self.chunked else KEEP_ALIVE_COMMENT
        self.sent_bytes += len(framed)
        self._last = KEEP_ALIVE_COMMENT
        self._client.push(data + framed)

    def open_for(self, engine: AnswerHead, length: int | None, more_lines: bytes = b"") -> bytes:
        """The head of an answer that an engine's body follows; push it with the first bytes."""
        self.status = engine.status
        self.is_stream = engine.is_event_stream
        lines = engine.passed_lines + more_lines
        if length is not None and not engine.is_chunked:
            self.is_sized = True
            lines = b"%bContent-Length: %d\r\n" % (lines, length)
            return answer_head(self.status, lines, self.identity, closes=self.closes)
        if engine.status in (204, 304):
            self.is_sized = True
            return answer_head(self.status, lines, self.identity, closes=self.closes)
        return self._open(lines)

    def take_back_head(self) -> None:
        """What `open_for` returned was not pushed after all."""
        self.status = 0
        self.chunked = self.is_stream = self.is_sized = False

    def pass_on(self, data: bytes) -> bool:
        """Bytes of the body, framed already. False when the client does not take them all now."""
        self.sent_bytes += len(data)
        self._last = data
        return self._client.push(data)

    def fail(self, failure: Failure) -> None:
        """Say so: as an answer of its own, or as the last thing in the one that is under way."""
        if self._client.gone is not None:
            return
        if not self.status:
            if failure.code == "shutting_down":
                self.closes = True
            self.whole(failure.status, failure.headers, failure.body)
            return
        self.break_off()
        if self.is_stream and not self.is_sized:
            event = failure.event if self._at_event_end() else b"\n\n" + failure.event
            self._client.push(as_chunk(event) if self.chunked else event)

    def break_off(self) -> None:
        """Let it end where it is, so that nobody takes it for complete."""
        self.broken = True
        self.closes = True

    @property
    def needs_reset(self) -> bool:
        """Whether the end of the connection alone would look like the body's end."""
        return self.broken and not self.chunked and not self.is_sized and not self.is_stream

    def _open(self, lines: bytes) -> bytes:
        if self._old_version:
            self.closes = True
        else:
            self.chunked = True
            lines += b"Transfer-Encoding: chunked\r\n"
        return answer_head(self.status, lines, self.identity, closes=self.closes)

    def _at_event_end(self) -> bool:
        last = self._last
        if not last:
            return True
        if self.chunked and last.endswith(b"\r\n"):
            last = last[:-2]
        return last.endswith(_EVENT_ENDS)
