"""A simulated TensorFold from its command line to its exit code. It never parks."""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Mapping

import trio

from capyctl.simulated.command_line import Options
from capyctl.simulated.engine_memory import EngineMemory, Sizes
from capyctl.simulated.generation import Scheduler
from capyctl.simulated.http_server import HttpServer, bind, listen
from capyctl.simulated.launch_context import LaunchContext, ending_signals, renamed
from capyctl.simulated.local_model import LocalModel
from capyctl.simulated.process_tree import ProcessTree
from capyctl.simulated.tensorfold_routes import TensorfoldRoutes, TensorfoldState
from capyctl.simulated.usage import OutOfMemory

PARALLEL = 8
GIB_VARIABLE = "TENSORFOLD_CUDA_MEMORY_LIMIT_GB"


def run_tensorfold(
    options: Options,
    *,
    model: LocalModel,
    name: str,
    context: LaunchContext,
    tree: ProcessTree,
    env: Mapping[str, str],
) -> int:
    """Until it is told to end, or dies; the exit code."""
    try:
        bound = bind(options.text("host", "127.0.0.1"), options.number("port", 8080))
    except OSError as error:
        _say(f"tensorfold: {os.strerror(error.errno or 0)}")
        return 1
    (served,) = renamed((name,), context.behaviour)
    scheduler = Scheduler(
        slots=options.number("parallel", PARALLEL),
        behaviour=context.behaviour,
        weights_id=model.weights_id,
        tree=tree,
    )
    state = TensorfoldState(
        name=served,
        model=model,
        behaviour=context.behaviour,
        scheduler=scheduler,
        context_length=options.number("context", model.context_length),
    )
    engine = _Tensorfold(state, context, tree, _limit_bytes(env))
    return trio.run(engine.run, bound)


def _limit_bytes(env: Mapping[str, str]) -> int | None:
    stated = env.get(GIB_VARIABLE)
    return None if not stated else int(float(stated) * (1 << 30))


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


class _Tensorfold:
    def __init__(
        self,
        state: TensorfoldState,
        context: LaunchContext,
        tree: ProcessTree,
        limit_bytes: int | None,
    ) -> None:
        self._state = state
        self._behaviour = context.behaviour
        self._tree = tree
        self._memory: EngineMemory = context.memory(tree)
        weights = state.model.weights_bytes
        cache_bytes = state.scheduler.slots * state.context_length * state.model.kv_bytes_per_token
        if limit_bytes is not None:
            cache_bytes = max(0, min(cache_bytes, limit_bytes - weights))
        self._sizes = Sizes(weights_bytes=weights, kv_cache_bytes=cache_bytes)
        self._signals = ending_signals(context.behaviour)

    async def run(self, bound: socket.socket) -> int:
        async with trio.open_nursery() as nursery:
            server = HttpServer(bound, TensorfoldRoutes(self._state).answer)
            if self._behaviour.faults.health_too_early:
                listen(bound)
                nursery.start_soon(server.serve)
            if not await self._load():
                nursery.cancel_scope.cancel()
                return 1
            with trio.open_signal_receiver(*self._signals) as signals:
                if not self._behaviour.faults.health_too_early:
                    listen(bound)
                    nursery.start_soon(server.serve)
                _say(f"tensorfold: serving {self._state.name}")
                async for _ in signals:
                    break
            # How the real one treats open streams is not known; here they are cut.
            nursery.cancel_scope.cancel()
        return 0

    async def _load(self) -> bool:
        """False when memory is short, with the reason in the log."""
        faults = self._behaviour.faults
        _say("tensorfold: building kernels")
        try:
            self._memory.enter("cold", self._sizes)
            if faults.never_ready:
                await trio.sleep_forever()
            if faults.dies_while_loading:
                await trio.sleep(self._behaviour.load_s / 2)
                self._tree.die(faults.exit_code)
            await trio.sleep(self._behaviour.load_s)
            self._memory.enter("ready", self._sizes)
        except OutOfMemory as error:
            _say(f"tensorfold: CUDA out of memory: {error}")
            return False
        self._state.is_loading = False
        return True
