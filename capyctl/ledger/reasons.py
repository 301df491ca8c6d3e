"""Why something does not fit, in words: the same in the status, an answer and the log."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

from capyctl.domain.devices import MemoryKind
from capyctl.domain.ids import HostId, InstanceId
from capyctl.domain.specs import HostRefusal
from capyctl.domain.units import gib
from capyctl.ledger.ledger import Holder, Shortage
from capyctl.ledger.places import DeviceTaken, HostFull, Obstacle
from capyctl.ledger.plan import NoRoom

HOLDERS_MAX = 3
MACHINES_MAX = 8
"""Machines that are named in one line."""
Names: TypeAlias = Callable[[InstanceId], str]
"""What people call an instance."""
Machines: TypeAlias = Callable[[HostId], str]
"""What people call a machine."""


def why_no_room(
    found: NoRoom,
    names: Names,
    *,
    machines: Machines = str,
    refused: Sequence[HostRefusal] = (),
) -> str:
    """One line: code, need, what is available, who holds the rest, what to do.

    Where several machines could be meant, each is named, and why not there: ``refused`` are
    those that the deployment may not or cannot run on.
    """
    away = [(host, why) for host, why in found.closed]
    closed = {host for host, _ in away}
    away += [
        (one.host, one.detail.removeprefix(f"{machines(one.host)}: "))
        for one in refused
        if one.host not in closed
    ]
    if len(found.obstacles) + len(away) > 1:
        return _of_several(found, away, names, machines)
    if away and not found.obstacles:
        host, why = away[0]
        return f"{_code(found)}: {machines(host)}: {why}"
    if found.obstacles and not isinstance(found.obstacles[0], Shortage):
        only = found.obstacles[0]
        return f"{_code(found)}: {_beside_memory(only, names)}; {_advice(found)}"
    short = found.short
    if short is None:
        return "no_host_fits: no machine can hold it; give the model less memory"
    needs = (
        f"{_code(found)}: needs {gib(short.need_bytes)} of {short.domain.name} memory, "
        f"{gib(short.available_bytes)} available"
    )
    return f"{needs}{_held(short, names)}; {_advice(found)}"


def _code(found: NoRoom) -> str:
    """What is in the way where it comes nearest."""
    if found.empty_host and found.obstacles:
        return "startup_requires_empty_host"
    if found.short is not None:
        device = found.short.domain.kind is MemoryKind.DEVICE
        return "insufficient_device_memory" if device else "insufficient_memory"
    if any(isinstance(one, DeviceTaken) for one in found.obstacles):
        return "device_conflict"
    return "host_ineligible" if found.ineligible else "no_host_fits"


def _of_several(
    found: NoRoom, away: list[tuple[HostId, str]], names: Names, machines: Machines
) -> str:
    parts = [f"{machines(one.host)}: {_there(one, names)}" for one in found.obstacles]
    parts += [f"{machines(host)}: {why}" for host, why in away]
    if len(parts) > MACHINES_MAX:
        parts = [*parts[:MACHINES_MAX], f"{len(parts) - MACHINES_MAX} more machines"]
    if not found.obstacles:
        why = "no machine that may run it can be used now" if found.closed else "none can run it"
        return f"{_code(found)}: {why} ({'; '.join(parts)})"
    return f"{_code(found)}: it fits on no machine ({'; '.join(parts)}); {_advice(found)}"


def _there(one: Obstacle, names: Names) -> str:
    if not isinstance(one, Shortage):
        return _beside_memory(one, names)
    return (
        f"needs {gib(one.need_bytes)} of {one.domain.name} memory, "
        f"{gib(one.available_bytes)} available{_held(one, names)}"
    )


def _beside_memory(one: HostFull | DeviceTaken, names: Names) -> str:
    if isinstance(one, HostFull):
        return f"{one.count} of its instances are there, as many as placement.max_per_host allows"
    others = [names(holder.instance) for holder in one.holders[:HOLDERS_MAX]]
    more = len(one.holders) - len(others)
    who = ", ".join([*others, f"{more} more"] if more else others)
    return f"{one.gpu} is not to be shared, and {who} runs on it"


def why_not_parked(short: Shortage, names: Names) -> str:
    """One line: what it would keep, what is left of the parked limit, and who is parked there."""
    return (
        f"parked it would keep {gib(short.need_bytes)} of {short.domain.name} memory, "
        f"{gib(short.available_bytes)} of the {gib(short.domain.parked_limit_bytes)} for parked "
        f"models available{_held(short, names)}; stop a parked model, or stop this one"
    )


def _held(short: Shortage, names: Names) -> str:
    parts = [_holder(holder, names) for holder in short.holders[:HOLDERS_MAX]]
    others = short.holders[HOLDERS_MAX:]
    if others:
        parts.append(f"{len(others)} more {gib(sum(h.held_bytes for h in others))}")
    if short.outside_bytes:
        parts.append(f"programs outside capyctl {gib(short.outside_bytes)} beyond the free reserve")
    return f" (held: {', '.join(parts)})" if parts else ""


def _holder(holder: Holder, names: Names) -> str:
    return f"{names(holder.instance)} {gib(holder.held_bytes)} {holder.phase.value}"


def _advice(found: NoRoom) -> str:
    short = found.short
    if found.empty_host:
        return "its first start takes the whole machine: park or stop what runs"
    if short is None:
        return "stop one of these models"
    limit = short.domain.managed_limit_bytes
    if short.need_bytes > limit:
        return f"the limit is {gib(limit)}: give the model less memory"
    if not short.holders:
        return "end the programs that hold it, or give the model less memory"
    if found.hopeless:
        return "stop one of these models; warm and explicit ones never make way by themselves"
    return "park or stop one of these models"
