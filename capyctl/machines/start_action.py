"""What an operator's start of instances comes to: refused, or accepted with what it sets off."""

from __future__ import annotations

from collections.abc import Iterable

import attrs

from capyctl.domain.checkpoints import DigestState
from capyctl.domain.errors import Refused
from capyctl.domain.ids import OperationId
from capyctl.domain.specs import Phase, ResolvedSpec
from capyctl.machines.checkpoint import check_fetched
from capyctl.machines.deployment import (
    COMING_UP,
    EMPTY,
    GOING_DOWN,
    PARKING,
    Deployment,
    Desired,
    Picture,
    candidates_of,
)
from capyctl.machines.host_files import why_no_machine
from capyctl.machines.instance import Instance, InstanceState
from capyctl.machines.observed import STOPS
from capyctl.machines.setting_off import Accepted, ToInstance, begin_starts, begins
from capyctl.machines.table import Moment
from capyctl.machines.wording import said
from capyctl.messages.deployment import Act, FitAnswered
from capyctl.messages.instance import Cause, Mark
from capyctl.messages.placement import FitQuestion


@attrs.frozen(kw_only=True)
class NeedFit:
    """Placement must be asked first: would these find room?"""

    questions: tuple[FitQuestion, ...]
    evict: bool


def check_startable(deployment: Deployment) -> ResolvedSpec:
    """The resolved configuration, once the model's files allow a start. Raises Refused."""
    digest, name = deployment.checkpoint, deployment.spec.name
    nowhere = why_no_machine(deployment)
    if nowhere is not None:
        raise Refused("host_ineligible", f"`{name}` has no machine to run on: {nowhere}")
    if digest.state is DigestState.PENDING:
        check_fetched(deployment)
        why = f" ({digest.diagnostic}: {digest.detail})" if digest.diagnostic else ""
        raise Refused(
            "checkpoint_digest_pending", f"The files of `{name}` are still being measured{why}"
        )
    if digest.state is DigestState.MISMATCH:
        detail = digest.detail or "the model's files changed"
        raise Refused("checkpoint_mismatch", f"`{name}` cannot be started: {detail}")
    if digest.state is DigestState.UNUSABLE or deployment.resolved is None:
        detail = digest.detail or "the model's files do not fit"
        raise Refused("checkpoint_unusable", f"`{name}` cannot be started: {detail}")
    return deployment.resolved


def start(
    picture: Picture,
    action: Act,
    moment: Moment,
    fit: FitAnswered | None,
    *,
    indexes: frozenset[int] | None,
) -> NeedFit | Accepted:
    """Start stopped instances and wake parked ones; lifts earlier stops.

    1. A stop that is not proven yet, or an instance in doubt: still_stopping.
    2. Instances whose machine is away are left out; without others: reconciliation_required.
    3. Every instance runs: runtime_retained.
    4. Everything that does not run is on its way: joined.
    5. Nothing that is to start finds room: capacity_blocked (evicting: not all find room).
    """
    resolved = check_startable(picture.deployment)
    chosen = [one for one in picture.active if indexes is None or one.id.index in indexes]
    lost = [one for one in chosen if one.lost is not None]
    if lost and len(lost) == len(chosen):
        raise awaits_its_machine(picture, lost[0])
    chosen = [one for one in chosen if one not in lost]
    check_up(picture, chosen)
    coming = [one for one in chosen if one.state in COMING_UP or begins(picture, one)]
    wakes = [
        one
        for one in chosen
        if one not in coming and (one.state is InstanceState.PARKED or one.state in PARKING)
    ]
    colds = [one for one in chosen if one not in coming and one.state in EMPTY]
    if not wakes and not colds:
        if not coming and lost:
            raise awaits_its_machine(picture, lost[0])
        if not coming:
            raise Refused("runtime_retained", f"{said(picture, chosen)} runs already")
        joined = _joined(picture, coming)
        return Accepted(
            deployment=_lifted(picture.deployment, chosen),
            tell=unmark(chosen),
            answers=joined,
            joined=True,
            victims=() if action.evict else None,
        )
    if fit is None:
        questions = (
            *(_question(one, picture.deployment, resolved, Phase.WAKE) for one in wakes),
            *(_question(one, picture.deployment, resolved, Phase.COLD) for one in colds),
        )
        return NeedFit(questions=questions, evict=action.evict)
    wanted = len(wakes) + len(colds)
    short = not fit.fitting and not coming if not action.evict else len(fit.fitting) < wanted
    if short and not (not action.evict and len(coming) > 0):
        raise Refused(fit.code, fit.shortage or "No room for it now")
    return _accept_start(picture, action, moment, resolved, wakes, colds, fit)


def goes_down(picture: Picture, one: Instance) -> bool:
    """A stop of it is accepted, under way, or not proven."""
    if one.state in GOING_DOWN or one.state is InstanceState.UNCERTAIN:
        return True
    return any(operation.kind in STOPS for operation in picture.accepted(one))


def check_up(picture: Picture, chosen: Iterable[Instance]) -> None:
    """Raises Refused(still_stopping) while one of them goes down."""
    going = [one for one in chosen if goes_down(picture, one)]
    if going:
        raise Refused(
            "still_stopping",
            f"{said(picture, going)} is not proven stopped yet; try again shortly",
        )


def awaits_its_machine(picture: Picture, one: Instance) -> Refused:
    why = "its machine is away" if one.failure is None else one.failure.detail
    return Refused(
        "reconciliation_required",
        f"{said(picture, [one])} waits: {why}; it goes on once that machine is back",
    )


def _joined(picture: Picture, coming: list[Instance]) -> OperationId | None:
    for one in coming:
        if one.operation is not None:
            return one.operation.id
        for operation in picture.accepted(one):
            return operation.id
        if one.then is not None:
            return one.then.operation.id
    return None


def _question(
    one: Instance, deployment: Deployment, resolved: ResolvedSpec, phase: Phase
) -> FitQuestion:
    held = one.held
    candidates = candidates_of(deployment, resolved)
    if phase is Phase.WAKE and held is not None:
        candidates = (held.candidate,)
    return FitQuestion(index=one.id.index, phase=phase, candidates=candidates)


def _lifted(deployment: Deployment, chosen: Iterable[Instance]) -> Deployment:
    indexes = {one.id.index for one in chosen}
    marked = tuple(index for index in deployment.marked if index not in indexes)
    return attrs.evolve(deployment, operator_stopped=False, desired=Desired.READY, marked=marked)


def unmark(chosen: Iterable[Instance]) -> tuple[ToInstance, ...]:
    return tuple(
        (one.id.index, Mark(operator_stopped=False)) for one in chosen if one.operator_stopped
    )


def _accept_start(
    picture: Picture,
    action: Act,
    moment: Moment,
    resolved: ResolvedSpec,
    wakes: list[Instance],
    colds: list[Instance],
    fit: FitAnswered,
) -> Accepted:
    chosen = [*colds, *wakes]
    begun = begin_starts(
        _lifted(picture.deployment, chosen),
        resolved,
        (*colds, *wakes),
        moment,
        cause=Cause.OPERATOR,
        deadline_at_ms=action.deadline_at_ms,
        may_evict=action.evict,
        switch=fit.switch,
    )
    return attrs.evolve(
        begun,
        tell=(*unmark(chosen), *begun.tell),
        victims=fit.victims if action.evict else None,
        switch=fit.switch if action.evict else None,
    )
