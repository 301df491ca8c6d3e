"""A start in line, and machines that turn out to have the model's files meanwhile."""

from __future__ import annotations

import attrs

from capyctl.machines.deployment import Picture, candidates_of, files_of
from capyctl.machines.instance import Instance, InstanceState, WidenMemory
from capyctl.machines.setting_off import ToInstance
from capyctl.machines.table import Moment, Step
from capyctl.messages.instance import MorePlaces


def more_places_for(picture: Picture) -> tuple[ToInstance, ...]:
    """For each start in line that knows of fewer machines than there are by now."""
    deployment, resolved = picture.deployment, picture.deployment.resolved
    if resolved is None:
        return ()
    hosts = {place.host for place in resolved.candidates}
    lacking = [
        one
        for one in picture.active
        if one.state is InstanceState.QUEUED
        and one.revision == deployment.revision
        and one.order is not None
        and not hosts <= {place.host for place in one.order.candidates}
    ]
    if not lacking:
        return ()
    message = MorePlaces(
        revision=deployment.revision,
        candidates=candidates_of(deployment, resolved),
        files=files_of(deployment),
        variants=deployment.variants,
    )
    return tuple((one.id.index, message) for one in lacking)


def more_places(one: Instance, event: MorePlaces, _: Moment) -> Step[Instance]:
    """In line: it keeps its turn, and may go there too."""
    if one.order is None or event.revision != one.revision:
        return Step(data=one)
    order = attrs.evolve(
        one.order, candidates=event.candidates, files=event.files, variants=event.variants
    )
    effects = () if one.ask is None else (WidenMemory(one.ask),)
    return Step(data=attrs.evolve(one, order=order), effects=effects)
