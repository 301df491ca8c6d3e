"""Everything the placement actor may be told. Ids, never refs: messages can be journaled."""

from __future__ import annotations

from typing import TypeAlias

import attrs

from capyctl.domain.devices import MachineShape, MemorySample
from capyctl.domain.ids import DeploymentId, HostId, InstanceId, SwitchId
from capyctl.domain.specs import Candidate, Charges, Phase


@attrs.frozen(kw_only=True)
class Reserve:
    """Hold the memory of a phase. Answered by `Reserved`, `ReserveWaits` or `ReserveRefused`."""

    ask: str
    instance: InstanceId
    phase: Phase
    """COLD for a start, WAKE for a parked instance."""
    candidates: tuple[Candidate, ...]
    """For a wake: the one place where it is parked."""
    may_evict: bool
    for_request: bool
    """A request waits: refused after three rounds instead of staying in line."""
    switch: SwitchId | None = None


@attrs.frozen(kw_only=True)
class Widen:
    """What is in line under ``ask`` may go to these places; it keeps its turn.

    From: the instance. Nothing, where the request was answered meanwhile.
    """

    ask: str
    candidates: tuple[Candidate, ...]


@attrs.frozen(kw_only=True)
class Withdraw:
    """Never mind. Gives the memory back when the answer was already on its way."""

    ask: str
    instance: InstanceId


@attrs.frozen(kw_only=True)
class AskPark:
    """May it park, within the parked limits? Answered by `ParkRoom` or `NoParkRoom`."""

    ask: str
    instance: InstanceId
    parked: Charges
    """What it will be charged once parked, as far as known."""


@attrs.frozen(kw_only=True)
class Charge:
    """An instance's charge is now this: ready after a start, parked after a park."""

    instance: InstanceId
    phase: Phase
    charges: Charges


@attrs.frozen(kw_only=True)
class Free:
    """An instance holds nothing any more: its processes are proven gone."""

    instance: InstanceId
    why: str | None = None
    """Why it was stopped where it was to be parked."""


@attrs.frozen(kw_only=True)
class EvictionFailed:
    """A victim did not give way. From: its instance."""

    instance: InstanceId
    reason: str


@attrs.frozen(kw_only=True)
class Occupy:
    """What may be done with an instance to make room. From: its deployment, when it changes."""

    instance: InstanceId
    state: str
    """Value of the instance's state."""
    parks: bool
    """Parks when evicted; otherwise it is stopped."""
    protected: bool
    """Warm or explicit: never a victim."""
    ready_elsewhere: bool
    """Another instance of its deployment is ready."""
    gone: bool = False
    grown: bool = False
    """It keeps ever more while parked, so that its next park is a stop."""


@attrs.frozen(kw_only=True)
class FitQuestion:
    index: int
    phase: Phase
    candidates: tuple[Candidate, ...]


@attrs.frozen(kw_only=True)
class AskFit:
    """Would these find room, together? From: a deployment; answered by `FitAnswered`."""

    request: str
    deployment: DeploymentId
    questions: tuple[FitQuestion, ...]
    evict: bool


@attrs.frozen(kw_only=True)
class WindowOver:
    """The admission window of a switch is over. From: our own timer."""

    switch: SwitchId


@attrs.frozen(kw_only=True)
class SwitchTimedOut:
    """A switch took longer than it may. From: our own timer."""

    switch: SwitchId


@attrs.frozen(kw_only=True)
class Sampled:
    """What a host's memory looks like now. From: the sampler."""

    host: HostId
    sample: MemorySample


@attrs.frozen(kw_only=True)
class HostPublished:
    """A host's memory counts from now on. From: the hosts actor, when it first connects.

    Told again with the same shape it changes nothing; a changed shape was refused before.
    """

    host: HostId
    name: str
    """What people call it."""
    shape: MachineShape
    parked_max: int | None = None
    """Most parked instances on it (`max_parked`); None: any number."""


@attrs.frozen(kw_only=True)
class HostEligible:
    """Whether anything new may begin on a host. From: the hosts actor, when it changes.

    A host of which nothing was told is eligible once it is published.
    """

    host: HostId
    eligible: bool
    why: str = ""
    """Of one that is not, in words: ``offline``, ``draining``, ``revoked`` …"""
    parks: bool = True
    """Whether what runs there may still be parked: not where the release is too old or too new."""


PlacementMessage: TypeAlias = (
    Reserve
    | Widen
    | Withdraw
    | AskPark
    | Charge
    | Free
    | EvictionFailed
    | Occupy
    | AskFit
    | WindowOver
    | SwitchTimedOut
    | Sampled
    | HostPublished
    | HostEligible
)
