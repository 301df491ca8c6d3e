"""When an idle instance is parked, stopped, or looked at again."""

from __future__ import annotations

import attrs

from capyctl.machines.deployment import Deployment
from capyctl.machines.instance import Instance, InstanceState


@attrs.frozen(kw_only=True)
class IdlePolicy:
    """`lifecycle_defaults`: seconds without use; None is never."""

    ready_s: float | None = None
    """After so long a ready instance is parked, or stopped if it cannot park."""
    parked_s: float | None = None
    """After so long a parked instance is stopped."""


@attrs.frozen(kw_only=True)
class Use:
    """How an instance is used: what its gate and its clock tell."""

    in_use: bool
    """A request is inside, or its deployment has some waiting."""
    idle_since_s: float
    """When it became what it is, or a request last left; the later of both."""


@attrs.frozen(kw_only=True)
class Idle:
    """What is to be done with an instance that nobody uses."""

    stop: bool
    """Stop it; otherwise park it."""


@attrs.frozen(kw_only=True)
class NotYet:
    """Look again after so many seconds."""

    after_s: float


def idle_step(
    deployment: Deployment, one: Instance, use: Use, policy: IdlePolicy, now_s: float
) -> Idle | NotYet | None:
    """What idleness asks of one instance.

    1. Warm and explicit deployments are never idled; nor is what is not settled.
    2. A ready one is parked after ``ready_s`` without use, or stopped if it cannot park.
    3. A parked one is stopped after ``parked_s``.
    """
    if deployment.spec.warm or deployment.spec.explicit:
        return None
    limits = {InstanceState.READY: policy.ready_s, InstanceState.PARKED: policy.parked_s}
    limit_s = limits.get(one.state)
    if limit_s is None:
        return None
    if use.in_use:
        return NotYet(after_s=limit_s)
    left_s = use.idle_since_s + limit_s - now_s
    if left_s > 0:
        return NotYet(after_s=left_s)
    parks = one.order is not None and one.order.windows.wake_s is not None
    return Idle(stop=one.state is InstanceState.PARKED or not parks)
