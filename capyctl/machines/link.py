"""How a server stands with one of its hosts: which session is the one, and since when it is silent.

A cut connection is no news of its own: a host that dials again in time was never away. What
counts is when it was last heard, and whether it and the server agreed on what runs there.
"""

from __future__ import annotations

import enum
from typing import TypeAlias

import attrs

from capyctl.domain.hosts import Compatibility, compatibility
from capyctl.machines.table import Edge, Ignored, Moment, Step, Table, to, walk

PROTOCOL = 1
"""The number of the link's language. A frame that an older peer must not ignore raises it."""
REDIAL_MIN_S = 0.25
REDIAL_MAX_S = 5.0
"""Several attempts fit between a cut and the time at which a host counts as lost."""
CAPABILITIES = (
    "checkpoint_digest",
    "checkpoint_gguf",
    "device_memory_domains",
    "engine_log_tail",
    "heartbeats",
    "instance_index",
    "live_profile_update",
    "model_sources",
    "startup_bytes",
)
"""What a host of this release is able to do, as it says when it greets its server."""


class StandingState(enum.Enum):
    AWAITED = "awaited"
    """This server has not met it since it began; nothing was told of it."""
    LIVE = "live"
    """Told online; its session is agreed."""
    ADRIFT = "adrift"
    """Told online; it dials, greets or agrees anew, and was heard a moment ago."""
    SUSPENDED = "suspended"
    """Told suspended: silent for longer than a heartbeat may be late."""
    LOST = "lost"
    """Told lost: what runs there is not known."""


@attrs.frozen(kw_only=True)
class Silence:
    """How long a host may be silent, in seconds."""

    suspend_after_s: float = 5.0
    lost_after_s: float = 30.0

    def __attrs_post_init__(self) -> None:
        assert 0 < self.suspend_after_s < self.lost_after_s


@attrs.frozen(kw_only=True)
class Standing:
    """One host, as its server sees it. Times are seconds on the server's monotonic clock."""

    state: StandingState = StandingState.AWAITED
    silence: Silence
    heard_at_s: float
    """At first: when the server began to wait for it."""
    session: int | None = None
    """The newest session that was greeted; older ones are closed, and late in all they say."""
    agreed: bool = False
    """That session and the server agree on what runs on the host."""
    greeted_epoch: str | None = None
    epoch: str | None = None
    """Which process of the host was agreed with last."""

    def __attrs_post_init__(self) -> None:
        assert self.session is not None or not self.agreed
        assert self.agreed == (self.state is StandingState.LIVE)


@attrs.frozen
class Greeted:
    """A session of this host was welcomed."""

    session: int
    epoch: str
    at_s: float


@attrs.frozen
class Agreed:
    """A session was synced: the host ended what the server does not know."""

    session: int
    at_s: float


@attrs.frozen
class Heard:
    session: int
    at_s: float


@attrs.frozen
class Parted:
    """A session has ended, whoever ended it."""

    session: int


@attrs.frozen
class Looked:
    """Time has passed."""

    at_s: float


@attrs.frozen
class Dismissed:
    """The host was revoked, or removed."""


LinkEvent: TypeAlias = Greeted | Agreed | Heard | Parted | Looked | Dismissed


@attrs.frozen
class TellOnline:
    fresh: bool


@attrs.frozen
class TellSuspended:
    pass


@attrs.frozen
class TellLost:
    pass


@attrs.frozen
class CloseSession:
    session: int
    why: str
    """``replaced``, ``silent`` or ``host_revoked``."""


LinkEffect: TypeAlias = TellOnline | TellSuspended | TellLost | CloseSession


@attrs.frozen(kw_only=True)
class Greeting:
    """What a host's greeting comes to: a compatibility, or a refusal with a code and words."""

    compatibility: Compatibility
    code: str | None = None
    message: str = ""


def negotiate(*, protocol: int, host_version: str, server_version: str) -> Greeting:
    """Whether a host of this release may have a session, and what it may be used for.

    1. It speaks another protocol: refused, as nothing it says would be understood.
    2. It is newer than the server: refused until the server is upgraded.
    3. Otherwise as `domain.hosts.compatibility` says.
    """
    found = compatibility(host_version, server_version)
    if found is Compatibility.SERVER_BEHIND or protocol > PROTOCOL:
        return Greeting(
            compatibility=Compatibility.SERVER_BEHIND,
            code="server_upgrade_required",
            message=(
                f"the host runs capyctl {host_version}, which is newer than the server's "
                f"{server_version}: upgrade the server first"
            ),
        )
    if protocol < PROTOCOL:
        return Greeting(
            compatibility=Compatibility.UPGRADE_REQUIRED,
            code="host_upgrade_required",
            message=(
                f"the host runs capyctl {host_version} and speaks link protocol {protocol}; "
                f"this server speaks {PROTOCOL}: upgrade the host"
            ),
        )
    return Greeting(compatibility=found)


def is_rivalled(one: Standing, epoch: str, at_s: float) -> bool:
    """Whether another process greets while the one that is live was heard a moment ago.

    Then two machines have one identity, and the first stays: were the newer one let in, each would
    push the other out for ever. A process whose wire is dead is not heard for long.
    """
    lately = at_s - one.heard_at_s < one.silence.suspend_after_s / 2
    return one.agreed and one.epoch != epoch and lately


