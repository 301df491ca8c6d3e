"""SGLang's control routes: pausing, memory occupation, weights, and what it tells of itself."""

from __future__ import annotations

import hashlib

import trio

from capyctl.simulated.engines import SGLANG_VERSION
from capyctl.simulated.http_server import Exchange, to_json
from capyctl.simulated.json_body import payload_of
from capyctl.simulated.openai_request import BadRequest
from capyctl.simulated.sglang_occupancy import ALL_TAGS, PAUSE_MODES
from capyctl.simulated.sglang_shapes import JSON, TEXT, load_row
from capyctl.simulated.sglang_state import SglangState, log

CONTROL_PATHS = frozenset(
    {
        "/pause_generation",
        "/continue_generation",
        "/flush_cache",
        "/release_memory_occupation",
        "/resume_memory_occupation",
        "/update_weights_from_disk",
        "/weights_checker",
        "/abort_request",
    }
)
"""Those that need the admin key, where there is one."""


class SglangControl:
    """``nursery`` runs what goes on after an answer."""

    def __init__(self, state: SglangState, nursery: trio.Nursery) -> None:
        self._state = state
        self._nursery = nursery

    async def pause(self, exchange: Exchange) -> None:
        mode = payload_of(exchange).get("mode", "abort")
        if mode not in PAUSE_MODES:
            raise BadRequest(f"mode must be one of {', '.join(PAUSE_MODES)}")
        await self._state.occupancy.pause(mode)
        words = {"message": "Generation paused successfully.", "status": "ok"}
        await exchange.reply(200, to_json(words), JSON)

    async def resume_generation(self, exchange: Exchange) -> None:
        payload_of(exchange)
        self._state.occupancy.resume_generation()
        words = {"message": "Generation continued successfully.", "status": "ok"}
        await exchange.reply(200, to_json(words), JSON)

    async def flush(self, exchange: Exchange) -> None:
        done = self._state.occupancy.flush()
        text = b"Cache flushed.\n" if done else b"Flush cache failed.\n"
        await exchange.reply(200 if done else 400, text, TEXT)

    async def release(self, exchange: Exchange) -> None:
        tags = _tags(exchange)
        if self._state.behaviour.faults.refuses_park:
            await exchange.reply(500, to_json({"error": {"message": "refuses_park"}}), JSON)
            return
        await self._state.occupancy.release(tags, self._nursery)
        await exchange.reply(200, b"null", JSON)

    async def resume(self, exchange: Exchange) -> None:
        await self._state.occupancy.resume(_tags(exchange))
        await exchange.reply(200, b"null", JSON)

    async def update_weights(self, exchange: Exchange) -> None:
        path = payload_of(exchange).get("model_path")
        if not isinstance(path, str):
            raise BadRequest("model_path is required", "model_path")
        success, message = await self._state.occupancy.update_weights(path)
        words = {"success": success, "message": message, "num_paused_requests": 0}
        await exchange.reply(200 if success else 400, to_json(words), JSON)

    async def check_weights(self, exchange: Exchange) -> None:
        good = b"good" if self._state.scheduler.weights_good else b"garbage"
        checksum = hashlib.sha256(self._state.model.weights_id + good).hexdigest()
        words = {"success": True, "message": "Success.", "per_engine_checksum": checksum}
        await exchange.reply(200, to_json(words), JSON)

    async def abort(self, exchange: Exchange) -> None:
        if payload_of(exchange).get("abort_all") is True:
            self._state.scheduler.interrupt_all(finish="abort")
        await exchange.reply(200, b"", JSON)

    async def health(self, exchange: Exchange) -> None:
        """A token is really generated: on memory that is gone, if it was released."""
        state = self._state
        if state.is_exiting or state.status == "Starting":
            await exchange.reply(503, b"", TEXT)
            return
        if not state.health_generates and exchange.path == "/health":
            await exchange.reply(200, b"", TEXT)
            return
        if state.scheduler.is_paused:
            with trio.move_on_after(state.health_within_s) as waited:
                await exchange.hung_up.wait()
            if waited.cancelled_caught:
                log("Health check failed. Server couldn't get a response from detokenizer.")
                state.status = "UnHealthy"
            await exchange.reply(503, b"", TEXT)
            return
        if not state.scheduler.memory_mapped:
            state.scheduler.on_unmapped()
        state.status = "Up"
        await exchange.reply(200, b"", TEXT)

    async def ready(self, exchange: Exchange) -> None:
        state = self._state
        is_up = state.status == "Up" and not state.is_exiting
        ready = is_up and not state.scheduler.is_paused
        await exchange.reply(200 if ready else 503, b"", TEXT)

    async def ping(self, exchange: Exchange) -> None:
        is_up = self._state.status == "Up" and not self._state.is_exiting
        await exchange.reply(200 if is_up else 503, b"", TEXT)

    async def server_info(self, exchange: Exchange) -> None:
        state = self._state
        internal = {"effective_max_running_requests_per_dp": state.scheduler.slots}
        words = state.server_args() | {
            "status": state.status,
            "version": SGLANG_VERSION,
            "internal_states": [internal],
        }
        await exchange.reply(200, to_json(words), JSON)

    async def loads(self, exchange: Exchange) -> None:
        row = load_row(self._state.scheduler, self._state.token_count_max)
        words = {"version": SGLANG_VERSION, "dp_rank_count": 1, "loads": [row]}
        await exchange.reply(200, to_json(words), JSON)


def _tags(exchange: Exchange) -> list[str]:
    tags = payload_of(exchange).get("tags") or []
    if not isinstance(tags, list) or not set(tags) <= set(ALL_TAGS):
        raise BadRequest(f"tags must be some of {', '.join(ALL_TAGS)}", "tags")
    return tags
