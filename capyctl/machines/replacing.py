"""What a new document does to a deployment: refused, or a new revision and what restarts."""

from __future__ import annotations

import attrs

from capyctl.domain.checkpoints import CheckpointRecord
from capyctl.domain.errors import Refused
from capyctl.domain.events import NewEvent
from capyctl.domain.ids import DeploymentId, OperationId
from capyctl.domain.operations import Operation, OperationKind, OperationState
from capyctl.machines.actions import check_revision
from capyctl.machines.deployment import EMPTY, Deployment, Picture, Restart
from capyctl.machines.instance import InstanceState
from capyctl.machines.setting_off import STARTS, Accepted, begins, new_operation
from capyctl.machines.table import Moment
from capyctl.machines.wording import said
from capyctl.messages.deployment import Replace

_RESTARTABLE = frozenset({*EMPTY, InstanceState.READY, InstanceState.PARKED, InstanceState.QUEUED})


def decide_replace(picture: Picture, message: Replace, moment: Moment) -> Accepted:
    """The next revision.

    1. Another revision than expected: revision_conflict.
    2. Only the count differs: running instances are left as they are.
    3. An instance is between two states: runtime_retained.
    4. What runs is restarted on the new revision, one after the other; what is parked is
       stopped; what was stopped stays stopped. The files are measured anew.

    Raises:
        Refused: nothing changes.
    """
    deployment = picture.deployment
    check_revision(deployment, message.expected_revision)
    count_only = deployment.spec.same_but_for_count(message.spec)
    if not count_only:
        _check_restartable(picture)
    revised = attrs.evolve(
        deployment, revision=deployment.revision + 1, spec=message.spec, preinitialize=None
    )
    if not count_only:
        expected = message.spec.expected_digest
        revised = attrs.evolve(
            revised,
            checkpoint=CheckpointRecord(expected=expected),
            resolved=None,
            variants=(),
            refused=(),
            measured=(),
            measured_since=revised.revision,
            restarts=_restarts(picture),
        )
    operation = new_operation(
        deployment.id,
        None,
        OperationKind.REPLACE,
        moment,
        deadline_at_ms=None,
        state=OperationState.SUCCEEDED,
    )
    cancelled: tuple[Operation, ...] = ()
    if deployment.preinitialize is not None:
        ended = attrs.evolve(
            deployment.preinitialize, state=OperationState.CANCELLED, reason="replaced"
        )
        cancelled = (ended,)
    return Accepted(
        deployment=revised,
        operations=(operation, *cancelled),
        events=(configuration_accepted(revised, operation.id, moment),),
        answers=operation.id,
    )


def _check_restartable(picture: Picture) -> None:
    for one in (*picture.active, *picture.retiring):
        under_way = [o for o in picture.accepted(one) if o.kind not in STARTS]
        if one.state not in _RESTARTABLE or one.then is not None or under_way:
            raise Refused(
                "runtime_retained",
                f"{said(picture, [one])} cannot be replaced now; wait until that is over",
            )


def _restarts(picture: Picture) -> tuple[Restart, ...]:
    """What runs, is on its way, or is still to be started by an earlier replace."""
    running = (InstanceState.READY, InstanceState.QUEUED)
    owed = {r.index for r in picture.deployment.restarts if r.was_ready}
    found = []
    for one in picture.active:
        begun = begins(picture, one) or one.id.index in owed
        if one.state not in EMPTY or begun:
            was_ready = begun or one.state in running
            found.append(Restart(index=one.id.index, was_ready=was_ready))
    return tuple(found)


def configuration_accepted(
    deployment: Deployment, operation: OperationId, moment: Moment
) -> NewEvent:
    """The event of a create or replace."""
    id: DeploymentId = deployment.id
    return NewEvent(
        kind="managed_configuration_accepted",
        deployment=id,
        operation=operation,
        payload={
            "operation_id": operation,
            "deployment_id": id,
            "revision": str(deployment.revision),
            "generation": str(deployment.generation),
            "session_epoch": str(moment.session_epoch),
        },
    )
