"""One copy of a model: its states, what is remembered of it, and what its actor must do.

The edges are in `starting`, `parking`, `stopping` and alike; `instance_table` joins them.
"""

from __future__ import annotations

import enum
from typing import TypeAlias

import attrs

from capyctl.domain.ids import HostId, InstanceId, LaunchId
from capyctl.domain.launches import LaunchOrder, LaunchRecord
from capyctl.domain.operations import Operation
from capyctl.domain.specs import Candidate, Charges, Measured, Phase
from capyctl.messages.instance import Cause, Start, StartOrder


class InstanceState(enum.Enum):
    STOPPED = "stopped"
    """Nothing runs, nothing is held."""
    FAILED = "failed"
    """As stopped, but not because anybody wanted it."""
    QUEUED = "queued"
    """Asked for memory, or pausing between two attempts; nothing runs."""
    STARTING = "starting"
    """Memory is held; the engine is being launched, loads, or is being probed."""
    READY = "ready"
    """Answers; its gate is open."""
    PARK_DRAIN = "park_drain"
    """To be parked: its gate is closed, the last requests finish."""
    PARKING = "parking"
    """The engine was told to park."""
    PARKED = "parked"
    WAKE_QUEUED = "wake_queued"
    """Parked, and asked for the memory to wake."""
    WAKING = "waking"
    """The engine was told to wake."""
    STOP_DRAIN = "stop_drain"
    """To be stopped: its gate is closed, the last requests finish."""
    STOPPING = "stopping"
    """Being ended; not yet proven gone."""
    RECONCILING = "reconciling"
    """Found again after a restart; not yet proven to answer."""
    CLEANING = "cleaning"
    """The engine ended unasked; what is left of it is being swept away."""
    UNCERTAIN = "uncertain"
    """Not shown to be gone; its memory stays charged."""


SETTLED_EMPTY = frozenset({InstanceState.STOPPED, InstanceState.FAILED})


@attrs.frozen(kw_only=True)
class Held:
    """Memory that is charged to an instance, and where."""

    candidate: Candidate
    phase: Phase
    parked: Charges | None = None
    """Measured charge while parked; replaces the derived one."""
    kept: Charges | None = None
    """Largest charge that a park of this launch was measured at."""
    first: Charges | None = None
    """What its first park was measured at."""
    grown: str | None = None
    """Why its next park is a stop: it keeps ever more. One sentence, with figures."""

    @property
    def charges(self) -> Charges:
        if self.phase is Phase.PARKED and self.parked is not None:
            return self.parked
        return self.candidate.charges.of(self.phase)


@attrs.frozen
class Failure:
    """Why an instance is not running. Text form: ``<code>: <detail>``."""

    code: str
    detail: str

    def __str__(self) -> str:
        return f"{self.code}: {self.detail}"


@attrs.frozen(kw_only=True)
class Lost:
    """What an instance was when its host went away. Nothing of it is known until it is back."""

    state: InstanceState
    """What it goes on as; what was asked of it meanwhile is taken into account."""
    failure: Failure | None = None
    """What had gone wrong before that."""


@attrs.frozen(kw_only=True)
class Instance:
    """The durable record of one instance. Its actor is the only writer."""

    id: InstanceId
    state: InstanceState = InstanceState.STOPPED
    revision: int = 0
    """Revision of the last activation; 0 before the first."""
    generation: int = 0
    operator_stopped: bool = False
    cause: Cause | None = None
    """Who wanted the step under way, or the last one."""
    operation: Operation | None = None
    """The operation under way; a given-up start keeps its own until the deadline."""
    riders: tuple[Operation, ...] = ()
    """Other operations that end together with it."""
    then: Start | None = None
    """A start that was accepted while this instance was on its way down; begun once settled."""
    ask: str | None = None
    """The request for memory that placement has, if any."""
    order: StartOrder | None = None
    """Of the last start: enough to ask for memory again after a restart."""
    held: Held | None = None
    launch_id: LaunchId | None = None
    """Set from the moment a launch is armed until it is proven gone."""
    launch: LaunchRecord | None = None
    """Set once a process exists."""
    attempts_count: int = 0
    failure: Failure | None = None
    """The last thing that went wrong; cleared by readiness and by an operator's stop."""
    waiting: str | None = None
    """Why it waits for memory, with figures."""
    last_host: str | None = None
    last_gpu: str | None = None
    seen: Measured | None = None
    """What the present or last launch was seen to take."""
    instead: str | None = None
    """Why it is being stopped where it was to be parked: ``no room to park`` and alike."""
    lost: Lost | None = None
    """Set while its host is away; its state is `UNCERTAIN` then."""
    proof_due: bool = False
    """Its host's process began anew while it was drained: proven before it serves on."""

    @property
    def host(self) -> HostId | None:
        """The machine that it holds memory of."""
        return None if self.held is None else self.held.candidate.host

    @property
    def taken(self) -> frozenset[str]:
        """Ids of the accepted operations that it has taken up."""
        later = () if self.then is None else (self.then.operation,)
        return frozenset(o.id for o in (self.operation, *self.riders, *later) if o is not None)

    @property
    def step_id(self) -> str | None:
        """Names the step under way in events: its operation, or the launch it is about."""
        return self.launch_id if self.operation is None else self.operation.id


