"""Makes an instance's actor, again after a failure."""

from __future__ import annotations

from collections.abc import Callable

from capyctl.control.instance import InstanceActor, InstanceNeeds
from capyctl.domain.ids import InstanceId


def maker(id: InstanceId, needs: InstanceNeeds) -> Callable[[], InstanceActor]:
    """Of one instance: only the first actor meets a fresh daemon, the others its restart."""
    made = False

    def make() -> InstanceActor:
        nonlocal made
        actor = InstanceActor(id, needs, first=not made)
        made = True
        return actor

    return make
