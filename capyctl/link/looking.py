"""A host's heartbeats: once a second, with what it last saw of its memory and of its engines."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import attrs
import trio

from capyctl.domain.devices import EngineSample, MemorySample
from capyctl.link.service import HostService
from capyctl.link.session import Session
from capyctl.wire.link import EngineFigures, Heartbeat, MemoryFigures, Watch

LOOK_S_MAX = 2.5
"""How long one look may take; what has not come by then is not in it."""


@attrs.define(eq=False)
class Looking:
    """For one session. A look that hangs holds up no heartbeat."""

    service: HostService
    log: Callable[..., None]
    watch: Watch = attrs.field(factory=lambda: Watch(number=0, launches=[]))
    """The newest that came."""
    _seen: int = 0
    _memory: tuple[float, MemorySample] | None = None
    _engines: dict[str, tuple[float, EngineSample]] = attrs.field(factory=dict)
    _told: set[str] = attrs.field(factory=set)

    async def beat(self, session: Session[Any], every_s: float) -> None:
        """Send heartbeats, until this is cancelled."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._look, every_s)
            while True:
                session.post_beat(self._heartbeat())
                await trio.sleep(every_s)

    def _heartbeat(self) -> Heartbeat:
        now_s = trio.current_time()
        memory = None
        if self._memory is not None:
            at_s, sample = self._memory
            sizes = {str(name): max(0, size) for name, size in sample.available_bytes.items()}
            memory = MemoryFigures(age_s=now_s - at_s, available_bytes=sizes)
        engines = {
            launch: EngineFigures(
                age_s=now_s - at_s,
                running=found.running,
                waiting=found.waiting,
                kv_usage_ratio=found.kv_usage_ratio,
                running_limit_count=found.running_limit_count,
            )
            for launch, (at_s, found) in self._engines.items()
        }
        return Heartbeat(seen=self._seen, memory=memory, engines=engines)

    async def _look(self, every_s: float) -> None:
        while True:
            began_s = trio.current_time()
            watch, engines = self.watch, dict[str, tuple[float, EngineSample]]()
            with trio.move_on_after(LOOK_S_MAX):
                async with trio.open_nursery() as looks:
                    looks.start_soon(self._look_at_memory)
                    for launch in watch.launches:
                        looks.start_soon(self._look_at, launch, engines)
            self._engines, self._seen = engines, watch.number
            await trio.sleep(max(0.0, began_s + every_s - trio.current_time()))

    async def _look_at_memory(self) -> None:
        at_s = trio.current_time()
        try:
            self._memory = (at_s, await self.service.host.sample())
            self._told.discard("memory")
        except Exception as problem:
            self._say("memory", problem)

    async def _look_at(self, launch: str, found: dict[str, tuple[float, EngineSample]]) -> None:
        record = self.service.known(launch)
        if record is None:
            return
        at_s = trio.current_time()
        try:
            sample = await self.service.host.sample_engine(record)
            self._told.discard(launch)
        except Exception as problem:
            self._say(launch, problem)
        else:
            if sample is not None:
                found[launch] = (at_s, sample)

    def _say(self, what: str, problem: Exception) -> None:
        """Once, not each second. Looking is worth less than what goes on without it."""
        if what not in self._told:
            self._told.add(what)
            self.log("look_failed", of=what, problem=repr(problem))
