"""The bodies that SGLang writes: answers, chunks, errors, models, loads, metrics."""

from __future__ import annotations

import os
import time
from typing import Any

from capyctl.simulated.generation import Generation, Scheduler
from capyctl.simulated.http_server import Exchange, Headers, to_json
from capyctl.simulated.openai_request import TextRequest

JSON: Headers = [("server", "uvicorn"), ("content-type", "application/json")]
EVENTS: Headers = [("server", "uvicorn"), ("content-type", "text/event-stream; charset=utf-8")]
TEXT: Headers = [("server", "uvicorn"), ("content-type", "text/plain; charset=utf-8")]
DONE = b"data: [DONE]\n\n"


def error_body(message: str, kind: str, code: int, param: str | None = None) -> dict[str, Any]:
    return {"object": "error", "message": message, "type": kind, "param": param, "code": code}


def event(chunk: dict[str, Any]) -> bytes:
    return b"data: " + to_json(chunk) + b"\n\n"


def usage_of(generation: Generation) -> dict[str, Any]:
    completion = generation.produced_count * generation.choices
    return {
        "prompt_tokens": generation.prompt_count,
        "total_tokens": generation.prompt_count + completion,
        "completion_tokens": completion,
        "prompt_tokens_details": None,
        "reasoning_tokens": 0,
    }


class SglangShape:
    """One answer of SGLang's OpenAI surface."""

    def __init__(self, request: TextRequest, model: str) -> None:
        self._request = request
        self._model = model
        self._id = os.urandom(16).hex()
        self._created = int(time.time())

    async def open_stream(self, exchange: Exchange) -> None:
        await exchange.open_stream(200, EVENTS)

    async def reply_error(self, exchange: Exchange, message: str) -> None:
        body = error_body(message, "InternalServerError", 500)
        await exchange.reply(500, to_json(body), JSON)

    async def reply_whole(
        self, exchange: Exchange, generation: Generation, texts: list[str]
    ) -> None:
        body = {
            "id": self._id,
            "object": "chat.completion" if self._request.is_chat else "text_completion",
            "created": self._created,
            "model": self._model,
            "choices": [
                {
                    "index": index,
                    **self._said(text),
                    "logprobs": None,
                    "finish_reason": generation.finish,
                    "matched_stop": None,
                }
                for index, text in enumerate(texts)
            ],
            "usage": usage_of(generation),
            "metadata": {"weight_version": "default"},
        }
        await exchange.reply(200, to_json(body), JSON)

    def _said(self, text: str) -> dict[str, Any]:
        if not self._request.is_chat:
            return {"text": text}
        message = {
            "role": "assistant",
            "content": text,
            "reasoning_content": None,
            "tool_calls": None,
        }
        return {"message": message}

    def _chunk(self, choices: list[dict[str, Any]], usage: dict[str, Any] | None) -> bytes:
        kind = "chat.completion.chunk" if self._request.is_chat else "text_completion"
        return event(
            {
                "id": self._id,
                "object": kind,
                "created": self._created,
                "model": self._model,
                "choices": choices,
                "usage": usage,
            }
        )

    def _choice(self, index: int, finish: str | None, **said: Any) -> dict[str, Any]:
        if self._request.is_chat:
            delta = {"role": None, "content": None, "reasoning_content": None, "tool_calls": None}
            spoken: dict[str, Any] = {"delta": delta | said}
        else:
            spoken = {"text": said.get("content") or ""}
        return {
            "index": index,
            **spoken,
            "logprobs": None,
            "finish_reason": finish,
            "matched_stop": None,
        }

    def first_chunks(self, generation: Generation) -> bytes:
        if not self._request.is_chat:
            return b""
        return b"".join(
            self._chunk([self._choice(index, None, role="assistant", content="")], None)
            for index in range(generation.choices)
        )

    def piece(self, generation: Generation, index: int, text: str) -> bytes:
        usage = usage_of(generation) if self._request.usage_on_every_chunk else None
        return self._chunk([self._choice(index, None, content=text)], usage)

    def last_chunks(self, generation: Generation) -> bytes:
        chunks = [
            self._chunk([self._choice(index, generation.finish)], None)
            for index in range(generation.choices)
        ]
        if self._request.include_usage:
            chunks.append(self._chunk([], usage_of(generation)))
        return b"".join(chunks) + DONE

    def error_chunks(self, message: str) -> bytes:
        return event({"error": error_body(message, "InternalServerError", 500)}) + DONE


class GenerateShape:
    """One answer of the native ``/generate``: each event of a stream holds all text so far."""

    def __init__(self) -> None:
        self._text = ""

    async def open_stream(self, exchange: Exchange) -> None:
        await exchange.open_stream(200, EVENTS)

    async def reply_error(self, exchange: Exchange, message: str) -> None:
        await exchange.reply(500, to_json({"error": {"message": message}}), JSON)

    async def reply_whole(
        self, exchange: Exchange, generation: Generation, texts: list[str]
    ) -> None:
        self._text = texts[0]
        await exchange.reply(200, to_json(self._body(generation)), JSON)

    def _body(self, generation: Generation) -> dict[str, Any]:
        finish = None if generation.finish is None else {"type": generation.finish}
        return {
            "text": self._text,
            "meta_info": {
                "finish_reason": finish,
                "prompt_tokens": generation.prompt_count,
                "completion_tokens": generation.produced_count,
                "cached_tokens": 0,
            },
        }

    def first_chunks(self, generation: Generation) -> bytes:
        return b""

    def piece(self, generation: Generation, index: int, text: str) -> bytes:
        self._text += text
        return event(self._body(generation))

    def last_chunks(self, generation: Generation) -> bytes:
        return event(self._body(generation)) + DONE

    def error_chunks(self, message: str) -> bytes:
        return event({"error": {"message": message}}) + DONE


def models_body(name: str, context_length: int) -> dict[str, Any]:
    row = {
        "id": name,
        "object": "model",
        "created": int(time.time()),
        "owned_by": "sglang",
        "root": name,
        "parent": None,
        "max_model_len": context_length,
    }
    return {"object": "list", "data": [row]}


def load_row(scheduler: Scheduler, token_count_max: int) -> dict[str, Any]:
    """One rank's ``core`` part of ``/v1/loads``."""
    return {
        "dp_rank": 0,
        "num_running_reqs": len(scheduler.running),
        "num_waiting_reqs": len(scheduler.waiting),
        "max_total_num_tokens": token_count_max,
        "max_running_requests": scheduler.slots,
        "token_usage": round(len(scheduler.running) / scheduler.slots, 4),
    }


def metrics_text(model: str, scheduler: Scheduler, token_count_max: int) -> bytes:
    """Prometheus text with SGLang's names and labels."""
    labels = f'engine_type="unified",model_name="{model}",tp_rank="0",pp_rank="0"'
    gauges = {
        "num_running_reqs": len(scheduler.running),
        "num_queue_reqs": len(scheduler.waiting),
        "num_paused_reqs": 0,
        "token_usage": len(scheduler.running) / scheduler.slots,
        "num_used_tokens": 0,
        "max_total_num_tokens": token_count_max,
    }
    lines: list[str] = []
    for name, value in gauges.items():
        lines.append(f"# HELP sglang:{name} {name.replace('_', ' ').capitalize()}.")
        lines.append(f"# TYPE sglang:{name} gauge")
        lines.append(f"sglang:{name}{{{labels}}} {value:.17g}")
    return ("\n".join(lines) + "\n").encode()
