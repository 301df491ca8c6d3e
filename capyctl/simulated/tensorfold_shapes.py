"""The bodies that TensorFold writes: answers, chunks, errors, metrics."""

from __future__ import annotations

import math
import os
import time
from typing import Any

import trio

from capyctl.simulated.generation import Generation, Scheduler
from capyctl.simulated.http_server import Exchange, Headers, to_json
from capyctl.simulated.openai_request import TextRequest

JSON: Headers = [("content-type", "application/json")]
EVENTS: Headers = [("content-type", "text/event-stream")]
TEXT: Headers = [("content-type", "text/plain; version=0.0.4")]
DONE = b"data: [DONE]\n\n"


def error_body(message: str) -> dict[str, Any]:
    return {"error": {"message": message, "type": "invalid_request_error"}}


def event(chunk: dict[str, Any]) -> bytes:
    return b"data: " + to_json(chunk) + b"\n\n"


def usage_of(generation: Generation) -> dict[str, Any]:
    completion = generation.produced_count * generation.choices
    return {
        "prompt_tokens": generation.prompt_count,
        "completion_tokens": completion,
        "total_tokens": generation.prompt_count + completion,
        "prompt_tokens_details": {"cached_tokens": 0},
    }


def timings_of(generation: Generation) -> dict[str, float]:
    """TensorFold's own object beside the answer."""
    first_s = generation.first_at_s - generation.began_at_s
    first_s = 0.0 if math.isnan(first_s) else first_s
    spent_s = trio.current_time() - generation.began_at_s - first_s
    rate = (generation.produced_count - 1) / spent_s if spent_s > 0 else 0.0
    return {
        "time_to_first_token": round(first_s, 6),
        "prefill_seconds": round(first_s, 6),
        "tokens_per_second": round(rate, 3),
    }


class TensorfoldShape:
    """One answer of TensorFold: usage comes with the last event, always."""

    def __init__(self, request: TextRequest, model: str) -> None:
        self._request = request
        self._model = model
        self._id = f"chatcmpl-{os.urandom(12).hex()}"
        self._created = int(time.time())

    async def open_stream(self, exchange: Exchange) -> None:
        await exchange.open_stream(200, EVENTS)

    async def reply_error(self, exchange: Exchange, message: str) -> None:
        await exchange.reply(500, to_json(error_body(message)), JSON)

    async def reply_whole(
        self, exchange: Exchange, generation: Generation, texts: list[str]
    ) -> None:
        choices = [
            {"index": index, **self._whole(text), "finish_reason": generation.finish}
            for index, text in enumerate(texts)
        ]
        body = self._head("") | {
            "choices": choices,
            "usage": usage_of(generation),
            "tensorfold": timings_of(generation),
        }
        await exchange.reply(200, to_json(body), JSON)

    def _whole(self, text: str) -> dict[str, Any]:
        if not self._request.is_chat:
            return {"text": text}
        return {"message": {"role": "assistant", "content": text}}

    def _head(self, ending: str) -> dict[str, Any]:
        kind = f"chat.completion{ending}" if self._request.is_chat else "text_completion"
        return {"id": self._id, "object": kind, "created": self._created, "model": self._model}

    def _event(self, index: int, finish: str | None, said: dict[str, Any]) -> dict[str, Any]:
        spoken = {"delta": said} if self._request.is_chat else {"text": said.get("content", "")}
        choice = {"index": index, **spoken, "finish_reason": finish}
        return self._head(".chunk") | {"choices": [choice]}

    def first_chunks(self, generation: Generation) -> bytes:
        if not self._request.is_chat:
            return b""
        role = {"role": "assistant"}
        return b"".join(
            event(self._event(index, None, role)) for index in range(generation.choices)
        )

    def piece(self, generation: Generation, index: int, text: str) -> bytes:
        return event(self._event(index, None, {"content": text}))

    def last_chunks(self, generation: Generation) -> bytes:
        ends = [self._event(index, generation.finish, {}) for index in range(generation.choices)]
        ends[-1] |= {"usage": usage_of(generation), "tensorfold": timings_of(generation)}
        return b"".join(map(event, ends)) + DONE

    def error_chunks(self, message: str) -> bytes:
        return event(error_body(message)) + DONE


def metrics_text(scheduler: Scheduler) -> bytes:
    """Prometheus text with TensorFold's names."""
    gauges = {
        "requests_running": len(scheduler.running),
        "requests_waiting": len(scheduler.waiting),
        "kv_cache_usage_ratio": len(scheduler.running) / scheduler.slots,
        "model_ready": 1,
    }
    lines: list[str] = []
    for name, value in gauges.items():
        lines.append(f"# TYPE tensorfold:{name} gauge")
        lines.append(f"tensorfold:{name} {value:.17g}")
    return ("\n".join(lines) + "\n").encode()
