"""Instances leave a host that is drained: each is stopped there, and started elsewhere if it ran.

Level-triggered like all of `progress`: what is left to do is in `Deployment.moves`.
"""

from __future__ import annotations

import attrs

from capyctl.domain.specs import ResolvedSpec
from capyctl.machines.deployment import COMING_UP, EMPTY, Deployment, Picture
from capyctl.machines.instance import Instance, InstanceState
from capyctl.machines.setting_off import Accepted, begin_starts, begin_stops
from capyctl.machines.table import Moment
from capyctl.messages.instance import Cause

_LEAVES = frozenset({InstanceState.READY, InstanceState.PARKED, InstanceState.WAKE_QUEUED})
"""A start under way is let go on until it is ready; what is in doubt waits for its host."""


def move(picture: Picture, moment: Moment) -> Accepted | None:
    """1. One that sits on a drained host is stopped. 2. One that left, and ran, is started.

    A start waits, without a deadline, while every machine that could take it is drained.
    """
    return _leave(picture, moment) or _arrive(picture, moment)


def _leave(picture: Picture, moment: Moment) -> Accepted | None:
    if not picture.draining:
        return None
    for one in (*picture.active, *picture.retiring):
        if one.host not in picture.draining or one.state not in _LEAVES:
            continue
        if picture.accepted(one):
            continue
        return begin_stops(
            picture,
            _noted(picture, one),
            (one,),
            moment,
            Cause.DRAIN,
            deadline_at_ms=_deadline_ms(picture.deployment.resolved, moment, stop=True),
        )
    return None


def _noted(picture: Picture, one: Instance) -> Deployment:
    deployment = picture.deployment
    retires = one.id.index >= deployment.spec.instances
    stays_down = one.state is InstanceState.PARKED or one.operator_stopped or retires
    if stays_down or any(r.index == one.id.index for r in deployment.restarts):
        return deployment
    moves = tuple(sorted({*deployment.moves, one.id.index}))
    return attrs.evolve(deployment, moves=moves)


def _arrive(picture: Picture, moment: Moment) -> Accepted | None:
    deployment = picture.deployment
    for index in deployment.moves:
        rest = attrs.evolve(deployment, moves=tuple(i for i in deployment.moves if i != index))
        stopped = deployment.operator_stopped or index in deployment.marked
        if index >= deployment.spec.instances or stopped:
            return Accepted(deployment=rest)
        one = picture.active[index]
        if picture.accepted(one) or one.then is not None:
            continue
        if one.state in COMING_UP:
            return Accepted(deployment=rest)
        if one.state is InstanceState.READY and one.host not in picture.draining:
            return Accepted(deployment=rest)
        if one.state in EMPTY and deployment.resolved is not None:
            if {c.host for c in deployment.resolved.candidates} <= picture.draining:
                continue  # There is nowhere to go: it comes back once one of them is undrained.
            return begin_starts(
                rest,
                deployment.resolved,
                (one,),
                moment,
                cause=Cause.DRAIN,
                deadline_at_ms=_deadline_ms(deployment.resolved, moment, stop=False),
                may_evict=False,
            )
    return None


def _deadline_ms(resolved: ResolvedSpec | None, moment: Moment, *, stop: bool) -> int:
    seconds = 900.0
    if resolved is not None:
        seconds = resolved.windows.stop_s if stop else resolved.windows.initialize_s
    return moment.now_ms + round(seconds * 1000)
