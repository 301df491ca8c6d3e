"""What a deployment does next by itself: retire, restart, preinitialize, serve those who wait.

Level-triggered: the same picture gives the same next step, whatever led to it, so a
daemon that starts in the middle of anything simply goes on.
"""

from __future__ import annotations

import attrs

from capyctl.domain.checkpoints import DigestState
from capyctl.domain.errors import InferenceRefusal
from capyctl.domain.operations import Operation, OperationState
from capyctl.domain.specs import ResolvedSpec
from capyctl.machines.deployment import (
    COMING_UP,
    EMPTY,
    PARKING,
    Deployment,
    Picture,
    Restart,
)
from capyctl.machines.instance import Failure, Instance, InstanceState
from capyctl.machines.learning import learn
from capyctl.machines.moving import move
from capyctl.machines.setting_off import (
    Accepted,
    begin_parks,
    begin_starts,
    begin_stops,
    begins,
)
from capyctl.machines.table import Moment
from capyctl.messages.deployment import InstanceChanged
from capyctl.messages.instance import Cause


def progress(picture: Picture, moment: Moment) -> Accepted | None:
    """The next step, or None when there is nothing to do until something changes.

    1. What launches were seen to take is kept for later ones.
    2. An instance beyond the configured count is stopped; once empty it is removed.
    3. A replace brings one instance after the other to the current revision.
    4. Instances leave a host that is drained, and go on elsewhere.
    5. A preinitialize takes one instance after the other through start and park.
    6. Requests wait and nothing is on its way: one instance is woken or started.
    """
    return (
        learn(picture)
        or _retire(picture, moment)
        or _restart(picture, moment)
        or move(picture, moment)
        or _preinitialize(picture, moment)
        or _demand(picture, moment)
    )


def _stop_deadline_ms(picture: Picture, moment: Moment) -> int:
    resolved = picture.deployment.resolved
    stop_s = 900.0 if resolved is None else resolved.windows.stop_s
    return moment.now_ms + round(stop_s * 1000)


def _start_deadline_ms(resolved: ResolvedSpec, moment: Moment) -> int:
    return moment.now_ms + round(resolved.windows.initialize_s * 1000)


def _retire(picture: Picture, moment: Moment) -> Accepted | None:
    for one in picture.retiring:
        owes = one.operation is not None or begins(picture, one) or picture.accepted(one)
        if one.state in EMPTY and not owes:
            marked = tuple(i for i in picture.deployment.marked if i != one.id.index)
            kept = attrs.evolve(picture.deployment, marked=marked)
            return Accepted(deployment=kept, removes=(one.id,))
        if _settled_up(one) and not picture.accepted(one):
            return begin_stops(
                picture,
                picture.deployment,
                (one,),
                moment,
                Cause.RETIRE,
                deadline_at_ms=_stop_deadline_ms(picture, moment),
            )
    return None


def _settled_up(one: Instance) -> bool:
    return (
        one.state in (InstanceState.READY, InstanceState.PARKED, InstanceState.FAILED)
        or one.state in COMING_UP
    )


def _restart(picture: Picture, moment: Moment) -> Accepted | None:
    """1. Wait for the new digest. 2. Stop the old one. 3. Start the new one. 4. Next."""
    deployment = picture.deployment
    if not deployment.restarts or deployment.resolved is None:
        return None
    if deployment.checkpoint.state is not DigestState.RECORDED:
        return None
    head = deployment.restarts[0]
    one = picture.instances.get(head.index)
    if one is None or head.index >= deployment.spec.instances:
        return Accepted(deployment=_restarted(deployment, head))
    current = one.revision == deployment.revision
    if current and (one.state is InstanceState.READY or one.state in EMPTY):
        return Accepted(deployment=_restarted(deployment, head))
    if picture.accepted(one):
        return None
    if one.state in EMPTY:
        rest = _restarted(deployment, head)
        marked = head.index in deployment.marked
        if not head.was_ready or marked or deployment.operator_stopped:
            return Accepted(deployment=rest)
        return begin_starts(
            deployment,
            deployment.resolved,
            (one,),
            moment,
            cause=Cause.REPLACE,
            deadline_at_ms=_start_deadline_ms(deployment.resolved, moment),
            may_evict=False,
        )
    if not current and _settled_up(one):
        return begin_stops(
            picture,
            deployment,
            (one,),
            moment,
            Cause.REPLACE,
            deadline_at_ms=_stop_deadline_ms(picture, moment),
        )
    return None


def _restarted(deployment: Deployment, head: Restart) -> Deployment:
    return attrs.evolve(deployment, restarts=tuple(r for r in deployment.restarts if r != head))


