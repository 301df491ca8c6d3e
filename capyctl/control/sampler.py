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
    ) -> None:
        super().__init__("sampler")
        self._world = world
        self._placement = placement
        self._host = host
        self._kept = kept
        self._busy = False

    async def on_start(self) -> None:
        self.timers.set("tick", PERIOD_S, Tick())

    async def handle(self, message: Tick) -> None:
        self.timers.set("tick", PERIOD_S, Tick())
        if not self._busy:
            self._busy = True
            self.spawn(self._look)

    async def _look(self) -> None:
        try:
            host = self._world.hosts[self._host]
            sample = await host.sample()
            self._world.tell(self._placement, Sampled(host=self._host, sample=sample))
            async with trio.open_nursery() as looks:
                for mine in list(self._world.directory.instances.values()):
                    for one in list(mine.values()):
                        if one.state is InstanceState.READY and one.launch is not None:
                            looks.start_soon(self._look_at, one.id, one.launch)
        except OSError as problem:
            self._world.log("memory_not_sampled", problem=str(problem))
        finally:
            self._busy = False

    async def _look_at(self, id: InstanceId, launch: Any) -> None:
        sample = await self._world.hosts[self._host].sample_engine(launch)
        if sample is None:
            return
        self._kept(id, sample)
        now_s = self._world.clock.monotonic_s()
        self._world.directory.gate(id).load = EngineLoad(
            request_count=sample.running + sample.waiting,
            kv_used_ratio=sample.kv_usage_ratio or 0.0,
            fresh_until_s=now_s + FRESH_S,
        )
