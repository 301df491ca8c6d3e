"""One answer from one engine to one client, by callbacks: no task is switched for a chunk.

The relay reads the engine only while the client takes what it sends, and ends in one of the ways
of `End`; its bell is rung then.
"""

from __future__ import annotations

import enum
import errno
import os
import re
from collections.abc import Callable

from capyctl.dataplane.answer import Answer
from capyctl.dataplane.bodies import Body
from capyctl.dataplane.client import Client
from capyctl.dataplane.engine_link import EngineLink
from capyctl.dataplane.figures import Figures, FiguresFlow
from capyctl.dataplane.flows import ClosingReader, Flow, Wrapped, client_flow, payload_reader
from capyctl.dataplane.framing import BrokenFraming, as_chunk
from capyctl.dataplane.head_cache import HeadCache
from capyctl.dataplane.heads import HEAD_END, AnswerHead
from capyctl.dataplane.poller import Poller
from capyctl.dataplane.sse import FirstOutput, is_progress

RECV_BYTES = 64 * 1024
READS_MAX = 8
"""Full reads before other sockets get their turn."""
ENGINE_HEAD_MAX = 64 * 1024
REFUSAL_BYTES_MAX = 1024 * 1024
"""Of an engine's error body."""
FIGURES_BYTES_MAX = 16 * 1024 * 1024
"""Of a JSON answer that figures are put into; larger ones pass without."""

_LAST_EVENT = re.compile(rb"\ndata: ?\[DONE\]")
"""At the beginning of a line, so that no generated text can be taken for it."""


class End(enum.Enum):
    COMPLETE = "complete"
    REFUSED = "refused"
    """A status that is no success; the body is in `collected`."""
    BROKE = "broke"
    """The engine's connection or its HTTP failed; `why` says how."""
    STALE = "stale"
    """The connection turned out closed, and the engine has read nothing of the request."""
    LOST = "lost"
    """The client left."""
    LATE = "late"
    """No output in time."""
    PAUSED = "paused"
    """Too long a pause after the first output."""
    CUT = "cut"


