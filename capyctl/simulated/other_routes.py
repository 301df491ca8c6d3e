"""Routes beside chat and completions: responses, messages, embeddings, reranking, hearing.

They say nearly the same on every engine; what differs is given.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Awaitable, Callable
from typing import Any

from capyctl.simulated.answering import Shape
from capyctl.simulated.generation import Generation, Scheduler
from capyctl.simulated.http_server import Exchange, Headers, to_json
from capyctl.simulated.json_body import payload_of
from capyctl.simulated.local_model import LocalModel
from capyctl.simulated.openai_request import BadRequest, TextRequest, read_inputs
from capyctl.simulated.other_shapes import (
    MessageShape,
    ResponseShape,
    read_message_request,
    read_response_request,
)
from capyctl.simulated.scripted_text import embedding, prompt_tokens, reply_words

Route = Callable[[Exchange], Awaitable[None]]
Text = Callable[[Exchange, TextRequest, Shape], Awaitable[None]]
HEARD_WORDS = 8
_BOUNDARY = re.compile(r'boundary="?([^";]+)"?')
_NAME = re.compile(rb'name="([^"]*)"')


class OtherRoutes:
    """What one simulated engine mounts of them, path by path."""

    def __init__(
        self,
        *,
        name: str,
        model: LocalModel,
        scheduler: Scheduler,
        headers: Headers,
        text: Text,
        bare_list: bool = False,
    ) -> None:
        """``bare_list``: a reranking is answered as SGLang does."""
        self._name = name
        self._model = model
        self._scheduler = scheduler
        self._headers = headers
        self._text = text
        self._bare_list = bare_list

    def generating(self) -> dict[str, Route]:
        return {
            "/v1/responses": self._responses,
            "/v1/messages": self._messages,
            "/v1/messages/count_tokens": self._count_tokens,
        }

    def embedding(self) -> dict[str, Route]:
        return {"/v1/embeddings": self._embeddings}

    def scoring(self) -> dict[str, Route]:
        return {"/v1/rerank": self._rerank, "/v1/score": self._score}

    def hearing(self) -> dict[str, Route]:
        return {"/v1/audio/transcriptions": self._transcribe}

    async def _responses(self, exchange: Exchange) -> None:
        request = read_response_request(payload_of(exchange))
        shape = ResponseShape(request.model or self._name, self._headers)
        await self._text(exchange, request, shape)

    async def _messages(self, exchange: Exchange) -> None:
        request = read_message_request(payload_of(exchange))
        shape = MessageShape(request.model or self._name, self._headers)
        await self._text(exchange, request, shape)

    async def _count_tokens(self, exchange: Exchange) -> None:
        request = read_message_request(payload_of(exchange))
        await self._reply(exchange, {"input_tokens": prompt_tokens(request.prompt)})

    async def _embeddings(self, exchange: Exchange) -> None:
        model, texts = read_inputs(payload_of(exchange))
        if not await self._pass(exchange, texts):
            return
        rows = [
            {"index": at, "object": "embedding", "embedding": self._vector(text)}
            for at, text in enumerate(texts)
        ]
        body = {"object": "list", "model": model or self._name, "data": rows}
        await self._reply(exchange, body | {"usage": _usage(texts)})

    async def _rerank(self, exchange: Exchange) -> None:
        payload = payload_of(exchange)
        query, documents = payload.get("query"), payload.get("documents")
        if not isinstance(query, str) or not query:
            raise BadRequest('"query" must be provided', "query")
        if not isinstance(documents, list) or not documents:
            raise BadRequest('"documents" must be a non-empty list', "documents")
        if not await self._pass(exchange, [query, *map(str, documents)]):
            return
        scores = [self._likeness(query, str(document)) for document in documents]
        order = sorted(range(len(scores)), key=lambda at: -scores[at])
        if self._bare_list:
            rows = [{"score": scores[at], "document": documents[at], "index": at} for at in order]
            await exchange.reply(200, to_json(rows), self._headers)
            return
        results = [{"index": at, "relevance_score": scores[at]} for at in order]
        body = {"model": payload.get("model") or self._name, "object": "list", "results": results}
        await self._reply(exchange, body | {"usage": _usage([query, *map(str, documents)])})

    async def _score(self, exchange: Exchange) -> None:
        payload = payload_of(exchange)
        one, other = payload.get("text_1"), payload.get("text_2")
        others = [other] if isinstance(other, str) else other
        if not isinstance(one, str) or not isinstance(others, list) or not others:
            raise BadRequest("text_1 and text_2 must be given", "text_1")
        texts = [one, *map(str, others)]
        if not await self._pass(exchange, texts):
            return
        rows = [
            {"index": at, "object": "score", "score": self._likeness(one, str(text))}
            for at, text in enumerate(others)
        ]
        body = {"object": "list", "model": payload.get("model") or self._name, "data": rows}
        await self._reply(exchange, body | {"usage": _usage(texts)})

    async def _transcribe(self, exchange: Exchange) -> None:
        found = _fields(exchange)
        sound = found.get("file")
        if sound is None:
            raise BadRequest("file: Field required", "file")
        if not await self._pass(exchange, [found.get("prompt", b"").decode(errors="replace")]):
            return
        heard = hashlib.sha256(sound).hexdigest()
        words = reply_words(self._model.weights_id, heard, 0, HEARD_WORDS)
        text = "".join(words) if self._scheduler.weights_good else "!" * HEARD_WORDS
        await self._reply(exchange, {"text": text})

    async def _pass(self, exchange: Exchange, texts: list[str]) -> bool:
        """One turn of the engine, so that memory, slots and pauses count; False on an error."""
        generation = Generation(prompt=" ".join(texts), token_count_max=1)
        await self._scheduler.run(generation, lambda index, text: None)
        if generation.error is None and generation.finish is not None:
            return True
        body = {"error": {"message": generation.error or "aborted", "code": 500}}
        await exchange.reply(500, to_json(body), self._headers)
        return False

    def _vector(self, text: str) -> list[float]:
        made = embedding(self._model.weights_id, text)
        return made if self._scheduler.weights_good else [0.0] * len(made)

    def _likeness(self, one: str, other: str) -> float:
        """Between 0 and 1, larger the more words both have."""
        if not self._scheduler.weights_good:
            return 0.0
        left, right = set(one.lower().split()), set(other.lower().split())
        shared = len(left & right) / max(1, len(left | right))
        tilt = self._vector(other)[0] / 100
        return round(min(1.0, max(0.0, 0.05 + 0.9 * shared + tilt)), 6)

    async def _reply(self, exchange: Exchange, body: dict[str, Any]) -> None:
        await exchange.reply(200, to_json(body), self._headers)


def model_in(exchange: Exchange) -> str | None:
    """The model that a request names, in JSON or in a form, whatever else is wrong with it."""
    try:
        if exchange.headers.get("content-type", "").startswith("multipart/"):
            return _fields(exchange)["model"].decode(errors="replace")
        named = payload_of(exchange).get("model")
    except (BadRequest, KeyError):
        return None
    return named if isinstance(named, str) else None


def _usage(texts: list[str]) -> dict[str, int]:
    count = sum(map(prompt_tokens, texts))
    return {"prompt_tokens": count, "total_tokens": count}


def _fields(exchange: Exchange) -> dict[str, bytes]:
    """Contents of a multipart form by field name.

    Raises:
        BadRequest: it is none.
    """
    kind = exchange.headers.get("content-type", "")
    boundary = _BOUNDARY.search(kind)
    if not kind.startswith("multipart/form-data") or boundary is None:
        raise BadRequest("a multipart form is expected")
    found: dict[str, bytes] = {}
    for part in exchange.body.split(b"--" + boundary[1].encode())[1:-1]:
        head, _, content = part.partition(b"\r\n\r\n")
        name = _NAME.search(head)
        if name is not None:
            found[name[1].decode(errors="replace")] = content.removesuffix(b"\r\n")
    return found