def redial_pause_s(attempt: int, chance: float) -> float:
    """Seconds before the next dial: doubling from a quarter, five at most, half of it by chance.

    Args:
        attempt: dials that failed since the last agreed session; 0 right after one ended.
        chance: from 0 to 1.
    """
    longest_s = min(REDIAL_MAX_S, REDIAL_MIN_S * 2.0 ** min(attempt, 16))
    return longest_s * (0.5 + 0.5 * chance)


# -- edges --------------------------------------------------------------------------------------


def _greet(one: Standing, event: Greeted, moment: Moment) -> Step[Standing]:
    """The newest session counts; an older one is closed, as its wire may be half dead."""
    close = () if one.session is None else (CloseSession(one.session, "replaced"),)
    state = StandingState.ADRIFT if one.state is StandingState.LIVE else one.state
    greeted = attrs.evolve(
        one,
        state=state,
        session=event.session,
        agreed=False,
        greeted_epoch=event.epoch,
        heard_at_s=event.at_s,
    )
    return Step(data=greeted, effects=close)


def _agree(one: Standing, event: Agreed, moment: Moment) -> Step[Standing]:
    """Online; fresh unless it is the same process as before and was never lost."""
    if event.session != one.session or one.agreed:
        return Step(data=one)
    apart = one.state in (StandingState.AWAITED, StandingState.LOST)
    fresh = apart or one.greeted_epoch != one.epoch
    live = attrs.evolve(
        one,
        state=StandingState.LIVE,
        agreed=True,
        epoch=one.greeted_epoch,
        heard_at_s=event.at_s,
    )
    return Step(data=live, effects=(TellOnline(fresh),))


def _hear(one: Standing, event: Heard, moment: Moment) -> Step[Standing]:
    """Noted."""
    if event.session != one.session:
        return Step(data=one)
    return Step(data=attrs.evolve(one, heard_at_s=event.at_s))


def _part(one: Standing, event: Parted, moment: Moment) -> Step[Standing]:
    """It has no session; how long it was silent decides what that means."""
    if event.session != one.session:
        return Step(data=one)
    state = StandingState.ADRIFT if one.state is StandingState.LIVE else one.state
    return Step(data=attrs.evolve(one, state=state, session=None, agreed=False))


def _look_suspend(one: Standing, event: Looked, moment: Moment) -> Step[Standing]:
    """Silent for too long: suspended. Its session is closed, so that it dials again at once."""
    if event.at_s - one.heard_at_s < one.silence.suspend_after_s:
        return Step(data=one)
    return _silenced(one, StandingState.SUSPENDED, TellSuspended(), "silent")


def _look_lost(one: Standing, event: Looked, moment: Moment) -> Step[Standing]:
    """Silent for so long that it is lost; a session that is greeted only is closed."""
    if event.at_s - one.heard_at_s < one.silence.lost_after_s:
        return Step(data=one)
    return _silenced(one, StandingState.LOST, TellLost(), "silent")


def _dismiss(one: Standing, event: Dismissed, moment: Moment) -> Step[Standing]:
    """Lost at once, and its session is closed."""
    tell = None if one.state is StandingState.LOST else TellLost()
    return _silenced(one, StandingState.LOST, tell, "host_revoked")


def _silenced(
    one: Standing, state: StandingState, tell: LinkEffect | None, why: str
) -> Step[Standing]:
    close = None if one.session is None else CloseSession(one.session, why)
    data = attrs.evolve(one, state=state, session=None, agreed=False)
    return Step(data=data, effects=tuple(effect for effect in (tell, close) if effect is not None))


AWAITED, LIVE, ADRIFT, SUSPENDED, LOST = StandingState


_Row = dict[type, Edge[Standing] | Ignored]


def _row(state: StandingState, own: _Row) -> _Row:
    after_parting = ADRIFT if state is LIVE else state
    return {
        Greeted: to(after_parting, by=_greet),
        Agreed: to(LIVE, state, by=_agree),
        Heard: to(state, by=_hear),
        Parted: to(state, after_parting, by=_part),
        Dismissed: to(LOST, by=_dismiss),
        **own,
    }


TABLE: Table[Standing] = {
    AWAITED: _row(AWAITED, {Looked: to(AWAITED, LOST, by=_look_lost)}),
    LIVE: _row(LIVE, {Looked: to(LIVE, SUSPENDED, by=_look_suspend)}),
    ADRIFT: _row(ADRIFT, {Looked: to(ADRIFT, SUSPENDED, by=_look_suspend)}),
    SUSPENDED: _row(SUSPENDED, {Looked: to(SUSPENDED, LOST, by=_look_lost)}),
    LOST: _row(LOST, {Looked: Ignored("it cannot be more lost")}),
}

_NO_MOMENT = Moment(now_ms=0, session_epoch=0, fresh=str)
"""Nothing here needs a wall clock or names: events bring their own monotonic time."""


def advance(one: Standing, event: LinkEvent) -> Step[Standing]:
    """The standing after one event, and what is to be told and closed, in order.

    What an older session says is late: it changes nothing. Pure; never raises.
    """
    return walk(TABLE, one, event, _NO_MOMENT)
