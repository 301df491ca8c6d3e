"""Parks and stops what a deployment's requests have left alone for long enough."""

from __future__ import annotations

from capyctl.control.surroundings import World
from capyctl.domain.ids import InstanceId
from capyctl.machines.deployment import Picture
from capyctl.machines.idling import Idle, IdlePolicy, NotYet, Use, idle_step
from capyctl.machines.instance import Instance
from capyctl.machines.setting_off import Accepted, begin_parks, begin_stops
from capyctl.messages.instance import Cause

STOP_S = 900.0


class Idling:
    """Keeps when each instance became what it is; decides through `machines.idling`."""

    def __init__(self, world: World, policy: IdlePolicy) -> None:
        self._world = world
        self._policy = policy
        self._since: dict[InstanceId, float] = {}

    @property
    def enabled(self) -> bool:
        return self._policy != IdlePolicy()

    def moved(self, instance: InstanceId) -> None:
        """It is another than before, or the same once more: a park that was refused is not asked
        for again before it has been idle for as long again."""
        self._since[instance] = self._world.clock.monotonic_s()

    def look(self, picture: Picture) -> tuple[Accepted | None, float | None]:
        """What to set off now, and after how many seconds to look again (None: on a change)."""
        again: list[float] = []
        for one in picture.active:
            if picture.accepted(one) or one.operation is not None:
                continue
            found = idle_step(
                picture.deployment,
                one,
                self._use(picture, one),
                self._policy,
                self._world.clock.monotonic_s(),
            )
            if isinstance(found, Idle):
                return self._begin(picture, one, found), None
            if isinstance(found, NotYet):
                again.append(found.after_s)
        return None, min(again, default=None)

    def _use(self, picture: Picture, one: Instance) -> Use:
        now_s = self._world.clock.monotonic_s()
        since_s = self._since.setdefault(one.id, now_s)
        gate = self._world.directory.gate(one.id)
        return Use(
            in_use=gate.held_count > 0 or picture.waiting_count > 0,
            idle_since_s=max(since_s, gate.last_used_s or 0.0),
        )

    def _begin(self, picture: Picture, one: Instance, idle: Idle) -> Accepted:
        moment = self._world.moment()
        deadline_at_ms = moment.now_ms + round(STOP_S * 1000)
        if idle.stop:
            return begin_stops(
                picture,
                picture.deployment,
                (one,),
                moment,
                Cause.IDLE,
                deadline_at_ms=deadline_at_ms,
            )
        return begin_parks(
            picture.deployment, (one,), moment, Cause.IDLE, deadline_at_ms=deadline_at_ms
        )
