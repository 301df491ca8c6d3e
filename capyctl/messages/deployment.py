"""Everything a deployment actor may be told. Data only: ids, never refs; no behaviour."""

from __future__ import annotations

import enum
from typing import TypeAlias

import attrs

from capyctl.domain.checkpoints import CheckpointFacts, SourceRecord
from capyctl.domain.ids import HostId, InstanceId, SwitchId
from capyctl.domain.specs import DeploymentSpec
from capyctl.messages.instance import Cause


class ActionKind(enum.Enum):
    START = "start"
    STOP = "stop"
    PARK = "park"
    PREINITIALIZE = "preinitialize"
    DELETE = "delete"


@attrs.frozen(kw_only=True)
class ReceiptKey:
    """Under what an accepted change is remembered."""

    scope: str
    key: str
    fingerprint: str


@attrs.frozen(kw_only=True)
class Act:
    """An operator's action. From: the API, as an ask; answered with the receipt's JSON."""

    action: ActionKind
    instance: int | None
    """One instance, or None for the whole deployment."""
    expected_revision: int
    deadline_at_ms: int
    evict: bool = False
    receipt: ReceiptKey


@attrs.frozen(kw_only=True)
class Replace:
    """A new document. From: the API, as an ask; answered with the receipt's JSON."""

    spec: DeploymentSpec
    expected_revision: int
    receipt: ReceiptKey


@attrs.frozen(kw_only=True)
class RoutesGranted:
    """The catalogue gave this deployment the routes it claimed. Answers `ClaimRoutes`."""

    claim: str


@attrs.frozen(kw_only=True)
class RoutesRefused:
    """A route or name belongs to another deployment. Answers `ClaimRoutes`."""

    claim: str
    route: str


@attrs.frozen(kw_only=True)
class InstanceChanged:
    """An instance committed a change; read it in the directory. From: its actor."""

    instance: InstanceId
    cause: Cause | None
    ended: tuple[str, ...] = ()
    """Operations that ended with it."""
    start_failed: bool = False
    """A start or wake failed, or was given up, in this very change."""
    park_failed: str | None = None
    """Why a park came to nothing in this very change; None when none did."""
    restarted: bool = False
    """Its actor began anew, and has not read what was told before."""
    moved: bool = True
    """Its state is another one than before."""


@attrs.frozen(kw_only=True)
class DemandArose:
    """Requests wait for this model. From: the data plane, when none was told yet."""


@attrs.frozen(kw_only=True)
class SourceMoved:
    """How far the download of the model's files is. From: our own measuring task."""

    revision: int
    record: SourceRecord


@attrs.frozen(kw_only=True)
class CheckpointMeasured:
    """The model's files, measured whole. From: our own measuring task."""

    revision: int
    host: HostId
    facts: CheckpointFacts


@attrs.frozen(kw_only=True)
class CheckpointUnmeasured:
    """The files could not be measured; it is tried again. From: our own measuring task."""

    revision: int
    host: HostId
    diagnostic: str
    detail: str


FilesMoved: TypeAlias = SourceMoved | CheckpointMeasured | CheckpointUnmeasured


@attrs.frozen(kw_only=True)
class FitAnswered:
    """Whether instances would find room. From: placement; answers `AskFit`."""

    request: str
    fitting: tuple[int, ...]
    """Indexes that fit."""
    shortage: str | None
    """For people, with figures: what does not fit and why. None when all fit."""
    code: str = "capacity_blocked"
    """What a refusal for want of room is called."""
    victims: tuple[InstanceId, ...] = ()
    switch: SwitchId | None = None


@attrs.frozen(kw_only=True)
class HostsChanged:
    """Something about these hosts is different: whether they can be used, or what they publish.

    From: the hosts actor.
    """

    hosts: tuple[HostId, ...]


@attrs.frozen(kw_only=True)
class LookAgain:
    """Time passed: retry, idle, or a step of a longer operation. From: our own timer."""

    why: str


@attrs.frozen(kw_only=True)
class Unanswered:
    """Placement or the catalogue did not answer. From: our own timer."""

    request: str


DeploymentMessage: TypeAlias = (
    Act
    | Replace
    | RoutesGranted
    | RoutesRefused
    | InstanceChanged
    | DemandArose
    | SourceMoved
    | CheckpointMeasured
    | CheckpointUnmeasured
    | FitAnswered
    | HostsChanged
    | LookAgain
    | Unanswered
)
