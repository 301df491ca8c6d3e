"""A simulated vLLM from its command line to its exit code."""

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
from capyctl.simulated.process_tree import ProcessTree
from capyctl.simulated.vllm_control import ControlRoutes
from capyctl.simulated.vllm_routes import VllmRoutes
from capyctl.simulated.vllm_shapes import DEAD
from capyctl.simulated.vllm_sleep import ILLEGAL_ACCESS, ControlFailed, Sleep
from capyctl.simulated.vllm_state import VllmState, log, write_line

SEQUENCES = 256
UTILIZATION = 0.92
KEEP_ALIVE_S = 5.0
GROUP_SIGNAL_S = 0.1


def run_vllm(
    options: Options,
    *,
    model: LocalModel,
    names: tuple[str, ...],
    context: LaunchContext,
    tree: ProcessTree,
    env: Mapping[str, str],
) -> int:
    """Until it is told to end, or dies; the exit code."""
    try:
        bound = bind(options.text("host", "0.0.0.0"), options.number("port", 8000))
    except OSError as error:
        write_line(f"OSError: [Errno {error.errno}] {os.strerror(error.errno or 0)}")
        tree.end_workers()
        return 1
    engine = _Vllm(options, model, renamed(names, context.behaviour), context, tree, env)
    return trio.run(engine.run, bound)


def _sizes(options: Options, model: LocalModel, device_bytes: int) -> int:
    """KV cache bytes: as told, or what the share of the device leaves beside the weights."""
    if options.has("kv-cache-memory-bytes"):
        return options.number("kv-cache-memory-bytes", 0)
    share = options.ratio("gpu-memory-utilization", UTILIZATION)
    return max(0, int(device_bytes * share) - model.weights_bytes)


def _reap(pid: int) -> None:
    """Collect a child that has ended."""
    with contextlib.suppress(ChildProcessError):
        os.waitpid(pid, os.WNOHANG)


class _Vllm:
    def __init__(
        self,
        options: Options,
        model: LocalModel,
        names: tuple[str, ...],
        context: LaunchContext,
        tree: ProcessTree,
        env: Mapping[str, str],
    ) -> None:
        self._behaviour = context.behaviour
        self._tree = tree
        self._env = env
        self._shutdown_s = float(options.number("shutdown-timeout", 0))
        memory = context.memory(tree)
        self._scheduler = Scheduler(
            slots=options.number("max-num-seqs", SEQUENCES),
            behaviour=context.behaviour,
            weights_id=model.weights_id,
            tree=tree,
        )
        self._sleep = Sleep(
            is_enabled=options.has("enable-sleep-mode"),
            loads_dummy=options.text("load-format") == "dummy",
            behaviour=context.behaviour,
            scheduler=self._scheduler,
            memory=memory,
            weights_bytes=model.weights_bytes,
            kv_cache_bytes=_sizes(options, model, memory.device_bytes),
            tree=tree,
            log=log,
        )
        self._state = VllmState(
            options=options,
            names=names,
            model=model,
            behaviour=context.behaviour,
            scheduler=self._scheduler,
            sleep=self._sleep,
        )
        self._scheduler.on_unmapped = lambda: self._state.fail(ILLEGAL_ACCESS)
        self._signals = ending_signals(context.behaviour)
        self._is_stopping = False
        self._exit_code = 0

    async def run(self, bound: socket.socket) -> int:
        async with trio.open_nursery() as nursery:
            control = ControlRoutes(self._state, nursery)
            routes = VllmRoutes(self._state, self._env, control)
            server = HttpServer(bound, routes.answer, keep_alive_s=KEEP_ALIVE_S)
            if self._behaviour.faults.health_too_early:
                listen(bound)
                nursery.start_soon(server.serve)
            nursery.start_soon(self._watch_core, nursery.cancel_scope)
            if not await self._load():
                nursery.cancel_scope.cancel()
                return 1
            # Only from here on is SIGTERM more than death: importing and loading, it is -15.
            with trio.open_signal_receiver(*self._signals) as signals:
                nursery.start_soon(self._watch_death, nursery.cancel_scope)
                if not self._behaviour.faults.health_too_early:
                    listen(bound)
                    nursery.start_soon(server.serve)
                log("Application startup complete.")
                async for _ in signals:
                    # The second and later ones are lost, as on the real one.
                    if not self._is_stopping:
                        self._is_stopping = True
                        nursery.start_soon(self._shut_down, server, nursery.cancel_scope)
        return self._exit_code

    async def _load(self) -> bool:
        """False when memory is short, with the reason in the log."""
        behaviour = self._behaviour
        log(f"Starting to load model {self._state.model.path}...", process="EngineCore")
        try:
            self._sleep.enter("cold")
            if behaviour.faults.never_ready:
                await trio.sleep_forever()
            if behaviour.faults.dies_while_loading:
                await trio.sleep(behaviour.load_s / 2)
                write_line("RuntimeError: simulated fault: dies_while_loading")
                self._tree.die(behaviour.faults.exit_code)
            await trio.sleep(behaviour.load_s)
            self._sleep.enter("ready")
        except ControlFailed as error:
            log(f"torch.OutOfMemoryError: {error}", level="ERROR", process="EngineCore")
            write_line(
                "RuntimeError: Engine core initialization failed. See root cause above. "
                "Failed core proc(s): {'EngineCore_DP0': 1}"
            )
            self._tree.end_workers()
            return False
        self._state.is_loading = False
        return True

    async def _watch_core(self, scope: trio.CancelScope) -> None:
        """A lost worker takes the core with it, and seconds later everything, with code 0."""
        core_pid = self._tree.core_pid
        if core_pid is None:
            return
        descriptor = os.pidfd_open(core_pid)
        try:
            await trio.lowlevel.wait_readable(descriptor)
            _reap(core_pid)
        finally:
            os.close(descriptor)
        # A SIGTERM to the whole group is on its way to us too, and changes what this means.
        await trio.sleep(GROUP_SIGNAL_S)
        if self._state.is_loading:
            self._exit_code = 1
            scope.cancel()
        elif not self._is_stopping:
            self._state.fail("Engine core proc died unexpectedly, shutting down client.")

    async def _watch_death(self, scope: trio.CancelScope) -> None:
        await self._state.died.wait()
        self._tree.end_workers()
        self._scheduler.interrupt_all(error=DEAD)
        await trio.sleep(self._behaviour.worker_loss_s)
        if not self._is_stopping:
            scope.cancel()

    async def _shut_down(self, server: HttpServer, scope: trio.CancelScope) -> None:
        """Idle: end. Busy: without a time-out the clients are waited for, and get nothing."""
        log("Shutting down")
        if self._shutdown_s:
            self._state.is_draining = True
            with trio.move_on_after(self._shutdown_s):
                await server.wait_quiet()
        server.stop_listening()
        self._tree.end_workers()
        self._scheduler.pause(freeze=True)
        if server.open_exchanges and not self._state.dead:
            write_line("INFO:     Waiting for connections to close. (CTRL+C to force quit)")
        await server.wait_quiet()
        scope.cancel()
