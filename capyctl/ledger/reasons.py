"""Why something does not fit, in words: the same in the status, an answer and the log."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from capyctl.domain.devices import MemoryKind
from capyctl.domain.ids import InstanceId
from capyctl.domain.units import gib
from capyctl.ledger.ledger import Holder, Shortage
from capyctl.ledger.plan import NoRoom

HOLDERS_MAX = 3
Names: TypeAlias = Callable[[InstanceId], str]
"""What people call an instance."""


def why_no_room(found: NoRoom, names: Names) -> str:
    """One line: code, need, what is available, who holds the rest, what to do."""
    short = found.short
    if short is None:
        return "no_host_fits: no machine can hold it; give the model less memory"
    device = short.domain.kind is MemoryKind.DEVICE
    code = "insufficient_device_memory" if device else "insufficient_memory"
    if found.empty_host:
        code = "startup_requires_empty_host"
    needs = (
        f"{code}: needs {gib(short.need_bytes)} of {short.domain.name} memory, "
        f"{gib(short.available_bytes)} available"
    )
    return f"{needs}{_held(short, names)}; {_advice(found, short)}"


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


def _advice(found: NoRoom, short: Shortage) -> str:
    if found.empty_host:
        return "its first start takes the whole machine: park or stop what runs"
    limit = short.domain.managed_limit_bytes
    if short.need_bytes > limit:
        return f"the limit is {gib(limit)}: give the model less memory"
    if not short.holders:
        return "end the programs that hold it, or give the model less memory"
    if found.hopeless:
        return "stop one of these models; warm and explicit ones never make way by themselves"
    return "park or stop one of these models"