def _preinitialize(picture: Picture, moment: Moment) -> Accepted | None:
    """1. Past the deadline, or an instance failed: it ends. 2. Each is started, then parked.

    3. All are parked: it succeeded.
    """
    deployment = picture.deployment
    operation = deployment.preinitialize
    if operation is None or deployment.resolved is None:
        return None
    assert operation.deadline_at_ms is not None
    if moment.now_ms >= operation.deadline_at_ms:
        return _end_preinitialize(picture, OperationState.FAILED, "the deadline came first")
    for one in picture.active:
        if one.operator_stopped or one.state is InstanceState.PARKED:
            continue
        if picture.accepted(one) or one.then is not None:
            return None
        if one.state is InstanceState.FAILED and one.generation > 0 and _tried(one, operation):
            why = str(one.failure) if one.failure else "the instance failed"
            return _end_preinitialize(picture, OperationState.FAILED, why)
        if one.state in EMPTY:
            return begin_starts(
                deployment,
                deployment.resolved,
                (one,),
                moment,
                cause=Cause.PREINITIALIZE,
                deadline_at_ms=operation.deadline_at_ms,
                may_evict=False,
            )
        if one.state is InstanceState.READY:
            return begin_parks(
                deployment,
                (one,),
                moment,
                Cause.PREINITIALIZE,
                deadline_at_ms=operation.deadline_at_ms,
            )
        return None
    return _end_preinitialize(picture, OperationState.SUCCEEDED, None)


def preinitialize_refused(picture: Picture, message: InstanceChanged) -> Accepted | None:
    """An instance that will not park ends the preinitialize: asking again would not help."""
    operation = picture.deployment.preinitialize
    if operation is None or message.cause is not Cause.PREINITIALIZE:
        return None
    why = f"instance {message.instance.index} did not park: {message.park_failed}"
    return _end_preinitialize(picture, OperationState.FAILED, why)


def _tried(one: Instance, operation: Operation) -> bool:
    """Whether the failed start belongs to this preinitialize."""
    del operation
    return one.cause is Cause.PREINITIALIZE


def _end_preinitialize(picture: Picture, state: OperationState, reason: str | None) -> Accepted:
    operation = picture.deployment.preinitialize
    assert operation is not None
    ended = attrs.evolve(operation, state=state, reason=None if reason is None else reason[:500])
    done = attrs.evolve(picture.deployment, preinitialize=None)
    return Accepted(deployment=done, operations=(ended,))


def _demand(picture: Picture, moment: Moment) -> Accepted | None:
    """Serve the requests that wait, or that came and could not.

    1. Nobody wants it, or an operator stopped it, or only an operator may start it.
    2. The files are not measured yet: wait for that.
    3. An instance serves, or is on its way up or down: wait for that.
    4. A parked instance is woken.
    5. The lowest instance that no operator stopped is started.
    """
    deployment = picture.deployment
    if not (picture.waiting_count or picture.wanted) or deployment.operator_stopped:
        return None
    if deployment.spec.explicit or deployment.restarts:
        return None
    if deployment.checkpoint.state is not DigestState.RECORDED or deployment.resolved is None:
        return None
    usable = [one for one in picture.active if not one.operator_stopped and one.lost is None]
    if any(_on_its_way(picture, one) for one in usable):
        return None
    parked = [one for one in usable if one.state is InstanceState.PARKED]
    empty = [one for one in usable if one.state in EMPTY]
    chosen = parked[:1] or empty[:1]
    if not chosen:
        return None
    wakes = bool(parked) and deployment.resolved.windows.wake_s is not None
    window_s = deployment.resolved.windows.initialize_s
    if wakes and deployment.resolved.windows.wake_s is not None:
        window_s = deployment.resolved.windows.wake_s
    wait_s = max(window_s, deployment.resolved.windows.request_deadline_s)
    return begin_starts(
        deployment,
        deployment.resolved,
        (chosen[0],),
        moment,
        cause=Cause.REQUEST,
        deadline_at_ms=moment.now_ms + round(wait_s * 1000),
        may_evict=True,
    )


def _on_its_way(picture: Picture, one: Instance) -> bool:
    if one.state is InstanceState.READY or one.state in COMING_UP or one.state in PARKING:
        return True
    if one.then is not None or picture.accepted(one):
        return True
    return one.state in (
        InstanceState.STOP_DRAIN,
        InstanceState.STOPPING,
        InstanceState.CLEANING,
        InstanceState.RECONCILING,
    )


def activation_refusal(name: str, failure: Failure) -> InferenceRefusal:
    """What waiting requests are answered with when the start they waited for failed.

    1. No room, however often others were moved: 429 insufficient_resources.
    2. The switch that was to make room failed, or no machine may be used: 503 unavailable.
    3. Anything else: 500 activation_failed; each new request tries anew.
    """
    if failure.code == "insufficient_resources":
        return InferenceRefusal(
            code="insufficient_resources", message=f"No room for `{name}`: {failure.detail}"
        )
    if failure.code == "switch_failed":
        return InferenceRefusal(
            code="unavailable", message=f"`{name}` could not be switched to: {failure.detail}"
        )
    if failure.code == "host_ineligible":
        return InferenceRefusal(
            code="unavailable", message=f"`{name}` has no machine to run on: {failure.detail}"
        )
    return InferenceRefusal(code="activation_failed", message=f"`{name}` did not start: {failure}")
