"""Everything an instance actor may be told. Data only: ids, never refs; no behaviour."""

from __future__ import annotations

import enum
from typing import TypeAlias

import attrs

from capyctl.domain.ids import HostId, LaunchId, SwitchId
from capyctl.domain.launches import LaunchRecord, ModelFiles
from capyctl.domain.operations import Operation
from capyctl.domain.specs import (
    Candidate,
    Charges,
    EngineSettings,
    HostVariant,
    Residency,
    Windows,
)


class Cause(enum.Enum):
    """Who wanted it: decides what may happen next, and what is said about it."""

    OPERATOR = "operator"
    REQUEST = "request"
    SWITCH = "switch"
    IDLE = "idle"
    REPLACE = "replace"
    RETIRE = "retire"
    PREINITIALIZE = "preinitialize"
    DRAIN = "drain"
    """Its host is to be empty."""


@attrs.frozen(kw_only=True)
class StartOrder:
    """All that an instance needs to become ready, whether cold or parked."""

    revision: int
    generation: int
    """Deployment-wide number of this activation."""
    engine: EngineSettings
    residency: Residency
    candidates: tuple[Candidate, ...]
    windows: Windows
    cause: Cause
    may_evict: bool
    switch: SwitchId | None = None
    """The switch that an evicting start was promised."""
    files: ModelFiles | None = None
    """The model's files as they were measured."""
    variants: tuple[HostVariant, ...] = ()
    """Machines among the candidates on which it is launched otherwise."""


@attrs.frozen(kw_only=True)
class Start:
    """Become ready: from nothing, or awake from parked. From: the deployment."""

    operation: Operation
    order: StartOrder


@attrs.frozen(kw_only=True)
class Park:
    """Give the device memory back, keep the engine. From: the deployment."""

    operation: Operation
    cause: Cause


@attrs.frozen(kw_only=True)
class Stop:
    """End the engine and give all memory back. From: the deployment."""

    operation: Operation
    cause: Cause


@attrs.frozen(kw_only=True)
class Abandon:
    """End this accepted start, unless you have taken it up: what it would begin with is gone.

    From: the deployment, after a part of capyctl failed.
    """

    operation: Operation


@attrs.frozen(kw_only=True)
class MorePlaces:
    """A start of this revision may also go to machines that were measured since.

    From: the deployment. What they are, as in `StartOrder`.
    """

    revision: int
    candidates: tuple[Candidate, ...]
    files: ModelFiles | None
    variants: tuple[HostVariant, ...]


@attrs.frozen(kw_only=True)
class Mark:
    """Set or lift the operator's stop of this one instance. From: the deployment."""

    operator_stopped: bool


@attrs.frozen(kw_only=True)
class Evict:
    """Make room for another model: park, or stop where parking will not do. From: placement."""

    switch: SwitchId
    operation: Operation
    stop: bool
    """Stop at once instead of parking: restart-only, or no room to park."""


@attrs.frozen(kw_only=True)
class Reserved:
    """The memory is ours until we release it. From: placement."""

    ask: str
    """Which request this answers; another one is stale."""
    candidate: Candidate


@attrs.frozen(kw_only=True)
class ReserveWaits:
    """Nothing fits now; the request stays in line. From: placement; may come again."""

    ask: str
    reason: str
    """For people, with figures: ``insufficient_device_memory: needs …``."""


@attrs.frozen(kw_only=True)
class ReserveRefused:
    """Nothing will fit. From: placement; the request has left the line."""

    ask: str
    code: str
    reason: str


@attrs.frozen(kw_only=True)
class ParkRoom:
    """There is room for what it will be charged once parked. From: placement."""

    ask: str


@attrs.frozen(kw_only=True)
class NoParkRoom:
    """Parked it would exceed its host's parked limit. From: placement."""

    ask: str
    reason: str
    """For people, with figures."""
    full: str
    """``no room to park`` or ``host RAM full``."""


@attrs.frozen(kw_only=True)
class LaunchPrepared:
    """A latch waits to become the engine. From: our own launch task."""

    record: LaunchRecord


@attrs.frozen(kw_only=True)
class LaunchNotPrepared:
    """No latch: nothing runs. From: our own launch task."""

    launch: LaunchId
    code: str
    detail: str
    permanent: bool


@attrs.frozen(kw_only=True)
class LaunchDiscarded:
    """The latch we no longer wanted is gone. From: our own discard task."""

    launch: LaunchId


