"""A simulated SGLang from its command line to its exit code."""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Mapping

import trio

from capyctl.simulated.command_line import Options
from capyctl.simulated.generation import Scheduler
from capyctl.simulated.http_server import HttpServer, bind, listen
from capyctl.simulated.launch_context import LaunchContext, ending_signals, renamed
from capyctl.simulated.local_model import LocalModel
from capyctl.simulated.sglang_control import SglangControl
from capyctl.simulated.sglang_occupancy import Occupancy
from capyctl.simulated.sglang_processes import SglangTree
from capyctl.simulated.sglang_routes import SglangRoutes
from capyctl.simulated.sglang_state import HEALTH_S, SglangState, keys_of, log, write_line
from capyctl.simulated.usage import OutOfMemory

REQUESTS = 256
STATIC_RATIO = 0.88
KEEP_ALIVE_S = 5.0
GROUP_SIGNAL_S = 0.1
_FALSE = ("0", "false", "no", "n")


def run_sglang(
    options: Options,
    *,
    model: LocalModel,
    name: str,
    context: LaunchContext,
    tree: SglangTree,
    env: Mapping[str, str],
) -> int:
    """Until it is told to end, or is killed; the exit code."""
    try:
        bound = bind(options.text("host", "127.0.0.1"), options.number("port", 30000))
    except OSError as error:
        write_line(f"ERROR:    [Errno {error.errno}] {os.strerror(error.errno or 0)}")
        tree.end_workers()
        return 1
    (served,) = renamed((name,), context.behaviour)
    return trio.run(_Sglang(options, model, served, context, tree, env).run, bound)


class _Sglang:
    def __init__(
        self,
        options: Options,
        model: LocalModel,
        name: str,
        context: LaunchContext,
        tree: SglangTree,
        env: Mapping[str, str],
    ) -> None:
        self._behaviour = context.behaviour
        self._tree = tree
        self._forced = env.get("SGL_FORCE_SHUTDOWN", "").lower() in ("1", "true")
        memory = context.memory(tree)
        self._scheduler = Scheduler(
            slots=options.number("max-running-requests", REQUESTS),
            behaviour=context.behaviour,
            weights_id=model.weights_id,
            tree=tree,
        )
        tokens, kv_cache_bytes = _pool(options, model, memory.device_bytes)
        self._occupancy = Occupancy(
            is_enabled=options.has("enable-memory-saver"),
            keeps_copy=options.has("enable-weights-cpu-backup"),
            model_path=model.path,
            behaviour=context.behaviour,
            scheduler=self._scheduler,
            memory=memory,
            weights_bytes=model.weights_bytes,
            kv_cache_bytes=kv_cache_bytes,
            tree=tree,
            log=log,
        )
        api_key, admin_key = keys_of(options, env)
        generates = env.get("SGLANG_ENABLE_HEALTH_ENDPOINT_GENERATION", "true").lower()
        self._state = SglangState(
            options=options,
            name=name,
            model=model,
            behaviour=context.behaviour,
            scheduler=self._scheduler,
            occupancy=self._occupancy,
            api_key=api_key,
            admin_key=admin_key,
            context_length=options.number("context-length", model.context_length),
            token_count_max=tokens,
            health_generates=generates not in _FALSE,
            health_within_s=float(env.get("SGLANG_HEALTH_CHECK_TIMEOUT", HEALTH_S)),
        )
        self._signals = ending_signals(context.behaviour)

    async def run(self, bound: socket.socket) -> int:
        log(f"server_args={self._state.server_args()}")
        async with trio.open_nursery() as nursery:
            control = SglangControl(self._state, nursery)
            server = HttpServer(
                bound, SglangRoutes(self._state, control).answer, keep_alive_s=KEEP_ALIVE_S
            )
            if self._behaviour.faults.health_too_early:
                self._state.status = "Up"
                listen(bound)
                nursery.start_soon(server.serve)
            nursery.start_soon(self._watch_scheduler)
            if not await self._load():
                nursery.cancel_scope.cancel()
                return 1
            # During the launch SIGTERM is death, from here on a polite request.
            with trio.open_signal_receiver(*self._signals) as signals:
                if not self._behaviour.faults.health_too_early:
                    listen(bound)
                    nursery.start_soon(server.serve)
                self._state.status = "Up"
                log("The server is fired up and ready to roll!")
                async for _ in signals:
                    if not self._state.is_exiting:
                        self._state.is_exiting = True
                        nursery.start_soon(self._exit_gracefully, nursery.cancel_scope)
        return 0

    async def _load(self) -> bool:
        """False when memory is short, with the reason in the log."""
        behaviour = self._behaviour
        log(f"Load weight begin. path={self._state.model.path}")
        try:
            self._occupancy.enter("cold")
            if behaviour.faults.never_ready:
                await trio.sleep_forever()
            if behaviour.faults.dies_while_loading:
                await trio.sleep(behaviour.load_s / 2)
                log("RuntimeError: simulated fault: dies_while_loading")
                self._tree.die(behaviour.faults.exit_code)
            await trio.sleep(behaviour.load_s)
            self._occupancy.enter("ready")
        except OutOfMemory as error:
            log(f"torch.OutOfMemoryError: CUDA out of memory. {error}")
            self._tree.end_workers()
            return False
        return True

    async def _watch_scheduler(self) -> None:
        """Its end brings everything down, unless that is on its way anyhow."""
        descriptor = os.pidfd_open(self._tree.scheduler_pid)
        try:
            await trio.lowlevel.wait_readable(descriptor)
        finally:
            os.close(descriptor)
        _reap(self._tree.scheduler_pid)
        await trio.sleep(GROUP_SIGNAL_S)
        if not self._state.is_exiting:
            self._occupancy.crash("Subprocess scheduler_0 crashed with exit code -9")

    async def _exit_gracefully(self, scope: trio.CancelScope) -> None:
        """Waits for what runs, however long; held requests are waited for as well."""
        log(f"Gracefully exiting... Remaining number of requests {self._count_requests()}.")
        waits = not self._forced and self._state.status != "UnHealthy"
        while waits and self._count_requests():
            await self._scheduler.wait_idle()
            await trio.sleep(GROUP_SIGNAL_S)
        self._tree.end_workers()
        scope.cancel()

    def _count_requests(self) -> int:
        scheduler = self._scheduler
        return len(scheduler.running) + len(scheduler.waiting) + len(scheduler.held)


def _reap(pid: int) -> None:
    """Collect a child that has ended."""
    with contextlib.suppress(ChildProcessError):
        os.waitpid(pid, os.WNOHANG)


def _pool(options: Options, model: LocalModel, device_bytes: int) -> tuple[int, int]:
    """Tokens and bytes of the KV pool: as told, or what the static share leaves."""
    per_token = max(1, model.kv_bytes_per_token)
    if options.has("max-total-tokens"):
        tokens = options.number("max-total-tokens", 0)
        return tokens, tokens * model.kv_bytes_per_token
    share = options.ratio("mem-fraction-static", STATIC_RATIO)
    left_bytes = max(0, int(device_bytes * share) - model.weights_bytes)
    return left_bytes // per_token, left_bytes
