"""SGLang's memory occupation: pausing, releasing and resuming, with the traps of the real one.

Misuse is not answered with an error: the scheduler raises, and the whole server is killed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NoReturn

import trio

from capyctl.simulated.behaviour import Behaviour
from capyctl.simulated.engine_memory import EngineMemory, Sizes
from capyctl.simulated.generation import Scheduler
from capyctl.simulated.sglang_processes import SglangTree
from capyctl.simulated.usage import OutOfMemory

WEIGHTS, KV_CACHE, CUDA_GRAPH = "weights", "kv_cache", "cuda_graph"
ALL_TAGS = (KV_CACHE, WEIGHTS, CUDA_GRAPH)
PAUSE_MODES = ("abort", "retract", "in_place")


class Occupancy:
    """Which memory is there. ``is_enabled`` is ``--enable-memory-saver``.

    Without it everything answers as if it had happened, and no memory moves.
    """

    def __init__(
        self,
        *,
        is_enabled: bool,
        keeps_copy: bool,
        model_path: str,
        behaviour: Behaviour,
        scheduler: Scheduler,
        memory: EngineMemory,
        weights_bytes: int,
        kv_cache_bytes: int,
        tree: SglangTree,
        log: Callable[[str], None],
    ) -> None:
        """``keeps_copy``: ``--enable-weights-cpu-backup``."""
        self._is_enabled = is_enabled
        self._keeps_copy = keeps_copy
        self._model_path = model_path
        self._behaviour = behaviour
        self._scheduler = scheduler
        self._memory = memory
        self._weights_bytes = weights_bytes
        self._kv_cache_bytes = kv_cache_bytes
        self._tree = tree
        self._log = log
        self._released: set[str] = set()
        self._releasing: trio.CancelScope | None = None
        self._scheduler_paused = False
        scheduler.on_unmapped = lambda: self.crash("CUDA error: an illegal memory access")

    @property
    def is_paused(self) -> bool:
        return self._scheduler.is_paused

    def enter(self, phase: str) -> None:
        """Draw a phase's memory.

        Raises:
            OutOfMemory: there is not enough.
        """
        keeps_weights = bool(self._released) and WEIGHTS not in self._released
        self._memory.enter(
            phase,
            Sizes(
                weights_bytes=self._weights_bytes,
                kv_cache_bytes=self._kv_cache_bytes,
                keeps_copy=self._keeps_copy and not keeps_weights,
            ),
        )

    def crash(self, why: str) -> NoReturn:
        """The scheduler raised: SIGQUIT to the parent, which kills the whole tree."""
        self._log("Scheduler hit an exception: Traceback (most recent call last):")
        self._log(why)
        self._log("Received sigquit from a child process. It usually means the child failed.")
        self._tree.kill_everything()

    async def pause(self, mode: str) -> None:
        """``abort`` ends what runs and holds what comes; the others freeze what runs."""
        self._scheduler.pause(freeze=mode != "abort")
        if mode == "abort":
            self._scheduler.interrupt_all(finish="abort")
            await self._scheduler.wait_idle()
            return
        self._scheduler_paused = True

    def resume_generation(self) -> None:
        """What was held goes on, whether there is memory for it or not."""
        self._scheduler_paused = False
        self._scheduler.resume()

    async def release(self, tags: list[str], nursery: trio.Nursery) -> None:
        """Kills the server unless it is idle."""
        scheduler = self._scheduler
        waits = bool(scheduler.waiting) and not self._scheduler_paused
        if scheduler.running or waits:
            self.crash(
                "AssertionError: release_memory_occupation should be called only when server "
                "is idle."
            )
        wanted = set(tags or ALL_TAGS)
        if WEIGHTS in wanted & self._released:
            self.crash("RuntimeError: the weights are paused already")
        await trio.sleep(self._behaviour.park_s)
        self._released |= wanted
        if not self._moves_memory:
            return
        if wanted & {WEIGHTS, KV_CACHE}:
            scheduler.memory_mapped = False
        if WEIGHTS in wanted and not self._keeps_copy:
            scheduler.weights_good = False
        self.enter("parking")
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
            self.enter("parked")

    async def resume(self, tags: list[str]) -> None:
        """Kills the server for a tag that is not released, and where memory is short."""
        faults = self._behaviour.faults
        if faults.hangs_on_wake:
            await trio.sleep_forever()
        if faults.dies_on_wake:
            self._tree.die(faults.exit_code)
        for tag in tags or ALL_TAGS:
            if tag not in self._released:
                self.crash(f"KeyError: '{tag}'")
            self._released.remove(tag)
        if self._moves_memory:
            self._map()
        if WEIGHTS in (tags or ALL_TAGS):
            if self._keeps_copy:
                await trio.sleep(self._behaviour.wake_s)
            if faults.gibberish_after_wake:
                self._scheduler.weights_good = False

    def _map(self) -> None:
        if self._releasing is not None:
            self._releasing.cancel()
        try:
            self.enter("wake")
            if not self._released & {WEIGHTS, KV_CACHE}:
                self.enter("ready")
                self._scheduler.memory_mapped = True
        except OutOfMemory:
            self.crash("RuntimeError: CUresult error: 2 (out of memory) in cuMemCreate")

    async def update_weights(self, model_path: str) -> tuple[bool, str]:
        """Read the weights again: whether it worked, and the engine's words."""
        if WEIGHTS in self._released and self._moves_memory:
            self.crash("CUDA error: an illegal memory access was encountered")
        if model_path != self._model_path:
            return False, f"Failed to get weights iterator: {model_path}"
        await trio.sleep(self._behaviour.wake_s)
        if not self._behaviour.faults.gibberish_after_wake:
            self._scheduler.weights_good = True
        return True, "Succeeded to update model weights."

    def flush(self) -> bool:
        """Whether the cache was flushed: only while nothing runs or waits."""
        return not self._scheduler.running and not self._scheduler.waiting
