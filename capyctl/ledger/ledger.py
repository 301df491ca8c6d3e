"""Who is charged how much of which memory. A value; the placement actor owns the live one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeAlias

import attrs

from capyctl.domain.devices import MachineShape, MemoryDomain, MemoryKind, MemorySample
from capyctl.domain.ids import DomainName, HostId, InstanceId
from capyctl.domain.specs import Charges, Phase
from capyctl.domain.units import gib

Pool: TypeAlias = tuple[HostId, DomainName]


@attrs.frozen(kw_only=True)
class Entry:
    """What one instance is charged, and where."""

    instance: InstanceId
    host: HostId
    phase: Phase
    charges: Charges
    ask: str | None = None
    """The granted request, until its instance has confirmed a later phase."""
    before: Entry | None = None
    """What a withdrawn wake goes back to."""


@attrs.frozen(kw_only=True)
class Shortage:
    """What does not fit: one pool, with its figures."""

    host: HostId
    domain: MemoryDomain
    need_bytes: int
    available_bytes: int

    def __str__(self) -> str:
        device = self.domain.kind is MemoryKind.DEVICE
        code = "insufficient_device_memory" if device else "insufficient_memory"
        return (
            f"{code}: needs {gib(self.need_bytes)} of {self.domain.name} memory, "
            f"{gib(max(0, self.available_bytes))} available"
        )


@attrs.frozen(kw_only=True)
class Ledger:
    """Charges per instance. A ledger that books more than a limit cannot be built."""

    version: int = 0
    pools: Mapping[Pool, MemoryDomain]
    entries: Mapping[InstanceId, Entry] = attrs.field(factory=dict)

    def __attrs_post_init__(self) -> None:
        for pool, domain in self.pools.items():
            charged = self.charged_bytes(pool)
            assert charged <= domain.managed_limit_bytes, (
                f"{pool[1]} of {pool[0]} is overbooked: {charged} of {domain.managed_limit_bytes}"
            )

    def charged_bytes(self, pool: Pool, *, without: InstanceId | None = None) -> int:
        """Bytes charged on ``pool``, leaving one instance out."""
        host, domain = pool
        return sum(
            entry.charges.get(domain, 0)
            for entry in self.entries.values()
            if entry.host == host and entry.instance != without
        )

    def parked_bytes(self, pool: Pool, *, without: InstanceId | None = None) -> int:
        """Bytes charged on ``pool`` for parked instances."""
        host, domain = pool
        return sum(
            entry.charges.get(domain, 0)
            for entry in self.entries.values()
            if entry.host == host
            and entry.instance != without
            and entry.phase in (Phase.PARKED, Phase.PARKING)
        )


def open_ledger(shapes: tuple[MachineShape, ...]) -> Ledger:
    """An empty ledger over the domains of these machines."""
    return Ledger(pools={(s.host, d.name): d for s in shapes for d in s.domains})


Samples: TypeAlias = Mapping[HostId, MemorySample]
Foreign: TypeAlias = Mapping[Pool, int]
"""Bytes on each pool that no charge explains, as last seen."""


def shortage(
    ledger: Ledger,
    host: HostId,
    charges: Charges,
    *,
    replaces: InstanceId | None = None,
    foreign: Foreign | None = None,
) -> Shortage | None:
    """The first pool on which ``charges`` do not fit, or None. The one rule of fitting.

    On each pool: charges of all others, plus these, plus what programs that are not ours
    hold beyond the free reserve, may not exceed the managed limit.
    ``replaces``: the instance whose present charge gives way to these.
    """
    for name, need_bytes in charges.items():
        domain = ledger.pools.get((host, name))
        if domain is None:
            continue
        taken = ledger.charged_bytes((host, name), without=replaces)
        unexplained = (foreign or {}).get((host, name), 0)
        excess = max(0, unexplained - domain.free_reserve_bytes)
        available = domain.managed_limit_bytes - taken - excess
        if need_bytes > available:
            return Shortage(
                host=host, domain=domain, need_bytes=need_bytes, available_bytes=available
            )
    return None


def foreign_bytes(ledger: Ledger, samples: Samples) -> Foreign:
    """Bytes in use on each device that no charge explains; nothing where none was sampled.

    ``ledger`` is the live one, never one that is only being considered: what a victim
    would free is explained by its charge until it has gone. Only devices count: host RAM
    is shared with everything else, and its limits are shares of it.
    """
    found: dict[Pool, int] = {}
    for pool, domain in ledger.pools.items():
        host, name = pool
        sample = samples.get(host)
        if sample is None or domain.kind is not MemoryKind.DEVICE:
            continue
        if name in sample.available_bytes:
            used = domain.total_bytes - sample.available_bytes[name]
            found[pool] = max(0, used - ledger.charged_bytes(pool))
    return found


def hold(ledger: Ledger, entry: Entry) -> Ledger:
    """The ledger with ``entry`` in place of what its instance held before."""
    entries = {**ledger.entries, entry.instance: entry}
    return attrs.evolve(ledger, version=ledger.version + 1, entries=entries)


def free(ledger: Ledger, instance: InstanceId) -> Ledger:
    """The ledger without any charge of ``instance``; unchanged if it had none."""
    if instance not in ledger.entries:
        return ledger
    entries = {k: e for k, e in ledger.entries.items() if k != instance}
    return attrs.evolve(ledger, version=ledger.version + 1, entries=entries)


def withdraw(ledger: Ledger, instance: InstanceId, ask: str) -> Ledger:
    """Undo the grant of ``ask``: nothing is held, or what was held before the wake."""
    entry = ledger.entries.get(instance)
    if entry is None or entry.ask != ask:
        return ledger
    if entry.before is not None:
        return hold(ledger, entry.before)
    return free(ledger, instance)


def charge(ledger: Ledger, instance: InstanceId, phase: Phase, charges: Charges) -> Ledger:
    """The ledger with the instance's charge lowered (or kept) for a later phase.

    A measured charge above what is booked is cut to it: more is asked for, never taken.
    """
    entry = ledger.entries.get(instance)
    assert entry is not None, f"{instance} is charged for {phase.value} but holds nothing"
    kept = {
        name: min(wanted, max(entry.charges.get(name, 0), _room(ledger, entry, name)))
        for name, wanted in charges.items()
    }
    return hold(ledger, attrs.evolve(entry, phase=phase, charges=kept, ask=None, before=None))


def _room(ledger: Ledger, entry: Entry, name: DomainName) -> int:
    domain = ledger.pools.get((entry.host, name))
    if domain is None:
        return 0
    taken = ledger.charged_bytes((entry.host, name), without=entry.instance)
    return domain.managed_limit_bytes - taken
