"""A deployment: what is remembered of it, and what can be read off its instances."""

from __future__ import annotations

import enum
from collections.abc import Mapping

import attrs

from capyctl.domain.checkpoints import CheckpointRecord, DigestState, SourceState
from capyctl.domain.errors import InferenceRefusal
from capyctl.domain.ids import DeploymentId, HostId, InstanceId
from capyctl.domain.launches import ModelFiles
from capyctl.domain.measured import measured_candidate
from capyctl.domain.operations import Operation, OperationKind
from capyctl.domain.specs import (
    Candidate,
    DeploymentSpec,
    HostRefusal,
    HostVariant,
    Measured,
    ResolvedSpec,
)
from capyctl.machines.instance import Instance, InstanceState


class Desired(enum.Enum):
    """What was last asked for."""

    STOPPED = "stopped"
    READY = "ready"
    PARKED = "parked"


COMING_UP = frozenset(
    {
        InstanceState.QUEUED,
        InstanceState.STARTING,
        InstanceState.WAKE_QUEUED,
        InstanceState.WAKING,
    }
)
GOING_DOWN = frozenset({InstanceState.STOP_DRAIN, InstanceState.STOPPING, InstanceState.CLEANING})
PARKING = frozenset({InstanceState.PARK_DRAIN, InstanceState.PARKING})
EMPTY = frozenset({InstanceState.STOPPED, InstanceState.FAILED})
UNKNOWN = frozenset({InstanceState.UNCERTAIN, InstanceState.RECONCILING})


@attrs.frozen(kw_only=True)
class Restart:
    """An instance that a replace must bring to the current revision."""

    index: int
    was_ready: bool
    """Start it again once stopped; a parked one stays stopped."""


@attrs.frozen(kw_only=True)
class Deployment:
    """The durable record of one deployment. Its actor is the only writer."""

    id: DeploymentId
    revision: int = 1
    generation: int = 0
    """Counts activations; each start of an instance takes the next."""
    spec: DeploymentSpec
    desired: Desired = Desired.STOPPED
    operator_stopped: bool = False
    marked: tuple[int, ...] = ()
    """Instances that an operator stopped one by one."""
    checkpoint: CheckpointRecord = attrs.field(factory=CheckpointRecord)
    resolved: ResolvedSpec | None = None
    """None until the files are measured, or when the figures do not work out. With several
    machines its candidates are those of all of them."""
    variants: tuple[HostVariant, ...] = ()
    """Machines on which it comes to something else than `resolved` but for the candidates."""
    refused: tuple[HostRefusal, ...] = ()
    """Of several machines, those that it may not or cannot run on."""
    restarts: tuple[Restart, ...] = ()
    """Left to do of a replace, in order."""
    moves: tuple[int, ...] = ()
    """Instances that leave a drained host, and are to be started elsewhere."""
    preinitialize: Operation | None = None
    """The preinitialize under way."""
    created_at_ms: int = 0
    measured: tuple[Measured, ...] = ()
    """What launches were seen to take, one entry per host."""
    measured_since: int = 1
    """Revision from which on launches count for `measured`: later ones changed only the count."""


def candidates_of(deployment: Deployment, resolved: ResolvedSpec) -> tuple[Candidate, ...]:
    """Where it could run, charged by what was measured of its earlier launches."""
    return tuple(measured_candidate(c, deployment.measured) for c in resolved.candidates)


def files_of(deployment: Deployment) -> ModelFiles | None:
    """What a launch compares its model's files with."""
    facts = deployment.checkpoint.facts
    if facts is None:
        return None
    resolved = deployment.resolved
    path = None if resolved is None else resolved.model_path
    draft = facts.draft
    return ModelFiles(
        path=path or deployment.spec.model_path,
        digest=facts.digest,
        draft=None if draft is None else ModelFiles(path=draft.path, digest=draft.digest),
    )


