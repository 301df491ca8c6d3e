"""Who may be moved out of the way, what that frees, and in which order they are asked."""

from __future__ import annotations

from collections.abc import Iterable

import attrs

from capyctl.domain.devices import MemoryKind
from capyctl.domain.ids import HostId, InstanceId
from capyctl.domain.specs import Charges, Phase
from capyctl.ledger.ledger import Entry, Ledger, Shortage

NO_PARK = "no room to park"


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
    grown: bool = False
    """Its engine keeps ever more while parked: the next park is a stop."""


def may_go(occupant: Occupant) -> bool:
    """Never warm, explicit or waited for; only what is settled."""
    settled = occupant.state in ("ready", "parked")
    return settled and not occupant.protected and not occupant.waiting


def in_order(occupants: Iterable[Occupant]) -> list[Occupant]:
    """Served elsewhere first, then least recently used, then by name, so plans repeat."""
    return sorted(occupants, key=lambda o: (not o.ready_elsewhere, o.last_used_s, str(o.instance)))


def after_park(entry: Entry, occupant: Occupant) -> Entry:
    return attrs.evolve(
        entry,
        phase=Phase.PARKED,
        charges=occupant.parked,
        ask=None,
        before=None,
        parks_to=None,
    )


def parked_shortage(ledger: Ledger, entry: Entry, parked: Charges) -> Shortage | None:
    """Where one more parked copy would exceed the parked limit of its host; None: nowhere.

    The figures are those of the parked limit: what is available of it, and who is parked there.
    """
    for name, parked_bytes in parked.items():
        pool = (entry.host, name)
        domain = ledger.pools.get(pool)
        if domain is None:
            continue
        taken = ledger.parked_bytes(pool, without=entry.instance)
        if taken + parked_bytes > domain.parked_limit_bytes:
            holders = ledger.holders(pool, without=entry.instance)
            return Shortage(
                host=entry.host,
                domain=domain,
                need_bytes=parked_bytes,
                available_bytes=max(0, domain.parked_limit_bytes - taken),
                holders=tuple(h for h in holders if h.phase is Phase.PARKED),
            )
    return None


def parked_count(ledger: Ledger, host: HostId, *, without: InstanceId) -> int:
    """Instances that are parked there, or have room promised to park."""
    return sum(
        entry.phase is Phase.PARKED or entry.parks_to is not None
        for id, entry in ledger.entries_on(host).items()
        if id != without
    )


def full_name(short: Shortage) -> str:
    """What a record of a switch calls a parked limit that is reached."""
    beside_card = short.domain.kind is MemoryKind.DISTINCT
    return "host RAM full" if beside_card else NO_PARK
