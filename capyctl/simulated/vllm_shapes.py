"""The bodies that vLLM writes: answers, chunks, errors, models, metrics."""

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
DEAD = "EngineCore encountered an issue. See stack trace (above) for the root cause."
DONE = b"data: [DONE]\n\n"


def error_body(message: str, kind: str, code: int, param: str | None = None) -> dict[str, Any]:
    return {"error": {"message": message, "type": kind, "param": param, "code": code}}


def event(chunk: dict[str, Any]) -> bytes:
    return b"data: " + to_json(chunk) + b"\n\n"


def usage_of(generation: Generation) -> dict[str, Any]:
    completion = generation.produced_count * generation.choices
    return {
        "prompt_tokens": generation.prompt_count,
        "total_tokens": generation.prompt_count + completion,
        "completion_tokens": completion,
        "prompt_tokens_details": None,
    }


class VllmShape:
    """One answer of vLLM."""

    def __init__(self, request: TextRequest, model: str, request_id: str | None) -> None:
        self._request = request
        self._model = model
        prefix = "chatcmpl" if request.is_chat else "cmpl"
        self._id = f"{prefix}-{request_id or os.urandom(16).hex()}"
        self._created = int(time.time())

    async def open_stream(self, exchange: Exchange) -> None:
        await exchange.open_stream(200, EVENTS)

    async def reply_error(self, exchange: Exchange, message: str) -> None:
        body = error_body(message, "InternalServerError", 500)
        await exchange.reply(500, to_json(body), JSON)

    async def reply_whole(
        self, exchange: Exchange, generation: Generation, texts: list[str]
    ) -> None:
        make = self._chat_choice if self._request.is_chat else self._plain_choice
        body = {
            "id": self._id,
            "object": "chat.completion" if self._request.is_chat else "text_completion",
            "created": self._created,
            "model": self._model,
            "choices": [make(index, text, generation) for index, text in enumerate(texts)],
            "service_tier": None,
            "system_fingerprint": None,
            "usage": usage_of(generation),
        }
        if self._request.is_chat:
            body |= {"prompt_logprobs": None, "prompt_token_ids": None}
        await exchange.reply(200, to_json(body | {"kv_transfer_params": None}), JSON)

    def _chat_choice(self, index: int, text: str, generation: Generation) -> dict[str, Any]:
        message: dict[str, Any] = {
            "role": "assistant",
            "content": text,
            "refusal": None,
            "annotations": None,
            "audio": None,
            "function_call": None,
            "tool_calls": [],
            "reasoning": None,
        }
        return {
            "index": index,
            "message": message,
            "logprobs": None,
            "finish_reason": generation.finish,
            "stop_reason": None,
            "token_ids": None,
        }

    def _plain_choice(self, index: int, text: str, generation: Generation) -> dict[str, Any]:
        return {
            "index": index,
            "text": text,
            "logprobs": None,
            "finish_reason": generation.finish,
            "stop_reason": None,
            "token_ids": None,
            "prompt_logprobs": None,
            "prompt_token_ids": None,
        }

    def _chunk(self, generation: Generation, choices: list[dict[str, Any]]) -> dict[str, Any]:
        chunk: dict[str, Any] = {
            "id": self._id,
            "object": "chat.completion.chunk" if self._request.is_chat else "text_completion",
            "created": self._created,
            "model": self._model,
            "choices": choices,
        }
        if self._request.usage_on_every_chunk:
            chunk["usage"] = usage_of(generation)
        return chunk

    def first_chunks(self, generation: Generation) -> bytes:
        if not self._request.is_chat:
            return b""
        choice = {
            "delta": {"role": "assistant", "content": ""},
            "logprobs": None,
            "finish_reason": None,
        }
        return b"".join(
            event(
                self._chunk(generation, [{"index": index, **choice}]) | {"prompt_token_ids": None}
            )
            for index in range(generation.choices)
        )

    def piece(self, generation: Generation, index: int, text: str) -> bytes:
        return event(self._chunk(generation, [self._delta(index, text, None)]))

    def _delta(self, index: int, text: str, finish: str | None) -> dict[str, Any]:
        said = {"delta": {"content": text}} if self._request.is_chat else {"text": text}
        ending = {} if finish is None and self._request.is_chat else {"stop_reason": None}
        return {
            "index": index,
            **said,
            "logprobs": None,
            "finish_reason": finish,
            **ending,
            "token_ids": None,
        }

    def last_chunks(self, generation: Generation) -> bytes:
        choices = range(generation.choices)
        chunks = [
            self._chunk(generation, [self._delta(index, "", generation.finish)])
            for index in choices
        ]
        if self._request.include_usage:
            chunks.append(self._chunk(generation, []) | {"usage": usage_of(generation)})
        return b"".join(map(event, chunks)) + DONE

    def error_chunks(self, message: str) -> bytes:
        return event(error_body(message, "InternalServerError", 500)) + DONE