@attrs.frozen(kw_only=True)
class EngineAnswered:
    """The readiness probe passed. From: our own probe task, at most once a launch."""

    launch: LaunchId
    canary: str | None
    peak: Charges = attrs.field(factory=dict)
    """Most bytes that the start was seen to take, per domain where that can be told."""


@attrs.frozen(kw_only=True)
class EngineUnfit:
    """The engine will never be ready as ordered. From: our own probe task."""

    launch: LaunchId
    code: str
    detail: str


@attrs.frozen(kw_only=True)
class StepTimedOut:
    """The window of a start, wake or proof is over. From: our own task of that step."""

    launch: LaunchId


@attrs.frozen(kw_only=True)
class EngineExited:
    """The engine's process is gone. From: our own watch task, once a launch."""

    launch: LaunchId
    how: str
    """``exit code 1``, ``signal 9``, ``exit status unknown``."""
    out_of_memory: bool = False
    """The kernel ended it for want of host memory."""


@attrs.frozen(kw_only=True)
class GateEmpty:
    """The closed gate holds no lease any more. From: our own gate."""

    launch: LaunchId


@attrs.frozen(kw_only=True)
class DrainTimedOut:
    """Leases are still open at the end of the drain. From: our own timer."""

    launch: LaunchId
    open_count: int = 0
    within_s: float = 0.0
    """How long they were given."""


@attrs.frozen(kw_only=True)
class EngineParked:
    """The memory was seen to come free. From: our own park task."""

    launch: LaunchId
    residue: Charges
    """Bytes still in use per domain; empty where nothing was measured."""
    attributed: bool = True
    """By the driver's word; False: an upper bound that says nothing about later parks."""
    growth_limit: str = "auto"
    """The host's `parked_growth_limit`."""


@attrs.frozen(kw_only=True)
class EngineNotParked:
    """The engine refused to park and serves on. From: our own park task."""

    launch: LaunchId
    reason: str


@attrs.frozen(kw_only=True)
class EngineWoken:
    """Awake, and its canary answered as before. From: our own wake task."""

    launch: LaunchId


@attrs.frozen(kw_only=True)
class EngineBroken:
    """A control call failed half way: only ending it is safe. From: a park or wake task."""

    launch: LaunchId
    code: str
    detail: str


@attrs.frozen(kw_only=True)
class EngineProved:
    """The engine we found again answers. From: our own proof task after a restart."""

    launch: LaunchId


@attrs.frozen(kw_only=True)
class GroupGone:
    """No process of the launch is left. From: our own end task."""

    launch: LaunchId


@attrs.frozen(kw_only=True)
class EndUnproven:
    """We cannot show that it is gone. From: our own end task."""

    launch: LaunchId
    detail: str


@attrs.frozen(kw_only=True)
class LeaseUnproven:
    """A request ended without the engine having shown it. From: the data plane."""

    generation: int
    why: str


@attrs.frozen(kw_only=True)
class RetryDue:
    """The pause after a failed attempt is over. From: our own timer."""


@attrs.frozen(kw_only=True)
class DeadlineReached:
    """The open operation's time is over. From: our own timer."""

    operation: str


@attrs.frozen(kw_only=True)
class HostSuspended:
    """Its host is silent: nothing new goes there for now. From: the hosts actor."""

    host: HostId


@attrs.frozen(kw_only=True)
class HostLost:
    """Its host is away, and nothing is known of it. From: the hosts actor, or our own actor."""

    host: HostId
    why: str
    """One sentence that names the host: ``gpu-b was not heard of for 30 s``."""


@attrs.frozen(kw_only=True)
class HostBack:
    """Its host's session is live. From: the hosts actor."""

    host: HostId
    name: str
    """What people call the host."""
    running: bool = True
    """False when the process of its launch is certainly gone, by its recorded identity. The
    instance's actor asks the host as it reads the message."""
    fresh: bool = False
    """The host's own process is another one: its engines have to be proven again."""


InstanceMessage: TypeAlias = (
    Start
    | Park
    | Stop
    | Abandon
    | MorePlaces
    | Mark
    | Evict
    | Reserved
    | ReserveWaits
    | ReserveRefused
    | ParkRoom
    | NoParkRoom
    | LaunchPrepared
    | LaunchNotPrepared
    | LaunchDiscarded
    | EngineAnswered
    | EngineUnfit
    | StepTimedOut
    | EngineExited
    | GateEmpty
    | DrainTimedOut
    | EngineParked
    | EngineNotParked
    | EngineWoken
    | EngineBroken
    | EngineProved
    | GroupGone
    | EndUnproven
    | LeaseUnproven
    | RetryDue
    | DeadlineReached
    | HostSuspended
    | HostLost
    | HostBack
)
