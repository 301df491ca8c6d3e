"""vLLM's sleep: levels, modes and tags, with the traps of the real one."""

from __future__ import annotations

from collections.abc import Callable

import trio

from capyctl.simulated.behaviour import Behaviour
from capyctl.simulated.engine_memory import EngineMemory, Sizes
from capyctl.simulated.generation import Scheduler
from capyctl.simulated.process_tree import ProcessTree
from capyctl.simulated.usage import OutOfMemory

WEIGHTS, KV_CACHE, SCHEDULING = "weights", "kv_cache", "scheduling"
MODES = ("abort", "wait", "keep")


class ControlFailed(Exception):
    """A control call fails with 500. ``is_fatal``: and the engine with it."""

    def __init__(self, message: str, *, is_fatal: bool = False) -> None:
        super().__init__(message)
        self.is_fatal = is_fatal


class Sleep:
    """Which memory is there. ``is_enabled`` is ``--enable-sleep-mode``.

    Without it everything answers as if it had happened, and no memory moves.
    """

    def __init__(
        self,
        *,
        is_enabled: bool,
        loads_dummy: bool,
        behaviour: Behaviour,
        scheduler: Scheduler,
        memory: EngineMemory,
        weights_bytes: int,
        kv_cache_bytes: int,
        tree: ProcessTree,
        log: Callable[[str], None],
    ) -> None:
        self._is_enabled = is_enabled
        self._loads_dummy = loads_dummy
        self._behaviour = behaviour
        self._scheduler = scheduler
        self._memory = memory
        self._weights_bytes = weights_bytes
        self._kv_cache_bytes = kv_cache_bytes
        self._tree = tree
        self._log = log
        self._asleep: set[str] = set()
        self._level = 0
        self._releasing: trio.CancelScope | None = None

    @property
    def is_sleeping(self) -> bool:
        return self._scheduler.is_paused or bool(self._asleep)

    @property
    def state(self) -> str:
        """As the gauge names it."""
        if not self._asleep:
            return "awake"
        return "weights_offloaded" if self._level == 1 else "discard_all"

    def enter(self, phase: str) -> None:
        """Draw a phase's memory.

        Raises:
            ControlFailed: there is not enough, which kills the engine.
        """
        sizes = Sizes(
            weights_bytes=self._weights_bytes,
            kv_cache_bytes=self._kv_cache_bytes,
            keeps_copy=self._level == 1,
        )
        try:
            self._memory.enter(phase, sizes)
        except OutOfMemory as error:
            raise ControlFailed(cuda_message(error), is_fatal=True) from error

    async def pause(self, mode: str) -> None:
        """Stop the scheduler; what runs is aborted, waited for, or frozen."""
        self._scheduler.pause(freeze=mode != "wait")
        if mode == "abort":
            self._scheduler.interrupt_all(finish="abort")
        if mode != "keep":
            await self._scheduler.wait_idle()
        self._scheduler.freezes_running = True

    async def sleep(self, level: int, mode: str, nursery: trio.Nursery) -> None:
        """Raises:
        ControlFailed: a fault says so.
        """
        if self._asleep:
            self._log("Executor is already sleeping.")
            if mode == "abort":
                self._scheduler.interrupt_all(finish="abort")
            return
        if self._behaviour.faults.refuses_park:
            raise ControlFailed("simulated fault: refuses_park")
        await self.pause(mode)
        if level == 0:
            return
        self._level = level
        self._asleep = {WEIGHTS, KV_CACHE}
        await trio.sleep(self._behaviour.park_s)
        self._log(f"It took {self._behaviour.park_s:.6f} seconds to fall asleep.")
        if self._moves_memory:
            self.enter("parking")
            self._scheduler.memory_mapped = False
            self._scheduler.weights_good = level != 2 and self._scheduler.weights_good
            if self._behaviour.release_lag_s:
                nursery.start_soon(self._release_later)
            else:
                self.enter("parked")

    @property
    def _moves_memory(self) -> bool:
        return self._is_enabled and not self._behaviour.faults.park_frees_nothing

    async def _release_later(self) -> None:
        with trio.CancelScope() as self._releasing:
            await trio.sleep(self._behaviour.release_lag_s)
            try:
                self.enter("parked")
            except ControlFailed as error:
                self._log(str(error))

    async def wake(self, tags: list[str]) -> None:
        """Take back what ``tags`` name (all without any); the scheduler resumes when all is.

        Raises:
            ControlFailed: there is no memory for it, which kills the engine.
        """
        faults = self._behaviour.faults
        if faults.hangs_on_wake:
            await trio.sleep_forever()
        if faults.dies_on_wake:
            self._tree.die(faults.exit_code)
        wanted = set(tags) or {WEIGHTS, KV_CACHE, SCHEDULING}
        had_memory_asleep = bool(self._asleep)
        if wanted & self._asleep and self._moves_memory:
            if self._releasing is not None:
                self._releasing.cancel()
            self.enter("wake")
        if WEIGHTS in wanted & self._asleep and self._level == 1:
            await trio.sleep(self._behaviour.wake_s)
        self._asleep -= wanted
        if self._asleep or not (had_memory_asleep or SCHEDULING in wanted):
            return
        if had_memory_asleep and self._moves_memory:
            self.enter("ready")
            self._scheduler.memory_mapped = True
        if had_memory_asleep and faults.gibberish_after_wake:
            self._scheduler.weights_good = False
        self._scheduler.resume()

    async def reload_weights(self) -> None:
        """Raises:
        ControlFailed: dummy weights cannot be reloaded; unmapped ones kill the engine.
        """
        if self._loads_dummy:
            raise ControlFailed("reload_weights is not supported with load format dummy")
        if WEIGHTS in self._asleep and self._moves_memory:
            raise ControlFailed(ILLEGAL_ACCESS, is_fatal=True)
        await trio.sleep(self._behaviour.wake_s)
        if not self._behaviour.faults.gibberish_after_wake:
            self._scheduler.weights_good = True

    def release_kv_cache(self) -> None:
        """Raises:
        ControlFailed: it is not paused, or memory is asleep already.
        """
        is_idle = not self._scheduler.running and not self._scheduler.waiting
        if not self._scheduler.is_paused or not is_idle or self._asleep:
            raise ControlFailed("release_kv_cache_memory requires a completed pause first")
        self._asleep = {KV_CACHE}
        if self._moves_memory:
            self._scheduler.memory_mapped = False


ILLEGAL_ACCESS = "CUDA error: an illegal memory access was encountered"


def cuda_message(error: OutOfMemory) -> str:
    """As PyTorch words it."""
    return (
        f"CUDA out of memory. Tried to allocate {error.wanted_bytes / (1 << 30):.2f} GiB. "
        f"GPU 0 has a total capacity of {error.total_bytes / (1 << 30):.2f} GiB "
        f"of which {error.free_bytes / (1 << 30):.2f} GiB is free."
    )