def models_body(names: tuple[str, ...], root: str, context_length: int) -> dict[str, Any]:
    created = int(time.time())
    permission = {
        "id": f"modelperm-{os.urandom(16).hex()}",
        "object": "model_permission",
        "created": created,
        "allow_create_engine": False,
        "allow_sampling": True,
        "allow_logprobs": True,
        "allow_search_indices": False,
        "allow_view": True,
        "allow_fine_tuning": False,
        "organization": "*",
        "group": None,
        "is_blocking": False,
    }
    rows = [
        {
            "id": name,
            "object": "model",
            "created": created,
            "owned_by": "vllm",
            "root": root,
            "parent": None,
            "max_model_len": context_length,
            "permission": [permission],
        }
        for name in names
    ]
    return {"object": "list", "data": rows}


def metrics_text(model: str, scheduler: Scheduler, sleep_state: str) -> bytes:
    """Prometheus text with vLLM's names and labels."""
    labels = f'engine="0",model_name="{model}"'
    lines: list[str] = []

    def metric(name: str, kind: str, *rows: tuple[str, float]) -> None:
        lines.append(f"# HELP vllm:{name} {name.replace('_', ' ').capitalize()}.")
        lines.append(f"# TYPE vllm:{name} {kind}")
        for suffix, value in rows:
            more, _, ending = suffix.rpartition("|")
            lines.append(f"vllm:{name}{ending}{{{labels}{more}}} {value:.17g}")

    counters, running = scheduler.counters, len(scheduler.running)
    waiting = len(scheduler.waiting)
    metric("num_requests_running", "gauge", ("", running))
    metric("num_requests_waiting", "gauge", ("", waiting))
    metric(
        "num_requests_waiting_by_reason",
        "gauge",
        (',reason="capacity"|', waiting),
        (',reason="deferred"|', 0),
    )
    metric("kv_cache_usage_perc", "gauge", ("", running / scheduler.slots))
    states = ("awake", "weights_offloaded", "discard_all")
    sleeping = [(f',sleep_state="{state}"|', float(state == sleep_state)) for state in states]
    metric("engine_sleep_state", "gauge", *sleeping)
    metric("prompt_tokens_total", "counter", ("", counters.prompt_tokens))
    metric("generation_tokens_total", "counter", ("", counters.generation_tokens))
    reasons = ("stop", "length", "abort", "error", "repetition")
    finished = [
        (f',finished_reason="{why}"|', float(counters.finished.get(why, 0))) for why in reasons
    ]
    metric("request_success_total", "counter", *finished)
    metric(
        "time_to_first_token_seconds",
        "histogram",
        (',le="+Inf"|_bucket', counters.first_token_count),
        ("|_count", counters.first_token_count),
        ("|_sum", counters.first_token_s_sum),
    )
    return ("\n".join(lines) + "\n").encode()