# -- effects: what the actor does after the commit ------------------------------------------


@attrs.frozen
class AskMemory:
    """Ask placement for the charges of a phase: COLD, or WAKE of what is parked."""

    ask: str
    phase: Phase


@attrs.frozen
class WithdrawMemory:
    """Leave placement's line, or give back what it is about to grant."""

    ask: str


@attrs.frozen
class WidenMemory:
    """Tell placement that what is in line may go elsewhere too."""

    ask: str


@attrs.frozen
class ChargePhase:
    """Tell placement that the charge is now this. Never larger than before."""

    held: Held


@attrs.frozen
class AskParkRoom:
    """Ask placement whether a park stays within the parked limits of the host."""

    ask: str
    parked: Charges


@attrs.frozen
class FreeMemory:
    """Tell placement that nothing is held any more."""

    why: str | None = None
    """Why it was stopped where it was to be parked."""


@attrs.frozen
class EvictionOver:
    """Tell placement that this victim did not give way, and why."""

    reason: str


@attrs.frozen
class Prepare:
    """Start a latch for this order."""

    order: LaunchOrder


@attrs.frozen
class Discard:
    """End a latch that was not opened."""

    record: LaunchRecord


@attrs.frozen
class Run:
    """Open the latch, watch the process, and probe until ready or the window is over."""

    record: LaunchRecord
    order: LaunchOrder
    within_s: float


@attrs.frozen
class Watch:
    """Watch a process that was found again."""

    record: LaunchRecord


@attrs.frozen
class Prove:
    """Probe an engine that was found again."""

    record: LaunchRecord
    within_s: float


@attrs.frozen
class OpenGate:
    record: LaunchRecord
    generation: int


@attrs.frozen
class CloseGate:
    reason: str


@attrs.frozen
class ReopenGate:
    """Take back one reason for being closed."""

    reason: str


@attrs.frozen
class Drain:
    """Tell ourselves when the gate is empty, or when ``within_s`` is over.

    None: the host's configured drain (`switching.drain_timeout`).
    """

    within_s: float | None = None


@attrs.frozen
class ParkEngine:
    record: LaunchRecord
    within_s: float


@attrs.frozen
class WakeEngine:
    record: LaunchRecord
    within_s: float


@attrs.frozen
class EndEngine:
    """End the group: show idle for up to ``idle_s``, SIGTERM, ``grace_s``, SIGKILL, proof."""

    record: LaunchRecord
    grace_s: float
    idle_s: float


@attrs.frozen
class CancelTasks:
    """Give up probing, parking or waking; the process is left alone."""


@attrs.frozen
class DropTasks:
    """Give up every task on the host, the watch and the end included; processes are left alone.

    What those tasks have told already does not count any more.
    """


@attrs.frozen
class RetryAfter:
    pause_s: float


@attrs.frozen
class DeadlineAt:
    """Wake us when this operation's time is over."""

    operation: str
    at_ms: int


@attrs.frozen
class Begin:
    """Begin the start that was accepted meanwhile, before anything else."""

    start: Start


@attrs.frozen
class NoDeadline:
    """This operation ended; its timer is void."""

    operation: str


Effect: TypeAlias = (
    AskMemory
    | WithdrawMemory
    | WidenMemory
    | ChargePhase
    | AskParkRoom
    | FreeMemory
    | EvictionOver
    | Prepare
    | Discard
    | Run
    | Watch
    | Prove
    | OpenGate
    | CloseGate
    | ReopenGate
    | Drain
    | ParkEngine
    | WakeEngine
    | EndEngine
    | CancelTasks
    | DropTasks
    | RetryAfter
    | Begin
    | DeadlineAt
    | NoDeadline
)
