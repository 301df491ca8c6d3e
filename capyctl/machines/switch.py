"""One switch: making room on a host by moving others out of the way, for one instance."""

from __future__ import annotations

import enum
from typing import TypeAlias

import attrs

from capyctl.domain.events import NewEvent
from capyctl.domain.ids import HostId, InstanceId, SwitchId
from capyctl.domain.victims import Victim


class SwitchState(enum.Enum):
    PLANNED = "planned"
    """The admission window runs: victims still take requests."""
    ADMISSION_CLOSED = "admission_closed"
    """Victims drain, park or stop."""
    RELEASED = "released"
    """There is room; the target starts or wakes."""
    COMPLETED = "completed"
    FAILED = "failed"


OVER = frozenset({SwitchState.COMPLETED, SwitchState.FAILED})
WINDOW_S = 2.0


@attrs.frozen(kw_only=True)
class Switch:
    """One host's turn. At most one is open per host."""

    id: SwitchId
    state: SwitchState = SwitchState.PLANNED
    target: InstanceId
    ask: str
    host: HostId
    victims: tuple[Victim, ...]
    explicit: bool
    """An operator's evicting start, not a request."""
    left: frozenset[InstanceId]
    """Victims that have not given way yet."""
    released: tuple[tuple[InstanceId, str], ...] = ()
    """Victims that have given way, and how."""
    failed_because: str | None = None

    def __attrs_post_init__(self) -> None:
        assert self.state is not SwitchState.RELEASED or not self.left


class SwitchEvent(enum.Enum):
    WINDOW_OVER = "window_over"
    TARGET_UP = "target_up"
    TARGET_GONE = "target_gone"
    TOO_LITTLE = "too_little"


@attrs.frozen
class VictimGone:
    instance: InstanceId
    how: str = "parked"
    """``parked``, ``stopped``, ``stopped (no room to park)`` …"""


@attrs.frozen
class VictimStayed:
    instance: InstanceId
    reason: str
    name: str = ""
    """What people call it."""


Happening: TypeAlias = SwitchEvent | VictimGone | VictimStayed


def open_switch(
    *,
    id: SwitchId,
    target: InstanceId,
    ask: str,
    host: HostId,
    victims: tuple[Victim, ...],
    explicit: bool,
) -> Switch:
    return Switch(
        id=id,
        target=target,
        ask=ask,
        host=host,
        victims=victims,
        explicit=explicit,
        left=frozenset(v.instance for v in victims),
    )


def advance(switch: Switch, happened: Happening) -> Switch:
    """The switch after one happening; the same value when that changes nothing.

    1. The window is over: admission closes.
    2. The last victim has given way: there is room.
    3. A victim stayed: the switch failed; the others serve on or wake on demand.
    4. The target is up: completed. It left before, or there is still no room for it: failed.
    """
    if switch.state in OVER:
        return switch
    match happened:
        case SwitchEvent.WINDOW_OVER:
            if switch.state is SwitchState.PLANNED:
                return attrs.evolve(switch, state=SwitchState.ADMISSION_CLOSED)
            return switch
        case VictimGone(instance=instance, how=how):
            if instance not in switch.left:
                return switch
            left = switch.left - {instance}
            gone = attrs.evolve(switch, left=left, released=(*switch.released, (instance, how)))
            if left or switch.state is SwitchState.RELEASED:
                return gone
            return attrs.evolve(gone, state=SwitchState.RELEASED)
        case VictimStayed(instance=instance, reason=reason, name=name):
            if instance not in switch.left:
                return switch
            why = f"{name or instance} did not give way: {reason}"
            return attrs.evolve(switch, state=SwitchState.FAILED, failed_because=why)
        case SwitchEvent.TARGET_UP:
            return attrs.evolve(switch, state=SwitchState.COMPLETED)
        case SwitchEvent.TOO_LITTLE:
            why = "the room that was made is not enough"
            return attrs.evolve(switch, state=SwitchState.FAILED, failed_because=why)
        case SwitchEvent.TARGET_GONE:
            why = switch.failed_because or "the model it was for did not start"
            return attrs.evolve(switch, state=SwitchState.FAILED, failed_because=why)


def window_left_s(
    now_s: float, opened_at_s: float, last_used_s: float, *, window_s: float
) -> float:
    """Seconds until admission closes.

    The window starts with the switch and never again; it ends early once the victims
    have been without a lease and without activity for one window length.
    """
    quiet_until_s = last_used_s + window_s
    return max(0.0, min(opened_at_s + window_s, quiet_until_s) - now_s)


def switch_event(switch: Switch) -> NewEvent:
    """The event that a switch reached its present state."""
    return NewEvent(
        kind=f"switch_{switch.state.value}",
        deployment=switch.target.deployment,
        operation=None,
        payload={
            "phase": switch.state.value,
            "switch_id": switch.id,
            "target_deployment": switch.target.deployment,
            "host": switch.host,
            "victims": [str(v.instance) for v in switch.victims],
            "explicit": switch.explicit,
            "detail": (switch.failed_because or _released(switch))[:512],
        },
    )


def stopped(why: str | None) -> str:
    """How a victim that was stopped gave way, in the words of a switch's record."""
    return "stopped" if why is None else f"stopped ({why})"


def _released(switch: Switch) -> str:
    """``released: parked``; with several victims each is named."""
    if not switch.released:
        return ""
    if len(switch.victims) == 1:
        return f"released: {switch.released[0][1]}"
    return "released: " + ", ".join(f"{one} {how}" for one, how in switch.released)
