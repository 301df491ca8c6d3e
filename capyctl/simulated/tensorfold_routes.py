"""TensorFold's HTTP surface. Its sleep routes are disabled, so they are not found."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import attrs
import trio

from capyctl.simulated.answering import Shape, WaitGone, answer_stream, answer_whole
from capyctl.simulated.behaviour import Behaviour
from capyctl.simulated.generation import Generation, Scheduler
from capyctl.simulated.http_server import Exchange, to_json
from capyctl.simulated.json_body import payload_of
from capyctl.simulated.local_model import LocalModel
from capyctl.simulated.openai_request import BadRequest, TextRequest, read_text_request
from capyctl.simulated.other_routes import OtherRoutes
from capyctl.simulated.scripted_text import prompt_tokens
from capyctl.simulated.tensorfold_shapes import (
    JSON,
    TEXT,
    TensorfoldShape,
    error_body,
    metrics_text,
)

Route = Callable[[Exchange], Awaitable[None]]


@attrs.define(eq=False, kw_only=True)
class TensorfoldState:
    """What one simulated TensorFold knows of itself."""

    name: str
    model: LocalModel
    behaviour: Behaviour
    scheduler: Scheduler
    context_length: int
    is_loading: bool = True


class TensorfoldRoutes:
    """Answers every request to one simulated TensorFold."""

    def __init__(self, state: TensorfoldState) -> None:
        self._state = state
        self._routes: dict[tuple[str, str], Route] = {
            ("GET", "/health"): self._health,
            ("GET", "/metrics"): self._metrics,
            ("GET", "/v1/models"): self._models,
            ("POST", "/v1/chat/completions"): self._chat,
            ("POST", "/v1/completions"): self._completions,
            ("POST", "/tokenize"): self._tokenize,
        }
        other = OtherRoutes(
            name=state.name,
            model=state.model,
            scheduler=state.scheduler,
            headers=JSON,
            text=self._text,
        ).generating()
        for path in ("/v1/responses", "/v1/messages"):
            self._routes["POST", path] = other[path]

    async def answer(self, exchange: Exchange) -> None:
        route = self._routes.get((exchange.method, exchange.path))
        if route is None:
            await exchange.reply(404, to_json(error_body("not found")), JSON)
            return
        if self._state.is_loading and exchange.path != "/health":
            await exchange.reply(503, to_json(error_body("model is loading")), JSON)
            return
        try:
            await route(exchange)
        except BadRequest as error:
            await exchange.reply(400, to_json(error_body(str(error))), JSON)

    async def _health(self, exchange: Exchange) -> None:
        running = len(self._state.scheduler.running)
        body = {"ok": True, "requests_running": running, "busy": running > 0}
        await exchange.reply(200, to_json(body), JSON)

    async def _metrics(self, exchange: Exchange) -> None:
        await exchange.reply(200, metrics_text(self._state.scheduler), TEXT)

    async def _models(self, exchange: Exchange) -> None:
        row = {"id": self._state.name, "object": "model", "owned_by": "tensorfold"}
        await exchange.reply(200, to_json({"object": "list", "data": [row]}), JSON)

    async def _chat(self, exchange: Exchange) -> None:
        await self._openai(exchange, read_text_request(payload_of(exchange), is_chat=True))

    async def _completions(self, exchange: Exchange) -> None:
        await self._openai(exchange, read_text_request(payload_of(exchange), is_chat=False))

    async def _openai(self, exchange: Exchange, request: TextRequest) -> None:
        shape = TensorfoldShape(request, request.model or self._state.name)
        await self._text(exchange, request, shape)

    async def _text(self, exchange: Exchange, request: TextRequest, shape: Shape) -> None:
        state = self._state
        if prompt_tokens(request.prompt) >= state.context_length:
            raise BadRequest(f"the prompt is longer than {state.context_length} tokens")
        generation = Generation(
            prompt=request.prompt,
            token_count_max=request.token_count_max,
            seed=request.seed,
            ignore_end=request.ignore_end,
            choices=request.choices,
        )
        carry = answer_stream if request.stream else answer_whole
        await carry(exchange, state.scheduler, generation, shape, self._wait_gone(exchange))

    def _wait_gone(self, exchange: Exchange) -> WaitGone:
        delay_s = self._state.behaviour.faults.slow_disconnect_s or 0.0

        async def wait() -> None:
            await exchange.hung_up.wait()
            await trio.sleep(delay_s)

        return wait

    async def _tokenize(self, exchange: Exchange) -> None:
        payload: dict[str, Any] = payload_of(exchange)
        count = prompt_tokens(str(payload.get("content") or payload.get("prompt") or ""))
        await exchange.reply(200, to_json({"tokens": list(range(count)), "count": count}), JSON)
