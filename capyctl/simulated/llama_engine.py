"""A simulated llama-server from its command line to its exit code."""

from __future__ import annotations

import contextlib
import socket
import sys
import time
from collections.abc import Mapping
from pathlib import Path

import trio

from capyctl.simulated.command_line import Options
from capyctl.simulated.engine_memory import Sizes
from capyctl.simulated.generation import Scheduler
from capyctl.simulated.http_server import HttpServer, bind, listen
from capyctl.simulated.launch_context import LaunchContext, ending_signals, renamed
from capyctl.simulated.llama_routes import LlamaRoutes
from capyctl.simulated.local_model import LocalModel
from capyctl.simulated.process_tree import ProcessTree
from capyctl.simulated.usage import OutOfMemory

SLOTS = 4
KEEP_ALIVE_S = 5.0
_CACHE_BYTES = {
    "f32": 4.0,
    "q8_0": 34 / 32,
    "q4_0": 18 / 32,
    "iq4_nl": 18 / 32,
    "q4_1": 20 / 32,
    "q5_0": 22 / 32,
    "q5_1": 24 / 32,
}
"""Per value; two bytes for every other type."""

_started_s = time.monotonic()


def log(text: str, *, level: str = "I") -> None:
    """One line as llama-server writes it, to standard error: time since the start, level."""
    passed = time.monotonic() - _started_s
    whole = int(passed * 1_000_000)
    at = f"{passed // 60:.0f}.{whole // 1_000_000 % 60:02}.{whole // 1000 % 1000:03}"
    with contextlib.suppress(OSError, ValueError):
        print(f"{at}.{whole % 1000:03} {level} {text}", file=sys.stderr, flush=True)


def run_llama(
    options: Options,
    *,
    model: LocalModel | None,
    names: tuple[str, ...],
    context: LaunchContext,
    tree: ProcessTree,
    env: Mapping[str, str],
) -> int:
    """Until it is told to end, or dies; the exit code."""
    host, port = options.text("host", "127.0.0.1"), options.number("port", 8080)
    try:
        bound = bind(host, port)
        listen(bound)
    except OSError:
        log(f"srv  start: couldn't bind HTTP server socket, hostname: {host}, port: {port}")
        return 1
    if model is None:
        path = options.text("model")
        log(f"llama_model_load: error loading model: failed to open {path}", level="E")
        log("main: exiting due to model loading error", level="E")
        return 1
    engine = _Llama(options, model, renamed(names, context.behaviour), context, tree, env)
    return trio.run(engine.run, bound)


class _Llama:
    def __init__(
        self,
        options: Options,
        model: LocalModel,
        names: tuple[str, ...],
        context: LaunchContext,
        tree: ProcessTree,
        env: Mapping[str, str],
    ) -> None:
        self._options = options
        self._model = model
        self._names = names
        self._behaviour = context.behaviour
        self._signals = ending_signals(context.behaviour)
        self._tree = tree
        self._memory = context.memory(tree)
        self._api_keys = _api_keys(options, env)
        slots = max(1, options.number("parallel", SLOTS)) if options.has("parallel") else SLOTS
        total = options.number("ctx-size", 0) or model.context_length
        per_slot = total if options.has("kv-unified") else total // slots
        self._slot_context = max(1, min(per_slot, model.context_length))
        self._kv_cache_bytes = _kv_cache_bytes(options, model, total)
        self._scheduler = Scheduler(
            slots=slots, behaviour=context.behaviour, weights_id=model.weights_id, tree=tree
        )

    async def run(self, bound: socket.socket) -> int:
        async with trio.open_nursery() as nursery:
            routes = LlamaRoutes(
                options=self._options,
                api_keys=self._api_keys,
                names=self._names,
                model=self._model,
                slot_context=self._slot_context,
                scheduler=self._scheduler,
                behaviour=self._behaviour,
                nursery=nursery,
            )
            server = HttpServer(bound, routes.answer, keep_alive_s=KEEP_ALIVE_S)
            nursery.start_soon(server.serve)
            if not await self._load():
                nursery.cancel_scope.cancel()
                return 1
            routes.is_loading = False
            # Only from here on is SIGTERM more than death: while loading it is -15.
            with trio.open_signal_receiver(*self._signals) as signals:
                log("main: server is listening")
                async for _ in signals:
                    log("srv  operator(): cleaning up before exit...")
                    server.cut_all()
                    nursery.cancel_scope.cancel()
                    break
        return 0

    async def _load(self) -> bool:
        """False when memory is short, with the reason in the log."""
        behaviour = self._behaviour
        sizes = Sizes(weights_bytes=self._model.weights_bytes, kv_cache_bytes=self._kv_cache_bytes)
        log(f"srv  load_model: loading model '{self._model.path}'")
        try:
            self._memory.enter("cold", sizes)
            if behaviour.faults.never_ready:
                await trio.sleep_forever()
            if behaviour.faults.dies_while_loading:
                await trio.sleep(behaviour.load_s / 2)
                log("llama_model_load: error: simulated fault: dies_while_loading", level="E")
                self._tree.die(behaviour.faults.exit_code)
            await trio.sleep(behaviour.load_s)
            self._memory.enter("ready", sizes)
        except OutOfMemory as error:
            mib = error.wanted_bytes / (1 << 20)
            log(
                "ggml_backend_cuda_buffer_type_alloc_buffer: "
                f"allocating {mib:.2f} MiB on device 0: cudaMalloc failed: out of memory "
                f"({error.free_bytes / (1 << 20):.2f} MiB free on {error.domain})",
                level="E",
            )
            log("main: exiting due to model loading error", level="E")
            return False
        return True


def _kv_cache_bytes(options: Options, model: LocalModel, tokens: int) -> int:
    key = _CACHE_BYTES.get(options.text("cache-type-k", "f16"), 2.0)
    value = _CACHE_BYTES.get(options.text("cache-type-v", "f16"), 2.0)
    return int(model.kv_bytes_per_token * tokens * (key + value) / 4)


def _api_keys(options: Options, env: Mapping[str, str]) -> frozenset[str]:
    found = options.text("api-key", env.get("LLAMA_API_KEY", "")).split(",")
    path = options.text("api-key-file")
    if path:
        with contextlib.suppress(OSError):
            found += Path(path).read_text().splitlines()
    return frozenset(key.strip() for key in found if key.strip())
