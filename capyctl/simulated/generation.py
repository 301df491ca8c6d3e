"""Answers in the making: slots, waiting, pacing, pausing, and what interrupts them."""

from __future__ import annotations

import math
from collections.abc import Callable

import attrs
import trio

from capyctl.simulated.behaviour import Behaviour
from capyctl.simulated.process_tree import ProcessTree
from capyctl.simulated.scripted_text import gibberish, natural_length, prompt_tokens, reply_words


class Broken(Exception):
    """The engine failed a request half way. The message is for the client."""


@attrs.define(eq=False, kw_only=True)
class Generation:
    """One request for text."""

    prompt: str
    token_count_max: int | None = None
    seed: int = 0
    ignore_end: bool = False
    choices: int = 1
    task_id: int = 0
    prompt_count: int = 0
    produced_count: int = 0
    """Tokens of each choice so far."""
    finish: str | None = None
    """``stop``, ``length`` or ``abort`` once it ended."""
    error: str | None = None
    began_at_s: float = math.nan
    """When it got its slot; NaN before."""
    first_at_s: float = math.nan
    scope: trio.CancelScope = attrs.field(factory=trio.CancelScope, repr=False)
    ended: trio.Event = attrs.field(factory=trio.Event, repr=False)

    def interrupt(self, *, finish: str | None = None, error: str | None = None) -> None:
        """End it before its time; its last pieces are the answering task's business."""
        self.finish, self.error = finish, error
        self.scope.cancel()


Emit = Callable[[int, str], None]
"""Takes a choice's index and a piece of its text."""


@attrs.define(kw_only=True)
class Counters:
    prompt_tokens: int = 0
    generation_tokens: int = 0
    finished: dict[str, int] = attrs.field(factory=dict)
    first_token_s_sum: float = 0.0
    first_token_count: int = 0


class Scheduler:
    """Runs at most ``slots`` generations at once, first come first served; others wait."""

    def __init__(
        self, *, slots: int, behaviour: Behaviour, weights_id: bytes, tree: ProcessTree
    ) -> None:
        self.slots = slots
        self.counters = Counters()
        self.running: dict[Generation, None] = {}
        self.waiting: dict[Generation, None] = {}
        self.held: dict[Generation, None] = {}
        """Came while paused: counted nowhere."""
        self.is_paused = False
        self.freezes_running = False
        """Whether a pause also stops what runs already."""
        self.weights_good = True
        self.memory_mapped = True
        self.on_unmapped: Callable[[], None] = lambda: None
        """Called when a request runs though the memory is gone."""
        self._behaviour = behaviour
        self._weights_id = weights_id
        self._tree = tree
        self._free_slots = trio.Semaphore(slots)
        self._resumed = trio.Event()
        self._idle = trio.Event()
        self._idle.set()
        self._next_task = 0

    def pause(self, *, freeze: bool) -> None:
        """Start nothing more; with ``freeze`` what runs already stands still too."""
        self.freezes_running = freeze
        if not self.is_paused:
            self.is_paused = True
            self._resumed = trio.Event()

    def resume(self) -> None:
        self.is_paused = False
        self._resumed.set()

    def interrupt_all(self, *, finish: str | None = None, error: str | None = None) -> None:
        for generation in [*self.running, *self.waiting, *self.held]:
            generation.interrupt(finish=finish, error=error)

    async def wait_idle(self) -> None:
        """Until nothing runs and nothing waits."""
        await self._idle.wait()

    async def run(self, generation: Generation, emit: Emit) -> None:
        """Produce all of it, piece by piece. Returns with ``finish`` or ``error`` set.

        Cancelling from outside ends it without either.
        """
        self._next_task += 1
        generation.task_id = self._next_task
        generation.prompt_count = prompt_tokens(generation.prompt)
        try:
            with generation.scope:
                await self._admit(generation)
                try:
                    await self._produce(generation, emit)
                finally:
                    self.running.pop(generation, None)
                    self._free_slots.release()
        except Broken as error:
            generation.error = str(error)
        finally:
            self._forget(generation)

    def _forget(self, generation: Generation) -> None:
        for place in (self.running, self.waiting, self.held):
            place.pop(generation, None)
        if not self.running and not self.waiting:
            self._idle.set()
        if generation.finish is not None and generation.error is None:
            finished = self.counters.finished
            finished[generation.finish] = finished.get(generation.finish, 0) + 1
        generation.ended.set()

    async def _admit(self, generation: Generation) -> None:
        self.held[generation] = None
        while self.is_paused:
            await self._resumed.wait()
        del self.held[generation]
        self._idle = trio.Event() if self._idle.is_set() else self._idle
        self.waiting[generation] = None
        await self._free_slots.acquire()
        del self.waiting[generation]
        self.running[generation] = None

    async def _produce(self, generation: Generation, emit: Emit) -> None:
        if not self.memory_mapped:
            self.on_unmapped()
            await trio.sleep_forever()
        count, finish = self._length(generation)
        pieces = self._pieces(generation, count)
        self.counters.prompt_tokens += generation.prompt_count
        began = generation.began_at_s = trio.current_time()
        rate = self._behaviour.tokens_per_s
        gap_s = 1 / rate if rate else 0.0
        for number in range(1, count + 1):
            due = began + self._behaviour.first_token_s + (number - 1) * gap_s
            await trio.sleep_until(due)
            while self.is_paused and self.freezes_running:
                await self._resumed.wait()
            await self._fault(number)
            if number == 1:
                self._first_token(generation)
            for index, words in enumerate(pieces):
                emit(index, words[number - 1])
            generation.produced_count = number
            self.counters.generation_tokens += generation.choices
        generation.finish = finish

    def _first_token(self, generation: Generation) -> None:
        generation.first_at_s = trio.current_time()
        self.counters.first_token_s_sum += generation.first_at_s - generation.began_at_s
        self.counters.first_token_count += 1

    def _length(self, generation: Generation) -> tuple[int, str]:
        natural = natural_length(self._weights_id, generation.prompt, self._behaviour.reply_tokens)
        wanted = generation.token_count_max
        if wanted is None:
            return natural, "stop"
        if generation.ignore_end or wanted <= natural:
            return wanted, "length"
        return natural, "stop"

    def _pieces(self, generation: Generation, count: int) -> list[list[str]]:
        if not self.weights_good:
            return [gibberish(count)] * generation.choices
        return [
            reply_words(self._weights_id, generation.prompt, generation.seed, count, index)
            for index in range(generation.choices)
        ]

    async def _fault(self, number: int) -> None:
        faults = self._behaviour.faults
        if number == faults.dies_at_token:
            self._tree.die(faults.exit_code)
        if number == faults.stall_at_token:
            await trio.sleep_forever()
        if number == faults.error_event_at_token:
            raise Broken("simulated fault: error_event_at_token")
