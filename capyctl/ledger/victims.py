"""Who may be moved out of the way, what that frees, and in which order they are asked."""

from __future__ import annotations

from collections.abc import Iterable

import attrs

from capyctl.domain.ids import InstanceId
from capyctl.domain.specs import Charges, Phase
from capyctl.ledger.ledger import Entry, Ledger


@attrs.frozen(kw_only=True)
class Occupant:
    """What is known of an instance that holds memory."""

    instance: InstanceId
    state: str
    """``ready``, ``parked``, or anything else: then it is never a victim."""
    parks: bool
    protected: bool
    """Warm or explicitly activated."""
    waiting: bool
    """Requests wait for its deployment."""
    ready_elsewhere: bool
    """Its deployment serves on without it."""
    last_used_s: float
    parked: Charges
    """What it would be charged once parked."""


def may_go(occupant: Occupant) -> bool:
    """Never warm, explicit or waited for; only what is settled."""
    settled = occupant.state in ("ready", "parked")
    return settled and not occupant.protected and not occupant.waiting


def in_order(occupants: Iterable[Occupant]) -> list[Occupant]:
    """Served elsewhere first, then least recently used, then by name, so plans repeat."""
    return sorted(occupants, key=lambda o: (not o.ready_elsewhere, o.last_used_s, str(o.instance)))


def after_park(entry: Entry, occupant: Occupant) -> Entry:
    return attrs.evolve(entry, phase=Phase.PARKED, charges=occupant.parked, ask=None, before=None)


def parked_room(ledger: Ledger, entry: Entry, parked: Charges) -> bool:
    """Whether one more parked copy stays within the parked limits of its host."""
    for name, parked_bytes in parked.items():
        domain = ledger.pools.get((entry.host, name))
        if domain is None:
            continue
        taken = ledger.parked_bytes((entry.host, name), without=entry.instance)
        if taken + parked_bytes > domain.parked_limit_bytes:
            return False
    return True
