"""Who is charged how much of which memory. A value; the placement actor owns the live one."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TypeAlias

import attrs

from capyctl.domain.devices import MachineShape, MemoryDomain, MemoryKind, MemorySample
from capyctl.domain.ids import DomainName, GpuId, HostId, InstanceId
from capyctl.domain.specs import Charges, Phase

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
    parks_to: Charges | None = None
    """What it will be charged once the park under way is done; counts as parked already."""
    gpu: GpuId | None = None
    """The device that it runs on."""
    exclusive: bool = False
    """Nothing else may run on that device; what is parked does not run."""


@attrs.frozen(kw_only=True)
class Holder:
    """Who holds how much of a pool."""

    instance: InstanceId
    phase: Phase
    held_bytes: int


@attrs.frozen(kw_only=True)
class Shortage:
    """What does not fit: one pool, with its figures. `reasons` puts it into words."""

    host: HostId
    domain: MemoryDomain
    need_bytes: int
    available_bytes: int
    holders: tuple[Holder, ...] = ()
    """Largest first."""
    outside_bytes: int = 0
    """Held by programs that are not ours, beyond the free reserve."""


_Entries: TypeAlias = Mapping[InstanceId, Entry]
_Domains: TypeAlias = Mapping[DomainName, MemoryDomain]


@attrs.frozen(kw_only=True)
class Ledger:
    """Charges per instance. A ledger that books more than a limit cannot be built."""

    version: int = 0
    pools: Mapping[Pool, MemoryDomain]
    """Changed by `with_domains` only, as ``entries`` is by `hold` and `free`."""
    entries: Mapping[InstanceId, Entry] = attrs.field(factory=dict)
    _entries_on: Mapping[HostId, _Entries] | None = attrs.field(default=None, eq=False, repr=False)
    """``entries`` of each host; kept up to date, because every figure is one host's."""
    _domains_of: Mapping[HostId, _Domains] | None = attrs.field(default=None, eq=False, repr=False)
    _charged_on: Mapping[HostId, Charges] | None = attrs.field(default=None, eq=False, repr=False)
    """Sums of all charges on each host."""

    def __attrs_post_init__(self) -> None:
        if self._charged_on is not None:
            return  # of a change to one host, which is checked there
        domains: dict[HostId, dict[DomainName, MemoryDomain]] = {}
        for (host, name), domain in self.pools.items():
            domains.setdefault(host, {})[name] = domain
        entries: dict[HostId, dict[InstanceId, Entry]] = {}
        for id, entry in self.entries.items():
            entries.setdefault(entry.host, {})[id] = entry
        object.__setattr__(self, "_domains_of", domains)
        object.__setattr__(self, "_entries_on", entries)
        sums = {host: _sums(here) for host, here in entries.items()}
        object.__setattr__(self, "_charged_on", sums)
        for host in domains:
            self._check(host)

    def _check(self, host: HostId) -> None:
        for name, domain in self.domains_of(host).items():
            charged = self.charged_bytes((host, name))
            assert charged <= domain.managed_limit_bytes, (
                f"{name} of {host} is overbooked: {charged} of {domain.managed_limit_bytes}"
            )

    @property
    def hosts_count(self) -> int:
        """Machines whose memory counts."""
        assert self._domains_of is not None
        return len(self._domains_of)

    def domains_of(self, host: HostId) -> _Domains:
        """The pools of one host; none for one that is not known."""
        assert self._domains_of is not None
        return self._domains_of.get(host, {})

    def entries_on(self, host: HostId) -> _Entries:
        """What is charged on one host."""
        assert self._entries_on is not None
        return self._entries_on.get(host, {})

    def changed(self, host: HostId, here: _Entries, entries: _Entries) -> Ledger:
        """The next version, with ``here`` on ``host``, which ``entries`` of all agree with."""
        assert self._entries_on is not None
        assert self._charged_on is not None
        after = attrs.evolve(
            self,
            version=self.version + 1,
            entries=entries,
            entries_on={**self._entries_on, host: here},
            charged_on={**self._charged_on, host: _sums(here)},
        )
        after._check(host)
        return after

    def only(self, host: HostId) -> Ledger:
        """The books of one host alone, to try things on."""
        pools = {(host, name): domain for name, domain in self.domains_of(host).items()}
        return Ledger(version=self.version, pools=pools, entries=self.entries_on(host))

    def charged_bytes(self, pool: Pool, *, without: InstanceId | None = None) -> int:
        """Bytes charged on ``pool``, leaving one instance out."""
        host, domain = pool
        assert self._charged_on is not None
        charged = self._charged_on.get(host, {}).get(domain, 0)
        left_out = None if without is None else self.entries_on(host).get(without)
        return charged if left_out is None else charged - left_out.charges.get(domain, 0)

    def parked_bytes(self, pool: Pool, *, without: InstanceId | None = None) -> int:
        """Bytes charged on ``pool`` for parked instances, and promised to those that park."""
        host, domain = pool
        return sum(
            (entry.charges if entry.parks_to is None else entry.parks_to).get(domain, 0)
            for entry in self.entries_on(host).values()
            if entry.instance != without
            and (entry.phase is Phase.PARKED or entry.parks_to is not None)
        )

    def holders(self, pool: Pool, *, without: InstanceId | None = None) -> tuple[Holder, ...]:
        """Who is charged on ``pool``, largest first."""
        host, domain = pool
        found = [
            Holder(instance=e.instance, phase=e.phase, held_bytes=e.charges[domain])
            for e in self.entries_on(host).values()
            if e.instance != without and e.charges.get(domain, 0) > 0
        ]
        return tuple(sorted(found, key=lambda h: (-h.held_bytes, str(h.instance))))


