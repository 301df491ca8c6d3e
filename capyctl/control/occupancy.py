"""What placement is told of an instance: whether and how it may be moved out of the way."""

from __future__ import annotations

from collections.abc import Iterator

from capyctl.domain.ids import InstanceId
from capyctl.domain.specs import DeploymentSpec
from capyctl.machines.deployment import Picture
from capyctl.machines.instance import Instance, InstanceState
from capyctl.messages.placement import Occupy


def occupancies(picture: Picture) -> Iterator[Occupy]:
    """Of every instance of a deployment, those that retire included."""
    ready = [one for one in picture.active if one.state is InstanceState.READY]
    for one in (*picture.active, *picture.retiring):
        elsewhere = any(other.id != one.id for other in ready)
        yield occupancy(one, picture.deployment.spec, elsewhere)


def occupancy(one: Instance, spec: DeploymentSpec, elsewhere: bool) -> Occupy:
    """``elsewhere``: another instance of its deployment is ready."""
    parks = one.order is not None and one.order.windows.wake_s is not None
    return Occupy(
        instance=one.id,
        state=one.state.value,
        parks=parks,
        protected=spec.warm or spec.explicit,
        ready_elsewhere=elsewhere,
        grown=one.held is not None and one.held.grown is not None,
    )


def gone(instance: InstanceId) -> Occupy:
    """It is no more."""
    return Occupy(
        instance=instance,
        state=InstanceState.STOPPED.value,
        parks=False,
        protected=False,
        ready_elsewhere=False,
        gone=True,
    )