@attrs.frozen(kw_only=True)
class Picture:
    """Everything that a decision about one deployment looks at."""

    deployment: Deployment
    instances: Mapping[int, Instance]
    """By index, retiring ones included."""
    operations: Mapping[str, Operation] = attrs.field(factory=dict)
    """Open operations of this deployment by id, as committed."""
    waiting_count: int = 0
    """Requests that wait for it."""
    draining: frozenset[HostId] = frozenset()
    """Machines that are being emptied."""
    wanted: bool = False
    """A request came for which nothing was begun yet, whether or not its client still waits."""

    @property
    def active(self) -> tuple[Instance, ...]:
        """Instances that the configuration asks for, by index."""
        count = self.deployment.spec.instances
        return tuple(self._with_mark(i) for i in range(count))

    def _with_mark(self, index: int) -> Instance:
        """The mark counts from its acceptance on, before the instance's actor has read of it."""
        one = self.instances.get(index) or Instance(id=InstanceId(self.deployment.id, index))
        marked = index in self.deployment.marked
        return one if one.operator_stopped is marked else attrs.evolve(one, operator_stopped=marked)

    @property
    def retiring(self) -> tuple[Instance, ...]:
        """Instances beyond the configured count that are not gone yet."""
        count = self.deployment.spec.instances
        return tuple(one for i, one in sorted(self.instances.items()) if i >= count)

    def accepted(self, one: Instance) -> tuple[Operation, ...]:
        """Open operations of ``one`` that its actor has not taken up yet."""
        return tuple(
            o
            for o in self.operations.values()
            if o.instance == one.id.index and o.id not in one.taken and not o.given_up
        )


def stopped_refusal(deployment: Deployment) -> InferenceRefusal:
    name = deployment.spec.name
    return InferenceRefusal(
        code="deployment_stopped",
        message=(
            f"`{name}` was stopped by an operator. Start it with "
            f"`capyctl start deployment {name}` (id {deployment.id})."
        ),
    )


NOT_CLEARING = frozenset({"invalid_root", "unsafe_file", "too_large"})
"""Diagnostics of a measurement that waiting alone does not end: somebody must act on the files."""


def source_failure(deployment: Deployment) -> str | None:
    """Why the files will not come by waiting; None while they may."""
    record = deployment.checkpoint.source
    if record is None or record.state is not SourceState.FAILED or not record.terminal:
        return None
    return record.reason or "the model's files could not be fetched"


def refusal(picture: Picture) -> InferenceRefusal | None:
    """Why requests for this model are refused at once; None when they are served or wait.

    1. An operator stopped it, as a whole or every instance.
    2. Something of it serves, or is on its way: not refused.
    3. Every instance is in doubt: waiting would not end that.
    4. Only an operator's action may start it, and none has.
    5. Its files are known not to work, or cannot be had.
    """
    deployment = picture.deployment
    active = picture.active
    if deployment.operator_stopped:
        return stopped_refusal(deployment)
    if active and all(one.operator_stopped for one in active):
        return stopped_refusal(deployment)
    states = [one.state for one in active if not one.operator_stopped]
    if any(s is InstanceState.READY or s in COMING_UP for s in states):
        return None
    lost = {one.id.index: one for one in active if one.lost is not None}
    if picture.operations and any(
        o.kind in (OperationKind.INITIALIZE, OperationKind.RESTORE)
        and not o.given_up
        and o.instance not in lost
        for o in picture.operations.values()
    ):
        return None
    name = deployment.spec.name
    if states and all(s in UNKNOWN for s in states):
        why = next((one.failure.detail for one in lost.values() if one.failure), None)
        text = "is being checked after a disturbance" if why is None else f"is away: {why}"
        return InferenceRefusal(code="unavailable", message=f"`{name}` {text}; try again shortly.")
    if deployment.spec.explicit and not (deployment.restarts or deployment.moves):
        return InferenceRefusal(
            code="deployment_inactive",
            message=(
                f"`{name}` is not running, and only an operator starts it "
                "(lifecycle.activation is explicit)."
            ),
        )
    digest = deployment.checkpoint
    if digest.state in (DigestState.MISMATCH, DigestState.UNUSABLE):
        return InferenceRefusal(
            code="conflict",
            message=f"`{name}` cannot start: {digest.detail or digest.state.value}.",
        )
    failure = source_failure(deployment) if digest.state is DigestState.PENDING else None
    if failure is not None:
        return InferenceRefusal(
            code="conflict", message=f"The files of `{name}` cannot be fetched: {failure}."
        )
    if digest.state is DigestState.PENDING and digest.diagnostic in NOT_CLEARING:
        return InferenceRefusal(
            code="conflict",
            message=(
                f"`{name}` cannot start: {digest.detail or digest.diagnostic}. "
                "Its files are looked at again within a minute."
            ),
        )
    return None
