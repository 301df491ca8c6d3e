"""SGLang's HTTP surface: which paths there are, who may call them, what they answer."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from capyctl.simulated.answering import Shape, answer_stream, answer_whole
from capyctl.simulated.generation import Generation
from capyctl.simulated.http_server import Exchange, bearer_of, to_json
from capyctl.simulated.json_body import payload_of
from capyctl.simulated.openai_request import BadRequest, TextRequest, read_text_request
from capyctl.simulated.other_routes import OtherRoutes
from capyctl.simulated.scripted_text import prompt_tokens
from capyctl.simulated.sglang_control import CONTROL_PATHS, SglangControl
from capyctl.simulated.sglang_shapes import (
    JSON,
    TEXT,
    GenerateShape,
    SglangShape,
    error_body,
    metrics_text,
    models_body,
)
from capyctl.simulated.sglang_state import SglangState

Route = Callable[[Exchange], Awaitable[None]]
_OPEN = ("/health", "/ready", "/metrics")
"""Paths that begin like these need no key."""


class SglangRoutes:
    """Answers every request to one simulated SGLang."""

    def __init__(self, state: SglangState, control: SglangControl) -> None:
        self._state = state
        both: dict[str, Route] = {
            "/release_memory_occupation": control.release,
            "/resume_memory_occupation": control.resume,
            "/flush_cache": control.flush,
            "/weights_checker": control.check_weights,
        }
        posts: dict[str, Route] = both | {
            "/tokenize": self._tokenize,
            **self._inference(),
            "/pause_generation": control.pause,
            "/continue_generation": control.resume_generation,
            "/update_weights_from_disk": control.update_weights,
            "/abort_request": control.abort,
        }
        gets: dict[str, Route] = both | {
            "/health": control.health,
            "/health_generate": control.health,
            "/ready": control.ready,
            "/ping": control.ping,
            "/v1/models": self._models,
            "/model_info": self._model_info,
            "/server_info": control.server_info,
            "/get_server_info": control.server_info,
            "/v1/loads": control.loads,
        }
        if state.options.has("enable-metrics"):
            gets["/metrics"] = self._metrics
        self._routes = {("POST", path): route for path, route in posts.items()} | {
            ("GET", path): route for path, route in gets.items()
        }

    def _inference(self) -> dict[str, Route]:
        """Every route is there always; what its model is not for is a 400."""
        state = self._state
        other = OtherRoutes(
            name=state.name,
            model=state.model,
            scheduler=state.scheduler,
            headers=JSON,
            text=self._text,
            bare_list=True,
        )
        embeds = state.options.has("is-embedding")
        texts = {
            "/v1/chat/completions": self._chat,
            "/v1/completions": self._completions,
            "/generate": self._generate,
            "/v1/score": other.scoring()["/v1/score"],
            **other.generating(),
        }
        numbers = {**other.embedding(), "/v1/rerank": other.scoring()["/v1/rerank"]}
        found = {path: self._only(not embeds, route) for path, route in texts.items()}
        found |= {path: self._only(embeds, route) for path, route in numbers.items()}
        return found | {
            path: self._only(state.model.hears, route) for path, route in other.hearing().items()
        }

    def _only(self, there: bool, route: Route) -> Route:
        embeds = self._state.options.has("is-embedding")

        async def refuse(exchange: Exchange) -> None:
            raise BadRequest(
                "This model does not appear to be an embedding model by default. Please add "
                "`--is-embedding` when launching the server or try another model."
                if not embeds
                else "This route is not for an embedding model."
            )

        return route if there else refuse

    async def answer(self, exchange: Exchange) -> None:
        if not self._may(exchange):
            await exchange.reply(401, b'{"error":"Unauthorized"}', JSON)
        else:
            await self._dispatch(exchange)
        self._state.log_access(exchange)

    def _may(self, exchange: Exchange) -> bool:
        """The admin key alone opens control routes, the inference key all others."""
        state, token = self._state, bearer_of(exchange)
        if exchange.method == "OPTIONS" or exchange.path.startswith(_OPEN):
            return True
        wanted = state.api_key
        if exchange.path in CONTROL_PATHS:
            wanted = state.admin_key or state.api_key
        return wanted is None or token == wanted

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

    async def _models(self, exchange: Exchange) -> None:
        body = models_body(self._state.name, self._state.context_length)
        await exchange.reply(200, to_json(body), JSON)

    async def _model_info(self, exchange: Exchange) -> None:
        generates = not self._state.options.has("is-embedding")
        body = {"model_path": self._state.model.path, "is_generation": generates}
        await exchange.reply(200, to_json(body), JSON)

    async def _chat(self, exchange: Exchange) -> None:
        request = read_text_request(payload_of(exchange), is_chat=True)
        await self._text(exchange, request, SglangShape(request, self._named(request)))

    async def _completions(self, exchange: Exchange) -> None:
        request = read_text_request(payload_of(exchange), is_chat=False)
        await self._text(exchange, request, SglangShape(request, self._named(request)))

    async def _generate(self, exchange: Exchange) -> None:
        payload = payload_of(exchange)
        sampling = payload.get("sampling_params") or {}
        asked: dict[str, Any] = {
            "prompt": payload.get("text", ""),
            "stream": payload.get("stream"),
            "max_tokens": sampling.get("max_new_tokens", 128),
            "ignore_eos": sampling.get("ignore_eos"),
        }
        await self._text(exchange, read_text_request(asked, is_chat=False), GenerateShape())

    def _named(self, request: TextRequest) -> str:
        # SGLang serves whatever model a request names.
        return request.model or self._state.name

    async def _text(self, exchange: Exchange, request: TextRequest, shape: Shape) -> None:
        state = self._state
        length, wanted = state.context_length, request.token_count_max or 1
        given = prompt_tokens(request.prompt)
        if given + wanted > length:
            raise BadRequest(
                f"Requested token count exceeds the model's maximum context length of {length} "
                f"tokens. You requested a total of {given + wanted} tokens."
            )
        generation = Generation(
            prompt=request.prompt,
            token_count_max=request.token_count_max,
            seed=request.seed,
            ignore_end=request.ignore_end,
            choices=request.choices,
        )
        carry = answer_stream if request.stream else answer_whole
        await carry(exchange, state.scheduler, generation, shape, state.wait_gone(exchange))

    async def _tokenize(self, exchange: Exchange) -> None:
        payload = payload_of(exchange)
        request = read_text_request(payload, is_chat="messages" in payload)
        tokens = list(range(prompt_tokens(request.prompt)))
        body = {
            "tokens": tokens,
            "count": len(tokens),
            "max_model_len": self._state.context_length,
        }
        await exchange.reply(200, to_json(body), JSON)

    async def _metrics(self, exchange: Exchange) -> None:
        state = self._state
        text = metrics_text(state.name, state.scheduler, state.token_count_max)
        await exchange.reply(200, text, TEXT)
