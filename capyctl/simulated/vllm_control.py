"""vLLM's control routes, mounted in dev mode only: sleep, wake, pause, reload, checks."""

from __future__ import annotations

import hashlib
from collections.abc import Awaitable, Callable
from typing import Any

import trio

from capyctl.simulated.http_server import Exchange, to_json
from capyctl.simulated.vllm_shapes import JSON, error_body
from capyctl.simulated.vllm_sleep import MODES, ControlFailed
from capyctl.simulated.vllm_state import VllmState

Route = Callable[[Exchange], Awaitable[None]]
_WEIGHT = "model.embed_tokens.weight"


class ControlRoutes:
    """``nursery`` runs what goes on after an answer."""

    def __init__(self, state: VllmState, nursery: trio.Nursery) -> None:
        self._state = state
        self._nursery = nursery

    def routes(self) -> dict[tuple[str, str], Route]:
        posts: dict[str, Callable[[Exchange], Awaitable[dict[str, Any]]]] = {
            "/sleep": self._sleep,
            "/wake_up": self._wake_up,
            "/release_kv_cache_memory": self._release_kv_cache,
            "/collective_rpc": self._collective_rpc,
            "/reset_prefix_cache": self._reset,
            "/reset_mm_cache": self._reset,
            "/reset_encoder_cache": self._reset,
            "/pause": self._pause,
            "/resume": self._resume,
            "/abort_requests": self._abort_requests,
            "/weight_checker": self._weight_checker,
        }
        gets = {
            "/is_sleeping": self._is_sleeping,
            "/is_paused": self._is_paused,
            "/server_info": self._server_info,
            "/weight_info": self._weight_info,
        }
        return {("POST", path): self._route(call) for path, call in posts.items()} | {
            ("GET", path): self._route(call) for path, call in gets.items()
        }

    def _route(self, call: Callable[[Exchange], Awaitable[dict[str, Any]]]) -> Route:
        async def route(exchange: Exchange) -> None:
            status, body = 200, {}
            try:
                if self._state.dead:
                    raise ControlFailed(self._state.dead)
                body = await call(exchange)
            except ControlFailed as error:
                if error.is_fatal:
                    self._state.fail(str(error))
                status, body = 500, error_body(str(error), "InternalServerError", 500)
            except ValueError as error:
                status, body = 400, error_body(str(error), "BadRequestError", 400)
            await exchange.reply(status, to_json(body), JSON)

        return route

    async def _sleep(self, exchange: Exchange) -> dict[str, Any]:
        text = exchange.query.get("level", ["1"])[-1]
        if text not in ("0", "1", "2"):
            raise ValueError(f"level must be 0, 1 or 2, not {text}")
        mode = _mode(exchange)
        await self._state.sleep.sleep(int(text), mode, self._nursery)
        return {"status": "sleeping", "level": int(text)}

    async def _wake_up(self, exchange: Exchange) -> dict[str, Any]:
        tags = exchange.query.get("tags", [])
        await self._state.sleep.wake(tags)
        asleep = self._state.sleep.is_sleeping
        return {"status": "sleeping" if asleep else "awake", "tags": tags or None}

    async def _is_sleeping(self, exchange: Exchange) -> dict[str, Any]:
        return {"is_sleeping": self._state.sleep.is_sleeping}

    async def _is_paused(self, exchange: Exchange) -> dict[str, Any]:
        return {"is_paused": self._state.scheduler.is_paused}

    async def _pause(self, exchange: Exchange) -> dict[str, Any]:
        await self._state.sleep.pause(_mode(exchange))
        return {"status": "paused"}

    async def _resume(self, exchange: Exchange) -> dict[str, Any]:
        # On a sleeping engine this lets requests run on memory that is gone, as it really does.
        self._state.scheduler.resume()
        return {"status": "resumed"}

    async def _release_kv_cache(self, exchange: Exchange) -> dict[str, Any]:
        self._state.sleep.release_kv_cache()
        return {"status": "kv_cache_released"}

    async def _collective_rpc(self, exchange: Exchange) -> dict[str, Any]:
        payload = _payload(exchange)
        method = payload.get("method")
        if not isinstance(method, str):
            raise ValueError("Missing 'method' in request body")
        if method != "reload_weights":
            raise ControlFailed(f"Method '{method}' is not implemented.")
        await self._state.sleep.reload_weights()
        return {"results": [None]}

    async def _reset(self, exchange: Exchange) -> dict[str, Any]:
        return {"success": True}

    async def _abort_requests(self, exchange: Exchange) -> dict[str, Any]:
        self._state.scheduler.interrupt_all(finish="abort")
        return {"status": "aborted"}

    async def _weight_checker(self, exchange: Exchange) -> dict[str, Any]:
        payload = _payload(exchange)
        checksums = {_WEIGHT: self._checksum()}
        if payload.get("action") == "checksum":
            return {"checksums": checksums}
        if payload.get("action") == "compare":
            baseline = payload.get("baseline")
            if not isinstance(baseline, dict):
                raise ValueError("compare needs a baseline")
            found = baseline.get("checksums", baseline)
            mismatches = [name for name in checksums if found.get(name) != checksums[name]]
            return {"match": not mismatches, "mismatches": mismatches}
        raise ValueError("action must be checksum or compare")

    def _checksum(self) -> str:
        state = b"good" if self._state.scheduler.weights_good else b"garbage"
        return hashlib.sha256(self._state.model.weights_id + state).hexdigest()

    async def _weight_info(self, exchange: Exchange) -> dict[str, Any]:
        return {"weights": [{"name": _WEIGHT, "bytes": self._state.model.weights_bytes}]}

    async def _server_info(self, exchange: Exchange) -> dict[str, Any]:
        config = f"model='{self._state.model.path}', max_seq_len={self._state.context_length}"
        return {"vllm_config": config}


def _mode(exchange: Exchange) -> str:
    mode = exchange.query.get("mode", ["abort"])[-1]
    if mode not in MODES:
        raise ValueError(f"mode must be one of {', '.join(MODES)}, not {mode}")
    return mode


def _payload(exchange: Exchange) -> dict[str, Any]:
    found = exchange.json()
    if not isinstance(found, dict):
        raise ValueError("the body is not a JSON object")
    return found
