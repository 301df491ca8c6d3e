"""llama-server's HTTP surface: which paths there are, who may call them, what they answer."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from typing import Any

import trio

from capyctl.simulated.answering import Shape, answer_stream, answer_whole
from capyctl.simulated.behaviour import Behaviour
from capyctl.simulated.command_line import Options
from capyctl.simulated.generation import Generation, Scheduler
from capyctl.simulated.http_server import Exchange, bearer_of, to_json
from capyctl.simulated.llama_conversations import Conversations
from capyctl.simulated.llama_hangup import Results, wait_noticed
from capyctl.simulated.llama_shapes import (
    BUILD,
    JSON,
    TEXT,
    LlamaShape,
    error_body,
    metrics_text,
    models_body,
    slots_body,
)
from capyctl.simulated.local_model import LocalModel
from capyctl.simulated.openai_request import BadRequest, TextRequest, read_text_request
from capyctl.simulated.other_routes import OtherRoutes
from capyctl.simulated.scripted_text import prompt_tokens

_OPEN = ("/health", "/v1/health")
Route = Callable[[Exchange], Awaitable[None]]


class LlamaRoutes:
    """Answers every request to one simulated llama-server."""

    def __init__(
        self,
        *,
        options: Options,
        api_keys: frozenset[str],
        names: tuple[str, ...],
        model: LocalModel,
        slot_context: int,
        scheduler: Scheduler,
        behaviour: Behaviour,
        nursery: trio.Nursery,
    ) -> None:
        self._options = options
        self._api_keys = api_keys
        self._names = names
        self._model = model
        self._slot_context = slot_context
        self._scheduler = scheduler
        self._behaviour = behaviour
        self._results = Results()
        self._conversations = Conversations(nursery)
        self._started = int(time.time())
        self.is_loading = True
        plain: dict[tuple[str, str], Route] = {
            ("GET", "/props"): self._props,
            ("GET", "/slots"): self._slots,
            ("GET", "/metrics"): self._metrics,
            ("GET", "/models"): self._models,
            ("GET", "/v1/models"): self._models,
            ("POST", "/chat/completions"): self._chat,
            ("POST", "/v1/chat/completions"): self._chat,
            ("POST", "/v1/completions"): self._completions,
            ("POST", "/tokenize"): self._tokenize,
            ("GET", "/v1/stream"): self._reattach,
            ("DELETE", "/v1/stream"): self._end_stream,
        }
        self._routes = plain | {("POST", path): route for path, route in self._others().items()}

    def _others(self) -> dict[str, Route]:
        """Every route is there always; what the options or the model lack is a 501."""
        other = OtherRoutes(
            name=self._names[0],
            model=self._model,
            scheduler=self._scheduler,
            headers=JSON,
            text=self._text,
        )
        embeds = self._options.has("embedding") or self._options.has("reranking")
        hears = self._options.has("mmproj")
        gated = {
            path: self._only(embeds, route, "embeddings. Start it with `--embeddings`")
            for path, route in other.embedding().items()
        }
        gated["/v1/rerank"] = self._only(
            self._options.has("reranking"),
            other.scoring()["/v1/rerank"],
            "reranking. Start it with `--reranking`",
        )
        for path, route in other.hearing().items():
            gated[path] = self._only(hears, route, "audio input")
        return gated | other.generating()

    def _only(self, there: bool, route: Route, what: str) -> Route:
        async def refuse(exchange: Exchange) -> None:
            message = f"This server does not support {what}"
            await self._error(exchange, 501, message, "not_supported_error")

        return route if there else refuse

    async def answer(self, exchange: Exchange) -> None:
        if exchange.path in _OPEN and exchange.method == "GET":
            await self._health(exchange)
        elif not self._may(exchange):
            await self._error(exchange, 401, "Invalid API Key", "authentication_error")
        elif self.is_loading:
            await self._error(exchange, 503, "Loading model", "unavailable_error")
        else:
            await self._dispatch(exchange)

    def _may(self, exchange: Exchange) -> bool:
        given = bearer_of(exchange) or exchange.headers.get("x-api-key")
        return not self._api_keys or given in self._api_keys

    async def _dispatch(self, exchange: Exchange) -> None:
        route = self._routes.get((exchange.method, exchange.path))
        if route is None:
            await self._error(exchange, 404, "File Not Found", "not_found_error")
            return
        try:
            await route(exchange)
        except BadRequest as error:
            await self._error(exchange, 400, str(error), "invalid_request_error")

    async def _error(self, exchange: Exchange, code: int, message: str, kind: str) -> None:
        await exchange.reply(code, to_json(error_body(message, kind, code)), JSON)

    async def _health(self, exchange: Exchange) -> None:
        if self.is_loading and not self._behaviour.faults.health_too_early:
            await self._error(exchange, 503, "Loading model", "unavailable_error")
        else:
            await exchange.reply(200, b'{"status":"ok"}', JSON)

    async def _props(self, exchange: Exchange) -> None:
        body = {
            "default_generation_settings": {
                "id": 0,
                "id_task": -1,
                "n_ctx": self._slot_context,
                "speculative": False,
                "is_processing": False,
                "params": {"seed": 4294967295, "temperature": 0.8, "n_predict": -1},
            },
            "total_slots": self._scheduler.slots,
            "model_alias": self._names[0],
            "model_path": self._options.text("model"),
            "modalities": {"vision": self._options.has("mmproj"), "audio": False},
            "endpoint_slots": self._has_slots,
            "endpoint_props": self._options.has("props"),
            "endpoint_metrics": self._options.has("metrics"),
            "webui": not self._options.has("no-webui"),
            "chat_template": "{{ messages }}",
            "bos_token": "<s>",
            "eos_token": "</s>",
            "build_info": BUILD,
            "is_sleeping": False,
        }
        await exchange.reply(200, to_json(body), JSON)

    @property
    def _has_slots(self) -> bool:
        return not self._options.has("no-slots")

    async def _slots(self, exchange: Exchange) -> None:
        self._results.post()
        if not self._has_slots:
            message = "This server does not support slots endpoint. Start it with `--slots`"
            await self._error(exchange, 501, message, "not_supported_error")
        elif exchange.query.get("fail_on_no_slot") and (
            len(self._scheduler.running) >= self._scheduler.slots
        ):
            await self._error(exchange, 503, "no slot available", "unavailable_error")
        else:
            body = slots_body(self._scheduler, self._slot_context)
            await exchange.reply(200, to_json(body), JSON)

    async def _metrics(self, exchange: Exchange) -> None:
        if self._options.has("metrics"):
            await exchange.reply(200, metrics_text(self._scheduler), TEXT)
        else:
            message = "This server does not support metrics endpoint. Start it with `--metrics`"
            await self._error(exchange, 501, message, "not_supported_error")

    async def _models(self, exchange: Exchange) -> None:
        body = models_body(self._names, self._model, self._slot_context, self._started)
        await exchange.reply(200, to_json(body), JSON)

    async def _chat(self, exchange: Exchange) -> None:
        await self._openai(exchange, read_text_request(_payload(exchange), is_chat=True))

    async def _completions(self, exchange: Exchange) -> None:
        await self._openai(exchange, read_text_request(_payload(exchange), is_chat=False))

    async def _openai(self, exchange: Exchange, request: TextRequest) -> None:
        await self._text(exchange, request, LlamaShape(request, request.model or self._names[0]))

    async def _text(self, exchange: Exchange, request: TextRequest, shape: Shape) -> None:
        # One model, whatever the request calls it.
        given = prompt_tokens(request.prompt)
        if given >= self._slot_context:
            raise BadRequest(
                f"the request exceeds the available context size ({self._slot_context} tokens), "
                f"with {given} tokens"
            )
        generation = Generation(
            prompt=request.prompt,
            token_count_max=request.token_count_max,
            seed=request.seed,
            ignore_end=request.ignore_end,
            choices=request.choices,
        )
        conversation = exchange.headers.get("x-conversation-id")
        if conversation and request.stream and request.is_chat:
            found = self._conversations.start(conversation, self._scheduler, generation, shape)
            await shape.open_stream(exchange)
            await found.read_to(exchange, 0)
            return
        carry = answer_stream if request.stream else answer_whole

        async def wait_gone() -> None:
            await wait_noticed(exchange, self._results, is_stream=request.stream)
            await trio.sleep(self._behaviour.faults.slow_disconnect_s or 0.0)

        await carry(exchange, self._scheduler, generation, shape, wait_gone)

    async def _reattach(self, exchange: Exchange) -> None:
        found = self._conversations.find(_first(exchange, "conv_id"))
        begin = _first(exchange, "from") or "0"
        if found is None:
            await self._error(exchange, 404, "no such stream", "not_found_error")
        elif not begin.isdecimal():
            raise BadRequest("from must be a number of bytes")
        else:
            await exchange.open_stream(200, [("Content-Type", "text/event-stream")])
            await found.read_to(exchange, int(begin))

    async def _end_stream(self, exchange: Exchange) -> None:
        self._conversations.delete(_first(exchange, "conv_id"))
        await exchange.reply(204, b"", [("Server", "llama.cpp")])

    async def _tokenize(self, exchange: Exchange) -> None:
        payload = _payload(exchange)
        content = payload.get("content", "")
        tokens = list(range(prompt_tokens(str(content)))) if content else []
        await exchange.reply(200, to_json({"tokens": tokens}), JSON)


def _first(exchange: Exchange, name: str) -> str:
    return exchange.query.get(name, [""])[0]


def _payload(exchange: Exchange) -> dict[str, Any]:
    try:
        found = exchange.json()
    except ValueError as error:
        raise BadRequest(f"[json.exception.parse_error.101] parse error: {error}") from error
    if not isinstance(found, dict):
        raise BadRequest("the body is not a JSON object")
    return found
