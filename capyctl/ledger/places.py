"""Whether an instance may go to a place, what is in its way there, and which place is best."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import TypeAlias

import attrs

from capyctl.domain.ids import GpuId, HostId, InstanceId
from capyctl.domain.specs import Candidate, Charges, Phase, Strategy
from capyctl.ledger.ledger import Entry, Foreign, Holder, Ledger, Shortage, shortage
from capyctl.ledger.whole_host import host_is_empty, takes_whole_host, whole_host


@attrs.frozen(kw_only=True)
class Wanted:
    """A request for the memory of one phase, and where it may be."""

    instance: InstanceId
    phase: Phase
    candidates: tuple[Candidate, ...]
    strategy: Strategy = Strategy.SPREAD
    max_per_host: int | None = None
    """Most instances of its deployment on one host."""
    last_host: str | None = None
    """Where it was before: it goes there again, where that is as good."""
    last_gpu: str | None = None


@attrs.frozen(kw_only=True)
class Hosts:
    """What is known of machines beside their memory."""

    closed: Mapping[HostId, str] = attrs.field(factory=dict)
    """Where nothing may begin now, and why in words."""
    promised: Mapping[HostId, Entry] = attrs.field(factory=dict)
    """A charge that is promised to somebody else and not booked yet."""
    switching: Collection[HostId] = ()
    """Others are being moved there already: nobody else may be."""
    parked_max: Mapping[HostId, int] = attrs.field(factory=dict)
    """Most parked instances on a machine; any number where none is named."""


@attrs.frozen(kw_only=True)
class HostFull:
    """As many of the deployment run there as may."""

    host: HostId
    count: int


@attrs.frozen(kw_only=True)
class DeviceTaken:
    """Somebody runs on the device, and it or the one that is to come wants it alone."""

    host: HostId
    gpu: GpuId
    holders: tuple[Holder, ...]


Obstacle: TypeAlias = Shortage | HostFull | DeviceTaken


def entry_for(wanted: Wanted, candidate: Candidate) -> Entry:
    """What ``wanted`` is charged on ``candidate``."""
    return Entry(
        instance=wanted.instance,
        host=candidate.host,
        phase=wanted.phase,
        charges=candidate.charges.of(wanted.phase),
        gpu=candidate.gpu,
        exclusive=candidate.exclusive,
    )


def placed(
    ledger: Ledger,
    candidate: Candidate,
    wanted: Wanted,
    foreign: Foreign | None,
    beside: Entry | None = None,
) -> Candidate | None:
    """``candidate`` with what it is to be charged there now; None when it cannot be there.

    A start whose placeholder is larger than its host takes all that is left of an empty one.
    ``beside``: a charge on that host that is promised to somebody else.
    """
    mine = wanted.instance
    if _full(ledger, candidate, wanted, beside) or _taken(ledger, candidate, wanted, beside):
        return None
    if takes_whole_host(ledger, candidate, wanted.phase):
        if beside is not None or not host_is_empty(ledger, candidate.host, but=mine):
            return None
        ready = candidate.charges.ready
        if shortage(ledger, candidate.host, ready, replaces=mine, foreign=foreign) is not None:
            return None
        return whole_host(ledger, candidate, but=mine)
    charges = _with_promise(candidate.charges.of(wanted.phase), beside)
    short = shortage(ledger, candidate.host, charges, replaces=mine, foreign=foreign)
    return candidate if short is None else None


def obstacle(
    ledger: Ledger, candidate: Candidate, wanted: Wanted, foreign: Foreign | None
) -> Obstacle | None:
    """What keeps it from going there as things are, the first of: count, device, memory."""
    full = _full(ledger, candidate, wanted, None)
    if full is not None:
        return full
    taken = _taken(ledger, candidate, wanted, None)
    if taken is not None:
        return taken
    charges = candidate.charges.of(wanted.phase)
    return shortage(ledger, candidate.host, charges, replaces=wanted.instance, foreign=foreign)


def _with_promise(charges: Charges, beside: Entry | None) -> Charges:
    if beside is None:
        return charges
    return {name: need + beside.charges.get(name, 0) for name, need in charges.items()}


def siblings_count(ledger: Ledger, host: HostId, wanted: Wanted) -> int:
    """Instances of the same deployment that hold memory there, whatever they do."""
    return sum(
        id.deployment == wanted.instance.deployment and id != wanted.instance
        for id in ledger.entries_on(host)
    )


def _full(
    ledger: Ledger, candidate: Candidate, wanted: Wanted, beside: Entry | None
) -> HostFull | None:
    """A wake is of one that counts already."""
    most = wanted.max_per_host
    if most is None or wanted.phase is Phase.WAKE:
        return None
    count = siblings_count(ledger, candidate.host, wanted)
    if beside is not None and beside.instance.deployment == wanted.instance.deployment:
        count += beside.instance not in ledger.entries_on(candidate.host)
    return HostFull(host=candidate.host, count=count) if count >= most else None


def on_its_device(entry: Entry, candidate: Candidate) -> bool:
    """Whether it runs on the device of ``candidate``, and one of the two wants that alone."""
    return (
        (entry.exclusive or candidate.exclusive)
        and candidate.gpu is not None
        and entry.gpu == candidate.gpu
        and entry.phase is not Phase.PARKED
    )


def _taken(
    ledger: Ledger, candidate: Candidate, wanted: Wanted, beside: Entry | None
) -> DeviceTaken | None:
    there = ledger.entries_on(candidate.host).values()
    entries = there if beside is None else (*there, beside)
    held = [e for e in entries if on_its_device(e, candidate) and e.instance != wanted.instance]
    if not held or candidate.gpu is None:
        return None
    holders = [
        Holder(
            instance=entry.instance,
            phase=entry.phase,
            held_bytes=max(entry.charges.values(), default=0),
        )
        for entry in held
    ]
    holders.sort(key=lambda h: (-h.held_bytes, str(h.instance)))
    return DeviceTaken(host=candidate.host, gpu=candidate.gpu, holders=tuple(holders))


Preference: TypeAlias = tuple[int, int, int, str, int]


def preference(ledger: Ledger, candidate: Candidate, wanted: Wanted) -> Preference:
    """The smallest is the best place.

    1. By the number of its deployment's instances on the host: fewest, or most where they are
       packed. 2. Where it was before: that device, then that host. 3. By the room that is left:
       most, or least. 4. By host id and the index of the device.
    """
    packs = wanted.strategy is Strategy.PACK
    count = siblings_count(ledger, candidate.host, wanted)
    left = _left_bytes(ledger, candidate, wanted)
    moved = 2
    if candidate.host == wanted.last_host:
        moved = 0 if candidate.gpu == wanted.last_gpu else 1
    return (
        -count if packs else count,
        moved,
        left if packs else -left,
        candidate.host,
        _index(candidate.gpu),
    )


def _left_bytes(ledger: Ledger, candidate: Candidate, wanted: Wanted) -> int:
    """What the fullest of its pools has left once it is there."""
    domains = ledger.domains_of(candidate.host)
    return min(
        (
            domains[name].managed_limit_bytes
            - ledger.charged_bytes((candidate.host, name), without=wanted.instance)
            - need
            for name, need in candidate.charges.of(wanted.phase).items()
            if name in domains
        ),
        default=0,
    )


def _index(gpu: GpuId | None) -> int:
    digits = "" if gpu is None else gpu.removeprefix("gpu")
    return int(digits) if digits.isascii() and digits.isdigit() else -1
