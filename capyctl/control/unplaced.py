"""Requests for a model that no machine may run now: answered, where waiting would end nothing."""

from __future__ import annotations

from capyctl.control.surroundings import World
from capyctl.domain.errors import InferenceRefusal
from capyctl.machines.deployment import Picture
from capyctl.machines.instance import Failure, InstanceState

NO_MACHINE = Failure("placement", "host_ineligible")


def refuse_unplaced(world: World, picture: Picture) -> None:
    """Answer who waits where every instance waits for a machine that is drained, gone or too old.

    What waits goes on waiting: it starts once a machine may be used. While some machine has only
    just fallen silent, requests wait, too.
    """
    active = picture.active
    stuck = [
        one for one in active if one.state is InstanceState.QUEUED and one.failure == NO_MACHINE
    ]
    if not picture.waiting_count or not stuck or len(stuck) < len(active):
        return
    directory = world.directory
    if any(world.sessions.may_return_soon(host) for host in directory.hosts):
        return
    operation = stuck[0].operation
    why = "" if operation is None else f": {operation.reason}"
    answer = InferenceRefusal(
        code="unavailable",
        message=f"`{picture.deployment.spec.name}` has no machine to run on{why}",
    )
    directory.admission(picture.deployment.id).refuse_waiting(answer)
