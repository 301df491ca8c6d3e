"""How far an action has come, as a deployment's entry in the snapshot tells. Pure."""

from __future__ import annotations

import attrs

from capyctl.client.errors import StartFailed, Vanished
from capyctl.client.models import Deployment


@attrs.frozen
class Pending:
    """Not yet; ``what`` is being waited for."""

    what: str


def started(deployment: Deployment | None) -> Deployment | Pending:
    """The deployment once every instance serves.

    Raises:
        StartFailed: the start is over, or gave up; with the reason.
        Vanished: the deployment was deleted meanwhile.
    """
    found = _present(deployment)
    if found.is_ready:
        return found
    latest = found.latest
    if latest is not None and (latest.given_up or latest.state in ("failed", "cancelled")):
        errors = [one.last_error for one in found.instances if one.last_error]
        reason = latest.reason or (errors[0] if errors else "no reason was recorded")
        raise StartFailed(found.name, reason, latest.hint)
    states = ", ".join(f"{one.index} {one.observed_state}" for one in found.instances)
    why = f": {latest.reason}" if latest is not None and latest.reason else ""
    ready = f"{found.ready_instances}/{found.desired_instances}"
    return Pending(f"{found.name} {ready} ready, instance {states}{why}")


def stopped(deployment: Deployment | None) -> Deployment | Pending:
    """The deployment once it is stopped. Raises Vanished."""
    found = _present(deployment)
    if found.observed_state == "stopped":
        return found
    return Pending(f"{found.name} is {found.observed_state}")


def _present(deployment: Deployment | None) -> Deployment:
    if deployment is None:
        raise Vanished("the deployment was deleted meanwhile")
    return deployment
