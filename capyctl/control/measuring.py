"""Measures a deployment's files in the background and tells its actor what came of it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import trio

from actors import Ref
from capyctl.contracts.checkpoints import Unmeasurable
from capyctl.contracts.host import Host
from capyctl.control.surroundings import World
from capyctl.domain.specs import DeploymentSpec
from capyctl.machines.deployment import Deployment
from capyctl.messages import deployment as m

MEASURE_PAUSES_S = (2.0, 5.0, 15.0, 60.0)
"""Pauses between attempts; the last one repeats."""


class Owner(Protocol):
    """The actor it works for."""

    @property
    def ref(self) -> Ref[Any]: ...

    def spawn(self, fn: Callable[..., Any], *args: Any) -> trio.CancelScope: ...


class Measuring:
    """At most one measurement at a time: of the newest revision."""

    def __init__(self, owner: Owner, world: World, host: Host) -> None:
        self._owner = owner
        self._world = world
        self._host = host
        self._scope: trio.CancelScope | None = None

    def begin(self, data: Deployment) -> None:
        """Measure unless this revision's files are on record; an older attempt ends."""
        if self._scope is not None:
            self._scope.cancel()
            self._scope = None
        if data.checkpoint.facts is None or data.resolved is None:
            self._scope = self._owner.spawn(self._measure, data.revision, data.spec)

    async def _measure(self, revision: int, spec: DeploymentSpec) -> None:
        attempt = 0
        while True:
            try:
                facts = await self._host.measure(spec.model_path, weights_file=spec.weights_file)
            except Unmeasurable as problem:
                told = m.CheckpointUnmeasured(
                    revision=revision, diagnostic=problem.diagnostic, detail=problem.detail
                )
                self._world.tell(self._owner.ref, told)
            else:
                measured = m.CheckpointMeasured(revision=revision, facts=facts)
                self._world.tell(self._owner.ref, measured)
                return
            await trio.sleep(MEASURE_PAUSES_S[min(attempt, len(MEASURE_PAUSES_S) - 1)])
            attempt += 1
