"""Figures of one request, from what its engine says and what was seen on the way. Pure.

They go into an answer only where that was asked for.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from capyctl.dataplane.flows import ClosingReader, Flow
from capyctl.dataplane.framing import LAST_CHUNK, as_chunk
from capyctl.dataplane.sse import EventSplitter, event_data, event_has_output

_TOLD = (b'"usage"', b'"timings"', b'"metrics"', b'"tensorfold"')
_DONE = b"[DONE]"
_decode = msgspec.json.Decoder().decode


class Figures:
    """Collects; `table` renders.

    Times are on the run's clock in seconds. ``streamed`` decides whether the router's own
    figures mean anything.
    """

    def __init__(self, family: str, forwarded_s: float, *, streamed: bool) -> None:
        self.family = family
        self.forwarded_s = forwarded_s
        self.streamed = streamed
        self.first_s: float | None = None
        self.last_s: float | None = None
        self.usage: dict[str, Any] = {}
        self.native: dict[str, Any] = {}

    def note_event(self, payload: bytes, now_s: float) -> None:
        """One event's data, as it passes."""
        if self.first_s is None and event_has_output(payload) and payload.strip() != _DONE:
            self.first_s = now_s
        if self.first_s is not None and payload.strip() != _DONE:
            self.last_s = now_s
        if any(word in payload for word in _TOLD):
            self.note_answer(payload)

    def note_answer(self, body: bytes) -> None:
        """A whole JSON answer, or an event that tells something."""
        try:
            answer = _decode(body)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            return
        if not isinstance(answer, dict):
            return
        if isinstance(answer.get("usage"), dict):
            self.usage.update(answer["usage"])
        for name in ("timings", "metrics", "tensorfold"):
            if isinstance(answer.get(name), dict):
                self.native.update(answer[name])

    def table(self) -> dict[str, dict[str, object]]:
        """``{name: {"value": number, "source": "engine" | "router"}}``, unknown ones absent."""
        engine = _ENGINE_FIGURES.get(self.family, _nothing)(self.native)
        cached = _number(_dict(self.usage.get("prompt_tokens_details")).get("cached_tokens"))
        if cached is not None:
            engine["cached_tokens"] = cached
        router = self._router_figures()
        names = ("ttft_ms", "queue_ms", "prefill_ms", "decode_tokens_per_second", "cached_tokens")
        table: dict[str, dict[str, object]] = {}
        for name in names:
            if engine.get(name) is not None:
                table[name] = {"value": _rounded(engine[name]), "source": "engine"}
            elif router.get(name) is not None:
                table[name] = {"value": _rounded(router[name]), "source": "router"}
        return table

    def _router_figures(self) -> dict[str, float | None]:
        first, last = self.first_s, self.last_s
        if not self.streamed or first is None or last is None:
            return {}
        figures: dict[str, float | None] = {"ttft_ms": (first - self.forwarded_s) * 1000}
        count = _number(self.usage.get("completion_tokens")) or _number(
            self.native.get("predicted_n")
        )
        if count is not None and count > 1 and last > first:
            figures["decode_tokens_per_second"] = (count - 1) / (last - first)
        return figures

    def comment(self) -> bytes:
        return b": x-capyctl-metrics %b\n\n" % msgspec.json.encode(self.table())

    def into_answer(self, body: bytes) -> bytes:
        """The JSON object with ``capyctl`` as its last member; other bodies unchanged."""
        self.note_answer(body)
        trimmed = body.strip()
        if not trimmed.startswith(b"{") or not trimmed.endswith(b"}"):
            return body
        member = b'"capyctl":%b' % msgspec.json.encode({"metrics": self.table()})
        inner = trimmed[:-1].rstrip()
        return b"".join((inner, b"" if inner.endswith(b"{") else b",", member, b"}"))


class FiguresFlow:
    """A stream's body with ``last_words``, comments, put in before its ``[DONE]`` or at its end."""

    def __init__(
        self,
        reader: Flow,
        figures: Figures,
        now: Callable[[], float],
        last_words: Callable[[], bytes],
        *,
        chunked: bool,
    ) -> None:
        self._reader = reader
        self._figures = figures
        self._now = now
        self._last_words = last_words
        self._chunked = chunked
        self._events = EventSplitter()
        self._told = False

    @property
    def ended(self) -> bool:
        return self._reader.ended

    @property
    def extra(self) -> bytes:
        return self._reader.extra

    def feed(self, data: bytes) -> bytes:
        out = []
        now_s = self._now()
        for event in self._events.feed(self._reader.feed(data)):
            told = event_data(event)
            if told is not None:
                if told.strip() == _DONE and not self._told:
                    out.append(self._tell())
                self._figures.note_event(told, now_s)
            out.append(event)
        if self._reader.ended:
            return self._framed(b"".join(out) + self._finish()) + self._last()
        return self._framed(b"".join(out))

    def at_eof(self) -> bytes:
        """The engine's connection ended, and with it this body."""
        assert isinstance(self._reader, ClosingReader), "the connection ends no other body"
        self._reader.at_eof()
        return self._framed(self._finish()) + self._last()

    def _finish(self) -> bytes:
        rest = self._events.rest()
        return rest + (b"" if self._told else self._tell())

    def _tell(self) -> bytes:
        self._told = True
        return self._last_words()

    def _framed(self, payload: bytes) -> bytes:
        return as_chunk(payload) if self._chunked and payload else payload

    def _last(self) -> bytes:
        return LAST_CHUNK if self._chunked else b""


def _vllm(native: dict[str, Any]) -> dict[str, float | None]:
    queue = _number(native.get("queue_time_ms"))
    prefill = _number(native.get("time_to_first_token_ms"))
    interval = _number(native.get("mean_itl_ms"))
    return {
        "queue_ms": queue,
        "prefill_ms": prefill,
        "ttft_ms": queue + prefill if queue is not None and prefill is not None else None,
        "decode_tokens_per_second": 1000 / interval if interval else None,
    }


def _tensorfold(native: dict[str, Any]) -> dict[str, float | None]:
    first = _number(native.get("time_to_first_token"))
    prefill = _number(native.get("prefill_seconds"))
    return {
        "ttft_ms": first * 1000 if first is not None else None,
        "prefill_ms": prefill * 1000 if prefill is not None else None,
        "decode_tokens_per_second": _number(native.get("tokens_per_second")) or None,
    }


def _llamacpp(native: dict[str, Any]) -> dict[str, float | None]:
    return {
        "prefill_ms": _number(native.get("prompt_ms")),
        "decode_tokens_per_second": _number(native.get("predicted_per_second")) or None,
    }


def _nothing(_: dict[str, Any]) -> dict[str, float | None]:
    return {}


_ENGINE_FIGURES = {"vllm": _vllm, "tensorfold": _tensorfold, "llamacpp": _llamacpp}


def _dict(value: object) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _number(value: object) -> float | None:
    """A number that is not negative; None for anything else."""
    if isinstance(value, bool) or not isinstance(value, int | float) or value < 0:
        return None
    return value


def _rounded(value: float | None) -> float | None:
    return value if isinstance(value, int) or value is None else round(value, 3)
