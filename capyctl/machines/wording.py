"""How a refusal names what it is about: the deployment, and the states its instances are in."""

from __future__ import annotations

from collections.abc import Iterable

from capyctl.machines.deployment import Picture
from capyctl.machines.instance import Instance
from capyctl.machines.observed import observed_instance

INSTANCES_SAID_MAX = 4


def said(picture: Picture, ones: Iterable[Instance]) -> str:
    """```my-model` (instance 0 ready, 1 parked)``; long lists are cut."""
    states = [f"{one.id.index} {observed_instance(one, picture.accepted(one))}" for one in ones]
    shown = ", ".join(states[:INSTANCES_SAID_MAX])
    more = ", …" if len(states) > INSTANCES_SAID_MAX else ""
    return f"`{picture.deployment.spec.name}` (instance {shown}{more})"
