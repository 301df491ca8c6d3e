"""vLLM's HTTP surface: which paths there are, who may call them, what they answer."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from capyctl.simulated.answering import Shape, answer_stream, answer_whole
from capyctl.simulated.engines import VLLM_VERSION
from capyctl.simulated.generation import Generation
from capyctl.simulated.http_server import Exchange, bearer_of, to_json
from capyctl.simulated.openai_request import BadRequest, TextRequest, read_text_request
from capyctl.simulated.other_routes import OtherRoutes, model_in
from capyctl.simulated.scripted_text import WORDS, prompt_tokens
from capyctl.simulated.vllm_control import ControlRoutes
from capyctl.simulated.vllm_shapes import (
    DEAD,
    JSON,
    TEXT,
    VllmShape,
    error_body,
    metrics_text,
    models_body,
)
from capyctl.simulated.vllm_state import VllmState

_KEYED = ("/v1", "/v2", "/inference", "/cohere")
_KEYED_BY_GUARD = (*_KEYED, "/tokenize", "/metrics")
_OPEN = ("/health", "/ping", "/version")

Route = Callable[[Exchange], Awaitable[None]]


class VllmRoutes:
    """Answers every request to one simulated vLLM."""

    def __init__(self, state: VllmState, env: Mapping[str, str], control: ControlRoutes) -> None:
        self._state = state
        self._api_keys = frozenset(filter(None, (env.get("VLLM_API_KEY"), *state.api_keys)))
        self._engine_key = env.get("CAPYCTL_ENGINE_API_KEY")
        self._admin_key = env.get("CAPYCTL_VLLM_ADMIN_KEY")
        self._routes: dict[tuple[str, str], Route] = {
            ("GET", "/health"): self._health,
            ("GET", "/ping"): self._health,
            ("POST", "/ping"): self._health,
            ("GET", "/version"): self._version,
            ("GET", "/v1/models"): self._models,
            ("POST", "/tokenize"): self._tokenize,
            ("POST", "/detokenize"): self._detokenize,
            ("GET", "/metrics"): self._metrics,
            ("GET", "/load"): self._load,
            ("GET", "/openapi.json"): self._openapi,
        }
        self._routes |= {("POST", path): route for path, route in self._inference().items()}
        if env.get("VLLM_SERVER_DEV_MODE") == "1":
            self._routes |= control.routes()

    def _inference(self) -> dict[str, Route]:
        """What the runner and the model can do, as vLLM mounts it."""
        state = self._state
        other = OtherRoutes(
            name=state.names[0],
            model=state.model,
            scheduler=state.scheduler,
            headers=JSON,
            text=self._text,
        )
        if state.options.text("runner") == "pooling":
            found = {**other.embedding(), **other.scoring()}
        else:
            own = {"/v1/chat/completions": self._chat, "/v1/completions": self._completions}
            found = {**own, **other.generating(), **(other.hearing() if state.model.hears else {})}
        return {path: self._checked(route) for path, route in found.items()}

    def _checked(self, route: Route) -> Route:
        async def answer(exchange: Exchange) -> None:
            if await self._serves(exchange, model_in(exchange)):
                await route(exchange)

        return answer

    async def answer(self, exchange: Exchange) -> None:
        state = self._state
        if not self._may(exchange):
            await exchange.reply(401, b'{"error":"Unauthorized"}', JSON)
        elif state.is_loading and exchange.path != "/health":
            exchange.cut()
        elif state.is_draining:
            body = error_body("Engine is shutting down", "InternalServerError", 500)
            await exchange.reply(500, to_json(body), JSON)
        else:
            await self._dispatch(exchange)
        if not state.quiet_paths.intersection((exchange.path, "*")):
            state.log_access(exchange)

    def _may(self, exchange: Exchange) -> bool:
        token = bearer_of(exchange)
        if self._admin_key and token == self._admin_key:
            return True
        if self._engine_key and _under(exchange.path, _KEYED_BY_GUARD):
            return token == self._engine_key
        if self._api_keys and _under(exchange.path, _KEYED):
            return token in self._api_keys
        if self._admin_key and exchange.path not in _OPEN:
            return _under(exchange.path, _KEYED_BY_GUARD)
        return True

    async def _dispatch(self, exchange: Exchange) -> None:
        route = self._routes.get((exchange.method, exchange.path))
        if route is not None:
            try:
                await route(exchange)
            except BadRequest as error:
                body = error_body(str(error), "BadRequestError", 400, error.param)
                await exchange.reply(400, to_json(body), JSON)
        elif any(path == exchange.path for _, path in self._routes):
            await exchange.reply(405, b'{"detail":"Method Not Allowed"}', JSON)
        else:
            await exchange.reply(404, b'{"detail":"Not Found"}', JSON)

    async def _health(self, exchange: Exchange) -> None:
        status = 503 if self._state.dead else 200
        await exchange.reply(status, b"", [("server", "uvicorn")])

    async def _version(self, exchange: Exchange) -> None:
        await exchange.reply(200, to_json({"version": VLLM_VERSION}), JSON)

    async def _models(self, exchange: Exchange) -> None:
        state = self._state
        body = models_body(state.names, state.model.path, state.context_length)
        await exchange.reply(200, to_json(body), JSON)

    async def _chat(self, exchange: Exchange) -> None:
        await self._openai(exchange, read_text_request(_payload(exchange), is_chat=True))

    async def _completions(self, exchange: Exchange) -> None:
        await self._openai(exchange, read_text_request(_payload(exchange), is_chat=False))

    async def _openai(self, exchange: Exchange, request: TextRequest) -> None:
        name, request_id = self._state.names[0], exchange.headers.get("x-request-id")
        await self._text(exchange, request, VllmShape(request, request.model or name, request_id))

    async def _text(self, exchange: Exchange, request: TextRequest, shape: Shape) -> None:
        state = self._state
        self._check_length(request)
        generation = Generation(
            prompt=request.prompt,
            token_count_max=request.token_count_max,
            seed=request.seed,
            ignore_end=request.ignore_end,
            choices=request.choices,
        )
        carry = answer_stream if request.stream else answer_whole
        with state.counted_load():
            await carry(exchange, state.scheduler, generation, shape, state.wait_gone(exchange))

    async def _serves(self, exchange: Exchange, model: str | None) -> bool:
        """Refuse a dead engine and a model that is not served."""
        if self._state.dead:
            body = error_body(DEAD, "InternalServerError", 500)
            await exchange.reply(500, to_json(body), JSON)
            return False
        if model is not None and model not in self._state.names:
            message = f"The model `{model}` does not exist."
            body = error_body(message, "NotFoundError", 404, "model")
            await exchange.reply(404, to_json(body), JSON)
            return False
        return True

    def _check_length(self, request: TextRequest) -> None:
        length, wanted = self._state.context_length, request.token_count_max or 1
        given = prompt_tokens(request.prompt)
        if given + wanted > length:
            raise BadRequest(
                f"This model's maximum context length is {length} tokens. However, you requested "
                f"{wanted} output tokens and your prompt contains {given} input tokens.",
                "max_tokens",
            )

    async def _tokenize(self, exchange: Exchange) -> None:
        payload = _payload(exchange)
        request = read_text_request(payload, is_chat="messages" in payload)
        tokens = list(range(prompt_tokens(request.prompt)))
        body = {
            "count": len(tokens),
            "max_model_len": self._state.context_length,
            "tokens": tokens,
            "token_strs": None,
        }
        await exchange.reply(200, to_json(body), JSON)

    async def _detokenize(self, exchange: Exchange) -> None:
        tokens = _payload(exchange).get("tokens")
        if not isinstance(tokens, list) or not all(isinstance(token, int) for token in tokens):
            raise BadRequest("tokens must be a list of numbers", "tokens")
        text = " ".join(WORDS[token % len(WORDS)] for token in tokens)
        await exchange.reply(200, to_json({"prompt": text}), JSON)

    async def _metrics(self, exchange: Exchange) -> None:
        state = self._state
        text = metrics_text(state.names[0], state.scheduler, state.sleep.state)
        await exchange.reply(200, text if state.has_stats else b"", TEXT)

    async def _load(self, exchange: Exchange) -> None:
        await exchange.reply(200, to_json({"server_load": self._state.server_load}), JSON)

    async def _openapi(self, exchange: Exchange) -> None:
        paths: dict[str, dict[str, Any]] = {}
        for method, path in self._routes:
            paths.setdefault(path, {})[method.lower()] = {}
        body = {"openapi": "3.1.0", "info": {"title": "FastAPI"}, "paths": paths}
        await exchange.reply(200, to_json(body), JSON)


def _under(path: str, prefixes: tuple[str, ...]) -> bool:
    return any(path == prefix or path.startswith(f"{prefix}/") for prefix in prefixes)


def _payload(exchange: Exchange) -> dict[str, Any]:
    kind = exchange.headers.get("content-type", "application/json").split(";")[0].strip()
    if kind != "application/json":
        raise BadRequest("Unsupported Media Type: Only 'application/json' is allowed")
    try:
        found = exchange.json()
    except (json.JSONDecodeError, UnicodeDecodeError, ValueError) as error:
        raise BadRequest(f"JSON decode error: {error}") from error
    if not isinstance(found, dict):
        raise BadRequest("the body is not a JSON object")
    return found
