"""Looks at memory and at engines about once a second, and tells what it saw."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import attrs
import trio

from actors import Actor, Ref
from capyctl.control.surroundings import World
from capyctl.domain.devices import EngineSample
from capyctl.domain.ids import HostId, InstanceId
from capyctl.gates.gate import EngineLoad
from capyctl.machines.instance import InstanceState
from capyctl.messages.placement import Sampled

PERIOD_S = 1.0
FRESH_S = 3.0
KEPT_S = 30.0


@attrs.frozen
class Tick:
    """Look now. From: our own timer."""


class SamplerActor(Actor[Tick]):
    """One per daemon. A look that takes longer than a period delays the next one."""

    def __init__(
        self,
        world: World,
        *,
        placement: Ref[Any],
        host: HostId,
        kept: Callable[[InstanceId, EngineSample], None],
        period_s: float = PERIOD_S,
    ) -> None:
        super().__init__("sampler")
        self._world = world
        self._placement = placement
        self._host = host
        self._kept = kept
        self._period_s = period_s
        self._busy = False
        self._told: dict[str, str] = {}
        """What was last said of each thing that cannot be looked at."""

    async def on_start(self) -> None:
        self.timers.set("tick", self._period_s, Tick())

    async def handle(self, message: Tick) -> None:
        self.timers.set("tick", self._period_s, Tick())
        if not self._busy:
            self._busy = True
            self.spawn(self._look)

    async def _look(self) -> None:
        try:
            host = self._world.hosts[self._host]
            sample = await host.sample()
            self._world.sessions.memory[self._host] = sample
            self._world.tell(self._placement, Sampled(host=self._host, sample=sample))
            async with trio.open_nursery() as looks:
                for mine in list(self._world.directory.instances.values()):
                    for one in list(mine.values()):
                        if one.state is InstanceState.READY and one.launch is not None:
                            looks.start_soon(self._look_at, one.id, one.launch)
            self._told.pop(self._host, None)
        except Exception as problem:
            # Whatever it is: looking is worth less than what goes on without it.
            self._say("memory_not_sampled", self._host, problem)
        finally:
            self._busy = False

    def _say(self, event: str, what: str, problem: Exception) -> None:
        """Once for each problem, not each second."""
        text = f"{type(problem).__name__}: {problem}"
        if self._told.get(what) != text:
            self._told[what] = text
            self._world.log(event, of=what, problem=text)

    async def _look_at(self, id: InstanceId, launch: Any) -> None:
        try:
            await self._sample_engine(id, launch)
            self._told.pop(str(id), None)
        except Exception as problem:
            # One engine's answer is no reason to look at no other.
            self._say("engine_not_sampled", str(id), problem)

    async def _sample_engine(self, id: InstanceId, launch: Any) -> None:
        sample = await self._world.hosts[self._host].sample_engine(launch)
        if sample is not None:
            take_engine_sample(self._world, id, sample, self._kept)


def take_engine_sample(
    world: World,
    id: InstanceId,
    sample: EngineSample,
    kept: Callable[[InstanceId, EngineSample], None],
) -> None:
    """What an engine said of itself counts for the choice among its deployment's instances."""
    kept(id, sample)
    world.directory.gate(id).load = EngineLoad(
        request_count=sample.running + sample.waiting,
        kv_used_ratio=sample.kv_usage_ratio or 0.0,
        fresh_until_s=sample.at_s + FRESH_S,
    )