class Relay:
    """The way of one answer.

    Attributes:
        head: the engine's, once it is there.
        end: how it ended; None while it goes on.
        first_output_s, progress_s: on the run's clock.
        last_bytes: the end of what was passed on, for a look at usage.
    """

    __slots__ = (
        "_answer",
        "_client",
        "_figures",
        "_first",
        "_flow",
        "_head_bytes",
        "_heads",
        "_last_words",
        "_length",
        "_link",
        "_parts",
        "_parts_count",
        "_parts_max",
        "_poller",
        "_previous",
        "collected",
        "end",
        "first_output_s",
        "head",
        "last_bytes",
        "on_end",
        "on_first_output",
        "progress_s",
        "timing_lines",
        "why",
    )

    def __init__(
        self, client: Client, answer: Answer, link: EngineLink, poller: Poller, heads: HeadCache
    ) -> None:
        self._client = client
        self._answer = answer
        self._link = link
        self._poller = poller
        self._heads = heads
        self._length: int | None = None
        self._head_bytes = b""
        self._flow: Flow | None = None
        self._first: FirstOutput | None = None
        self._figures: Figures | None = None
        self._last_words: Callable[[], bytes] | None = None
        self._parts: list[bytes] | None = None
        self._parts_count = 0
        self._parts_max = 0
        self._previous = b""
        self.timing_lines: Callable[[], bytes] | None = None
        self.on_first_output: Callable[[], None] | None = None
        self.on_end: Callable[[], None] | None = None
        """Told of the end instead of the client's bell. Nothing is done here after it."""
        self.head: AnswerHead | None = None
        self.end: End | None = None
        self.why = ""
        self.collected = b""
        self.first_output_s: float | None = None
        self.progress_s = 0.0
        self.last_bytes = b""

    def tell_figures(self, figures: Figures, last_words: Callable[[], bytes]) -> None:
        """Put figures into a JSON answer, or ``last_words`` before a stream's end."""
        self._figures = figures
        self._last_words = last_words

    def start(self, head: bytes, body: Body) -> None:
        """Send the request, and relay what comes."""
        self._link.socket.on_readable = self._read
        self._client.on_drained = self._resume
        self._client.on_lost = self._lost
        self._link.send(head, body)

    def stop(self, end: End, why: str = "") -> None:
        """Nothing is relayed any more. The first end stands."""
        if self.end is not None:
            return
        self.end = end
        self.why = why
        self._link.socket.on_readable = None
        self._client.on_drained = None
        self._client.on_lost = None
        if self.on_end is not None:
            self.on_end()
        else:
            self._client.bell.ring()

    @property
    def engine_is_done(self) -> bool:
        """The engine's answer came whole, whatever became of it.

        A client that has read a stream's last event may leave before the body's end has come:
        nothing is generated any more then.
        """
        if self._flow is None or self._flow.ended:
            return self._flow is not None
        return self._answer.is_stream and _LAST_EVENT.search(self.tail) is not None

    @property
    def link_is_whole(self) -> bool:
        """The connection stands exactly at the end of this answer and can carry another."""
        flow, head = self._flow, self.head
        if flow is None or head is None or not flow.ended or flow.extra:
            return False
        return head.keep_alive and self._link.all_sent

    @property
    def tail(self) -> bytes:
        """The last bytes that were passed on: one or two pieces."""
        return self._previous + self.last_bytes

    def _lost(self) -> None:
        self.stop(End.LOST, self._client.gone or "")

    def _resume(self) -> None:
        self.progress_s = self._poller.now_s
        self._read()

    def _read(self) -> None:
        link = self._link
        recv = link.socket.recv
        try:
            for _ in range(READS_MAX):
                if self.end is not None or self._client.is_blocked:
                    return
                data = recv(RECV_BYTES)
                if not data:
                    self._ended_by_engine()
                    return
                self._take(data)
                if len(data) < RECV_BYTES and not link.socket.hung_up:
                    return
        except BlockingIOError:
            return
        except OSError as error:
            link.error = error.errno or errno.EIO
            self._broke(error.strerror or os.strerror(link.error))
            return
        except BrokenFraming as error:
            self.stop(End.BROKE, f"the engine's answer is malformed: {error}")
            return
        self._poller.call_again(self._read)

    def _take(self, data: bytes) -> None:
        if self.head is None:
            rest = self._take_head(data)
            if rest is None:
                return
            head_bytes, data = self._begin(rest)
            if self.end is not None:
                return
        else:
            head_bytes = b""
        self.progress_s = self._progress(data)
        flow = self._flow
        assert flow is not None, "a head was taken without a way for its body"
        if self._parts is not None:
            self._collect(flow, data)
            return
        try:
            out = flow.feed(data) if data else b""
        except BrokenFraming:
            if head_bytes:
                self._answer.take_back_head()
            raise
        if out or head_bytes:
            self._previous = self.last_bytes
            self.last_bytes = out
            self._answer.pass_on(head_bytes + out if head_bytes else out)
        if flow.ended:
            self.stop(End.COMPLETE)

    def _take_head(self, data: bytes) -> bytes | None:
        """What follows the head, once it is complete. Informational answers are passed over."""
        buffer = self._head_bytes + data
        while True:
            end = buffer.find(HEAD_END)
            if end < 0:
                self._head_bytes = buffer
                if len(buffer) > ENGINE_HEAD_MAX:
                    self.stop(End.BROKE, "the head of the engine's answer is too large")
                return None
            try:
                head, self._length = self._heads.answer(buffer[: end + 4])
            except ValueError as error:
                self.stop(End.BROKE, str(error))
                return None
            buffer = buffer[end + 4 :]
            if head.status >= 200:
                self.head = head
                self._head_bytes = b""
                return buffer
            if head.status == 101:
                self.stop(End.BROKE, "the engine wants to switch protocols")
                return None

    def _begin(self, rest: bytes) -> tuple[bytes, bytes]:
        """Decide how the body passes. Returns our head's bytes, and the engine's first ones."""
        head = self.head
        assert head is not None, "the body began before its head"
        answer = self._answer
        if head.status >= 300:
            self._begin_collecting(head, REFUSAL_BYTES_MAX)
            return b"", rest
        if answer.status:
            if not head.is_event_stream:
                self._begin_collecting(head, REFUSAL_BYTES_MAX)
                self.stop(End.BROKE, "the engine answered a streaming request without a stream")
                return b"", b""
            head_bytes = b""
        elif self._figures is not None and head.is_json:
            self._begin_collecting(head, FIGURES_BYTES_MAX)
            return b"", rest
        else:
            length = self._length
            if self._last_words is not None and head.is_event_stream:
                length = None
            timing = self.timing_lines() if self.timing_lines is not None else b""
            head_bytes = answer.open_for(head, length, timing)
        if head.is_event_stream:
            self._first = FirstOutput()
        self._flow = self._stream_flow(head)
        return head_bytes, rest

    def _stream_flow(self, head: AnswerHead) -> Flow:
        chunked = self._answer.chunked
        if self._figures is None or self._last_words is None or not head.is_event_stream:
            return client_flow(head, self._length, chunked=chunked)
        return FiguresFlow(
            payload_reader(head, self._length),
            self._figures,
            lambda: self._poller.now_s,
            self._last_words,
            chunked=chunked,
        )

    def _begin_collecting(self, head: AnswerHead, bytes_max: int) -> None:
        self._parts = []
        self._parts_max = bytes_max
        self._flow = payload_reader(head, self._length)

    def _collect(self, flow: Flow, data: bytes) -> None:
        parts, head = self._parts, self.head
        assert parts is not None, "nothing is collected"
        assert head is not None, "nothing is collected"
        part = flow.feed(data)
        parts.append(part)
        self._parts_count += len(part)
        if flow.ended:
            self._collected()
        elif self._parts_count > self._parts_max:
            if head.status >= 300:
                self._collected()
            else:
                self._give_up_figures(head, flow)

    def _give_up_figures(self, head: AnswerHead, flow: Flow) -> None:
        """Too large to put figures into: pass on what is here, and the rest as it comes."""
        assert self._parts is not None, "nothing is collected"
        self._figures = None
        held, self._parts = b"".join(self._parts), None
        head_bytes = self._answer.open_for(head, self._length)
        if self._answer.chunked:
            held = as_chunk(held)
            self._flow = Wrapped(flow)
        self._answer.pass_on(head_bytes + held)

    def _collected(self) -> None:
        head = self.head
        assert self._parts is not None, "nothing is collected"
        assert head is not None, "nothing is collected"
        body = b"".join(self._parts)
        if head.status >= 300:
            self.collected = body
            self.stop(End.REFUSED)
            return
        if self._figures is not None:
            body = self._figures.into_answer(body)
        timing = self.timing_lines() if self.timing_lines is not None else b""
        self.last_bytes = body
        self._answer.whole(head.status, head.passed_lines + timing, body)
        self.stop(End.COMPLETE)

    def _progress(self, data: bytes) -> float:
        """When the engine last got on; notes the first output."""
        now_s = self._poller.now_s
        if self.first_output_s is None:
            if self._first is None:
                if not data:
                    return now_s
            elif not self._first.feed(data):
                return now_s if is_progress(data) else self.progress_s
            self.first_output_s = now_s
            if self.on_first_output is not None:
                self.on_first_output()
            return now_s
        if self._first is not None and not is_progress(data):
            return self.progress_s
        return now_s

    def _ended_by_engine(self) -> None:
        flow, head = self._flow, self.head
        if flow is None or head is None or not head.ends_with_connection:
            self._broke("it closed the connection")
            return
        if self._parts is not None:
            self._collected()
            return
        assert isinstance(flow, ClosingReader | Wrapped | FiguresFlow), "no end of this body"
        last = flow.at_eof()
        if last:
            self._answer.pass_on(last)
        self.stop(End.COMPLETE)

    def _broke(self, why: str) -> None:
        untouched = self.head is None and not self._head_bytes
        if untouched and self._link.is_unread():
            self.stop(End.STALE)
            return
        when = "before its answer" if self.head is None else "in the middle of its answer"
        self.stop(End.BROKE, f"the engine failed {when}: {why}")
