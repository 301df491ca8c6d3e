"""Answers of `/v1/responses` and `/v1/messages`: what a simulated engine writes for each."""

from __future__ import annotations

import os
import time
from typing import Any

from capyctl.simulated.generation import Generation
from capyctl.simulated.http_server import Exchange, Headers, to_json
from capyctl.simulated.openai_request import BadRequest, TextRequest, read_text_request

EVENTS: Headers = [("content-type", "text/event-stream; charset=utf-8")]


def read_response_request(payload: dict[str, Any]) -> TextRequest:
    """A request of `/v1/responses` as one for chat.

    Raises:
        BadRequest: `input` is neither a text nor a list of messages.
    """
    given = payload.get("input")
    messages = [{"role": "user", "content": given}] if isinstance(given, str) else given
    if not isinstance(messages, list):
        raise BadRequest("input must be a text or a list of messages", "input")
    system = payload.get("instructions")
    before = [{"role": "system", "content": system}] if system else []
    return _as_chat(payload, [*before, *messages], "max_output_tokens")


def read_message_request(payload: dict[str, Any]) -> TextRequest:
    """A request of `/v1/messages` as one for chat.

    Raises:
        BadRequest: `messages` is missing or misshapen.
    """
    messages = payload.get("messages")
    if not isinstance(messages, list):
        raise BadRequest("messages: Field required", "messages")
    system = payload.get("system")
    before = [{"role": "system", "content": system}] if system else []
    return _as_chat(payload, [*before, *messages], "max_tokens")


def _as_chat(payload: dict[str, Any], messages: list[Any], limit: str) -> TextRequest:
    asked: dict[str, Any] = {
        "messages": messages,
        "model": payload.get("model"),
        "stream": payload.get("stream"),
        "max_tokens": payload.get(limit),
    }
    return read_text_request(asked, is_chat=True)


def named_event(name: str, body: dict[str, Any]) -> bytes:
    """An event with its name beside its data, as both surfaces write them."""
    return f"event: {name}\ndata: ".encode() + to_json({"type": name, **body}) + b"\n\n"


class _Named:
    """What both shapes have in common: named events, whole answers with JSON headers."""

    prefix: str

    def __init__(self, model: str, headers: Headers) -> None:
        self._model = model
        self._headers = headers
        self._id = f"{self.prefix}_{os.urandom(12).hex()}"
        self._created = int(time.time())
        self._text = ""

    async def open_stream(self, exchange: Exchange) -> None:
        await exchange.open_stream(200, EVENTS)

    async def reply_error(self, exchange: Exchange, message: str) -> None:
        body = {"type": "error", "error": {"type": "api_error", "message": message}}
        await exchange.reply(500, to_json(body), self._headers)

    def error_chunks(self, message: str) -> bytes:
        return named_event("error", {"error": {"type": "api_error", "message": message}})


class ResponseShape(_Named):
    """One answer of `/v1/responses`."""

    prefix = "resp"

    async def reply_whole(
        self, exchange: Exchange, generation: Generation, texts: list[str]
    ) -> None:
        self._text = texts[0]
        await exchange.reply(200, to_json(self._body(generation)), self._headers)

    def _body(self, generation: Generation | None) -> dict[str, Any]:
        body: dict[str, Any] = {
            "id": self._id,
            "object": "response",
            "created_at": self._created,
            "model": self._model,
            "status": "in_progress" if generation is None else "completed",
            "output": [],
            "usage": None,
        }
        if generation is None:
            return body
        content = {"type": "output_text", "text": self._text, "annotations": []}
        message = {"type": "message", "role": "assistant", "status": "completed"}
        body["output"] = [{"id": f"msg{self._id[4:]}", **message, "content": [content]}]
        body["usage"] = {
            "input_tokens": generation.prompt_count,
            "output_tokens": generation.produced_count,
            "total_tokens": generation.prompt_count + generation.produced_count,
        }
        return body

    def first_chunks(self, generation: Generation) -> bytes:
        return named_event("response.created", {"response": self._body(None)})

    def piece(self, generation: Generation, index: int, text: str) -> bytes:
        self._text += text
        place = {"output_index": 0, "content_index": 0}
        return named_event("response.output_text.delta", {**place, "delta": text})

    def last_chunks(self, generation: Generation) -> bytes:
        return named_event("response.completed", {"response": self._body(generation)})


class MessageShape(_Named):
    """One answer of `/v1/messages`."""

    prefix = "msg"

    async def reply_whole(
        self, exchange: Exchange, generation: Generation, texts: list[str]
    ) -> None:
        body = self._body() | {
            "content": [{"type": "text", "text": texts[0]}],
            "stop_reason": _reason(generation),
            "usage": self._usage(generation),
        }
        await exchange.reply(200, to_json(body), self._headers)

    def _body(self) -> dict[str, Any]:
        return {
            "id": self._id,
            "type": "message",
            "role": "assistant",
            "model": self._model,
            "content": [],
            "stop_reason": None,
            "stop_sequence": None,
        }

    def _usage(self, generation: Generation) -> dict[str, int]:
        return {
            "input_tokens": generation.prompt_count,
            "output_tokens": generation.produced_count,
        }

    def first_chunks(self, generation: Generation) -> bytes:
        message = self._body() | {"usage": self._usage(generation)}
        block = {"index": 0, "content_block": {"type": "text", "text": ""}}
        return named_event("message_start", {"message": message}) + named_event(
            "content_block_start", block
        )

    def piece(self, generation: Generation, index: int, text: str) -> bytes:
        delta = {"index": 0, "delta": {"type": "text_delta", "text": text}}
        return named_event("content_block_delta", delta)

    def last_chunks(self, generation: Generation) -> bytes:
        ended = {"delta": {"stop_reason": _reason(generation), "stop_sequence": None}}
        return b"".join(
            (
                named_event("content_block_stop", {"index": 0}),
                named_event("message_delta", {**ended, "usage": self._usage(generation)}),
                named_event("message_stop", {}),
            )
        )


def _reason(generation: Generation) -> str:
    return "max_tokens" if generation.finish == "length" else "end_turn"
