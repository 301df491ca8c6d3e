"""The bodies that llama-server writes: answers, chunks, errors, models, slots, metrics."""

from __future__ import annotations

import os
import time
from typing import Any

import trio

from capyctl.simulated.generation import Generation, Scheduler
from capyctl.simulated.http_server import Exchange, Headers, to_json
from capyctl.simulated.local_model import LocalModel
from capyctl.simulated.openai_request import TextRequest

BUILD = "b11434-simulated"
JSON: Headers = [
    ("Server", "llama.cpp"),
    ("Content-Type", "application/json; charset=utf-8"),
]
EVENTS: Headers = [("Server", "llama.cpp"), ("Content-Type", "text/event-stream")]
TEXT: Headers = [("Server", "llama.cpp"), ("Content-Type", "text/plain; version=0.0.4")]
DONE = b"data: [DONE]\n\n"


def error_body(message: str, kind: str, code: int) -> dict[str, Any]:
    return {"error": {"message": message, "type": kind, "code": code}}


def event(chunk: dict[str, Any]) -> bytes:
    return b"data: " + to_json(chunk) + b"\n\n"


def usage_of(generation: Generation) -> dict[str, Any]:
    completion = generation.produced_count * generation.choices
    return {
        "completion_tokens": completion,
        "prompt_tokens": generation.prompt_count,
        "total_tokens": generation.prompt_count + completion,
        "prompt_tokens_details": {"cached_tokens": 0},
    }


def timings_of(generation: Generation) -> dict[str, Any]:
    now = trio.current_time()
    prompt_ms = max(0.001, (generation.first_at_s - generation.began_at_s) * 1000)
    predicted_ms = max(0.001, (now - generation.first_at_s) * 1000)
    prompt, predicted = generation.prompt_count, max(1, generation.produced_count)
    return {
        "cache_n": 0,
        "prompt_n": prompt,
        "prompt_ms": round(prompt_ms, 3),
        "prompt_per_token_ms": round(prompt_ms / prompt, 6),
        "prompt_per_second": round(prompt / prompt_ms * 1000, 6),
        "predicted_n": predicted,
        "predicted_ms": round(predicted_ms, 3),
        "predicted_per_token_ms": round(predicted_ms / predicted, 6),
        "predicted_per_second": round(predicted / predicted_ms * 1000, 6),
    }


class LlamaShape:
    """One answer of llama-server."""

    def __init__(self, request: TextRequest, model: str) -> None:
        self._request = request
        self._model = model
        self._id = f"chatcmpl-{os.urandom(16).hex()}"
        self._created = int(time.time())

    async def open_stream(self, exchange: Exchange) -> None:
        await exchange.open_stream(200, EVENTS)

    async def reply_error(self, exchange: Exchange, message: str) -> None:
        await exchange.reply(500, to_json(error_body(message, "server_error", 500)), JSON)

    async def reply_whole(
        self, exchange: Exchange, generation: Generation, texts: list[str]
    ) -> None:
        choices = [
            {
                "finish_reason": generation.finish,
                "index": index,
                "message": {"role": "assistant", "content": text},
            }
            if self._request.is_chat
            else {
                "text": text,
                "index": index,
                "logprobs": None,
                "finish_reason": generation.finish,
            }
            for index, text in enumerate(texts)
        ]
        body = self._frame("chat.completion", choices) | {"usage": usage_of(generation)}
        body["timings"] = timings_of(generation)
        await exchange.reply(200, to_json(body), JSON)

    def _frame(self, chat_object: str, choices: list[dict[str, Any]]) -> dict[str, Any]:
        return {
            "choices": choices,
            "created": self._created,
            "id": self._id,
            "model": self._model,
            "system_fingerprint": BUILD,
            "object": chat_object if self._request.is_chat else "text_completion",
        }

    def _chunk(self, *choices: dict[str, Any]) -> dict[str, Any]:
        return self._frame("chat.completion.chunk", list(choices))

    def first_chunks(self, generation: Generation) -> bytes:
        if not self._request.is_chat:
            return b""
        delta = {"role": "assistant", "content": None}
        return b"".join(
            event(self._chunk({"finish_reason": None, "index": index, "delta": delta}))
            for index in range(generation.choices)
        )

    def piece(self, generation: Generation, index: int, text: str) -> bytes:
        choice: dict[str, Any]
        if self._request.is_chat:
            choice = {"finish_reason": None, "index": index, "delta": {"content": text}}
        else:
            choice = {"text": text, "index": index, "logprobs": None, "finish_reason": None}
        return event(self._chunk(choice))

    def last_chunks(self, generation: Generation) -> bytes:
        chunks = []
        for index in range(generation.choices):
            choice: dict[str, Any] = {"finish_reason": generation.finish, "index": index}
            if self._request.is_chat:
                choice["delta"] = {}
            else:
                choice |= {"text": "", "logprobs": None}
            chunks.append(self._chunk(choice))
        if self._request.include_usage:
            chunks.append(self._chunk() | {"usage": usage_of(generation)})
        chunks[-1]["timings"] = timings_of(generation)
        return b"".join(map(event, chunks)) + DONE

    def error_chunks(self, message: str) -> bytes:
        """No ``[DONE]`` follows."""
        return event(error_body(message, "server_error", 500))


def models_body(
    names: tuple[str, ...], model: LocalModel, slot_context: int, created: int
) -> dict[str, Any]:
    meta = {
        "vocab_type": 2,
        "n_vocab": 32_000,
        "n_ctx": slot_context,
        "n_ctx_train": model.context_length,
        "n_embd": 4_096,
        "n_params": model.weights_bytes * 2,
        "size": model.weights_bytes,
    }
    row = {
        "id": names[0],
        "aliases": list(names),
        "tags": [],
        "object": "model",
        "created": created,
        "owned_by": "llamacpp",
        "meta": meta,
    }
    listed = {"name": names[0], "model": names[0], "type": "model", "format": "gguf"}
    return {"models": [listed], "object": "list", "data": [row]}


def slots_body(scheduler: Scheduler, slot_context: int) -> list[dict[str, Any]]:
    running = list(scheduler.running)
    return [
        {
            "id": index,
            "id_task": running[index].task_id if index < len(running) else -1,
            "n_ctx": slot_context,
            "speculative": False,
            "is_processing": index < len(running),
        }
        for index in range(scheduler.slots)
    ]


def metrics_text(scheduler: Scheduler) -> bytes:
    """Prometheus text with llama-server's names; it has no labels."""
    counters = scheduler.counters
    rows = (
        ("prompt_tokens_total", "counter", counters.prompt_tokens),
        ("prompt_seconds_total", "counter", counters.first_token_s_sum),
        ("tokens_predicted_total", "counter", counters.generation_tokens),
        ("n_tokens_max", "counter", counters.prompt_tokens + counters.generation_tokens),
        ("n_busy_slots_per_decode", "gauge", len(scheduler.running)),
        ("requests_processing", "gauge", len(scheduler.running)),
        ("requests_deferred", "gauge", len(scheduler.waiting)),
    )
    lines = []
    for name, kind, value in rows:
        lines.append(f"# HELP llamacpp:{name} {name.replace('_', ' ').capitalize()}.")
        lines.append(f"# TYPE llamacpp:{name} {kind}")
        lines.append(f"llamacpp:{name} {value:.17g}")
    return ("\n".join(lines) + "\n").encode()