def _sums(entries: _Entries) -> dict[DomainName, int]:
    found: dict[DomainName, int] = {}
    for entry in entries.values():
        for name, held in entry.charges.items():
            found[name] = found.get(name, 0) + held
    return found


def open_ledger(shapes: tuple[MachineShape, ...]) -> Ledger:
    """An empty ledger over the domains of these machines."""
    return Ledger(pools={(s.host, d.name): d for s in shapes for d in s.domains})


def with_domains(ledger: Ledger, host: HostId, domains: Sequence[MemoryDomain]) -> Ledger:
    """The ledger in which ``host`` has these pools, and no others.

    A limit that is below what is held does not make anything hold less: the pool is widened to
    that, and nothing new fits until something leaves.
    """
    held = {d.name: ledger.charged_bytes((host, d.name)) for d in domains}
    fresh = {
        d.name: attrs.evolve(d, managed_limit_bytes=max(d.managed_limit_bytes, held[d.name]))
        for d in domains
    }
    if ledger.domains_of(host) == fresh:
        return ledger
    pools = {pool: d for pool, d in ledger.pools.items() if pool[0] != host}
    pools |= {(host, name): domain for name, domain in fresh.items()}
    return Ledger(version=ledger.version + 1, pools=pools, entries=ledger.entries)


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
        excess = _excess(domain, (foreign or {}).get((host, name), 0))
        taken = ledger.charged_bytes((host, name), without=replaces)
        available = domain.managed_limit_bytes - taken - excess
        if need_bytes > available:
            return Shortage(
                host=host,
                domain=domain,
                need_bytes=need_bytes,
                available_bytes=max(0, available),
                holders=ledger.holders((host, name), without=replaces),
                outside_bytes=excess,
            )
    return None


def _excess(domain: MemoryDomain, unexplained: int) -> int:
    return max(0, unexplained - domain.free_reserve_bytes)


def lacks(
    ledger: Ledger,
    host: HostId,
    charges: Charges,
    *,
    replaces: InstanceId | None = None,
    foreign: Foreign | None = None,
) -> dict[DomainName, int]:
    """Bytes that are short on each pool on which ``charges`` do not fit, by `shortage`'s rule."""
    found = {}
    for name, need_bytes in charges.items():
        domain = ledger.pools.get((host, name))
        if domain is None:
            continue
        excess = _excess(domain, (foreign or {}).get((host, name), 0))
        taken = ledger.charged_bytes((host, name), without=replaces)
        lack = need_bytes + taken + excess - domain.managed_limit_bytes
        if lack > 0:
            found[name] = lack
    return found


def foreign_bytes(ledger: Ledger, samples: Samples) -> Foreign:
    """Bytes in use on each device that no charge explains; nothing where none was sampled.

    ``ledger`` is the live one, never one that is only being considered: what a victim
    would free is explained by its charge until it has gone. Only devices count: host RAM
    is shared with everything else, and its limits are shares of it.
    """
    found: dict[Pool, int] = {}
    for host, sample in samples.items():
        for name, domain in ledger.domains_of(host).items():
            if domain.kind is MemoryKind.DEVICE and name in sample.available_bytes:
                used = domain.total_bytes - sample.available_bytes[name]
                found[host, name] = max(0, used - ledger.charged_bytes((host, name)))
    return found


def foreign_since(ledger: Ledger, fresh: Samples, before: Foreign) -> Foreign:
    """What others hold, by the newest looks and by what was known before them.

    A pool that was not seen keeps its figure. While a start or wake is charged there whose
    memory is not resident yet, the charge would hide what others hold: then the figure only grows.
    """
    seen = foreign_bytes(ledger, fresh)
    found = {**before, **seen}
    for pool in seen:
        if any(
            e.phase in (Phase.COLD, Phase.WAKE) and e.charges.get(pool[1], 0) > 0
            for e in ledger.entries_on(pool[0]).values()
        ):
            found[pool] = max(seen[pool], before.get(pool, 0))
    return found


def hold(ledger: Ledger, entry: Entry) -> Ledger:
    """The ledger with ``entry`` in place of what its instance held before."""
    before = ledger.entries.get(entry.instance)
    if before is not None and before.host != entry.host:
        ledger = free(ledger, entry.instance)
    here = {**ledger.entries_on(entry.host), entry.instance: entry}
    return ledger.changed(entry.host, here, {**ledger.entries, entry.instance: entry})


def free(ledger: Ledger, instance: InstanceId) -> Ledger:
    """The ledger without any charge of ``instance``; unchanged if it had none."""
    return free_all(ledger, (instance,))


def free_all(ledger: Ledger, instances: Iterable[InstanceId]) -> Ledger:
    """As `free`, of several."""
    gone = {i: ledger.entries[i].host for i in instances if i in ledger.entries}
    if not gone:
        return ledger
    entries = {k: e for k, e in ledger.entries.items() if k not in gone}
    for host in dict.fromkeys(gone.values()):
        here = {k: e for k, e in ledger.entries_on(host).items() if k not in gone}
        ledger = ledger.changed(host, here, entries)
    return ledger


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
    return hold(
        ledger,
        attrs.evolve(entry, phase=phase, charges=kept, ask=None, before=None, parks_to=None),
    )


def promise_park(ledger: Ledger, instance: InstanceId, parked: Charges) -> Ledger:
    """The ledger with room kept for what the instance will be charged once it is parked."""
    entry = ledger.entries.get(instance)
    return ledger if entry is None else hold(ledger, attrs.evolve(entry, parks_to=parked))


def _room(ledger: Ledger, entry: Entry, name: DomainName) -> int:
    domain = ledger.pools.get((entry.host, name))
    if domain is None:
        return 0
    taken = ledger.charged_bytes((entry.host, name), without=entry.instance)
    return domain.managed_limit_bytes - taken
