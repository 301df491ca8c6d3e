"""Where an instance goes, and who must go first. Decides only; changes nothing."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import TypeAlias

import attrs

from capyctl.domain.ids import DomainName, InstanceId
from capyctl.domain.specs import Candidate, Charges, Phase
from capyctl.domain.victims import Victim
from capyctl.ledger.ledger import Entry, Foreign, Ledger, Shortage, free, hold, lacks, shortage
from capyctl.ledger.victims import (
    Occupant,
    after_park,
    full_name,
    in_order,
    may_go,
    parked_shortage,
)
from capyctl.ledger.whole_host import host_is_empty, takes_whole_host, whole_host

PLANS_MAX = 4096
"""Bound on the sets of victims that are looked at for one place."""


@attrs.frozen(kw_only=True)
class Wanted:
    """A request for the memory of one phase, and where it may be."""

    instance: InstanceId
    phase: Phase
    candidates: tuple[Candidate, ...]


@attrs.frozen(kw_only=True)
class Fits:
    """It fits now. Valid only against ``ledger_version``."""

    ledger_version: int
    candidate: Candidate


@attrs.frozen(kw_only=True)
class FitsAfter:
    """It fits once these have gone. Valid only against ``ledger_version``."""

    ledger_version: int
    candidate: Candidate
    victims: tuple[Victim, ...]


@attrs.frozen(kw_only=True)
class NoRoom:
    """It fits nowhere, even with everybody gone who may go now."""

    short: Shortage | None
    """Of the place that comes nearest; None when there is no place at all."""
    hopeless: bool
    """Not even with every unprotected instance gone."""

    empty_host: bool = False
    """Its start takes a whole host, which may hold nothing but parked models."""


Plan: TypeAlias = Fits | FitsAfter | NoRoom


def plan(
    ledger: Ledger,
    wanted: Wanted,
    occupants: Mapping[InstanceId, Occupant],
    *,
    may_evict: bool,
    foreign: Foreign | None = None,
    beside: Entry | None = None,
) -> Plan:
    """The best place for ``wanted``.

    1. A place where it fits as things are: most room left, then by device name.
    2. Evicting: on the one place with the fewest victims; among those, the ones
       served elsewhere, then the least recently used.
    3. Evicting, and nothing else would do: parked copies of the same model go too.
    4. No room, with the figures of the place that comes nearest.

    ``beside``: a charge that is promised to somebody else and not booked yet.
    """
    place = _place_now(ledger, wanted, foreign, beside)
    if place is not None:
        return Fits(ledger_version=ledger.version, candidate=place)
    if may_evict and beside is None:
        own = _own_parked(wanted, occupants)
        found = _evict(ledger, wanted, occupants, foreign) or (
            _evict(ledger, wanted, own, foreign) if own else None
        )
        if found is not None:
            return found
    return _no_room(ledger, wanted, occupants, foreign)


def _place_now(
    ledger: Ledger, wanted: Wanted, foreign: Foreign | None, beside: Entry | None
) -> Candidate | None:
    fitting = [
        place
        for candidate in wanted.candidates
        if (place := placed(ledger, candidate, wanted, foreign, beside)) is not None
    ]
    return min(fitting, key=lambda c: _rank(ledger, c, wanted), default=None)


def placed(
    ledger: Ledger,
    candidate: Candidate,
    wanted: Wanted,
    foreign: Foreign | None,
    beside: Entry | None = None,
) -> Candidate | None:
    """``candidate`` with what it is to be charged there now; None when it does not fit.

    A start whose placeholder is larger than its host takes all that is left of an empty one.
    """
    mine = wanted.instance
    charges = candidate.charges.of(wanted.phase)
    if takes_whole_host(ledger, candidate, wanted.phase):
        if beside is not None or not host_is_empty(ledger, candidate.host, but=mine):
            return None
        ready = candidate.charges.ready
        if shortage(ledger, candidate.host, ready, replaces=mine, foreign=foreign) is not None:
            return None
        return whole_host(ledger, candidate, but=mine)
    charges = _with_promise(charges, candidate, beside)
    short = shortage(ledger, candidate.host, charges, replaces=mine, foreign=foreign)
    return candidate if short is None else None


def _with_promise(charges: Charges, candidate: Candidate, beside: Entry | None) -> Charges:
    if beside is None or beside.host != candidate.host:
        return charges
    return {name: need + beside.charges.get(name, 0) for name, need in charges.items()}


def _rank(ledger: Ledger, candidate: Candidate, wanted: Wanted) -> tuple[int, str, str]:
    charges = candidate.charges.of(wanted.phase)
    left = min(
        (
            ledger.pools[(candidate.host, name)].managed_limit_bytes
            - ledger.charged_bytes((candidate.host, name), without=wanted.instance)
            - need
            for name, need in charges.items()
            if (candidate.host, name) in ledger.pools
        ),
        default=0,
    )
    return (-left, candidate.host, candidate.gpu or "")


def _own_parked(
    wanted: Wanted, occupants: Mapping[InstanceId, Occupant]
) -> Mapping[InstanceId, Occupant] | None:
    """The occupants, where parked ones of the deployment itself may go though it is waited for.

    Else a model would wait for memory that only its own parked copies hold. None: it has none.
    """
    mine = {
        id: attrs.evolve(o, waiting=False, protected=False)
        for id, o in occupants.items()
        if id.deployment == wanted.instance.deployment
        and id != wanted.instance
        and o.state == "parked"
    }
    return {**occupants, **mine} if mine else None


def _evict(
    ledger: Ledger,
    wanted: Wanted,
    occupants: Mapping[InstanceId, Occupant],
    foreign: Foreign | None,
) -> FitsAfter | None:
    best: tuple[tuple[int, bool, float, str], FitsAfter] | None = None
    for candidate in wanted.candidates:
        victims = _victims(ledger, wanted, candidate, occupants, foreign)
        if victims is None:
            continue
        going = [occupants[v.instance] for v in victims]
        rank = (
            len(victims),
            any(not o.ready_elsewhere for o in going),
            max(o.last_used_s for o in going),
            f"{candidate.host}/{candidate.gpu}",
        )
        if best is None or rank < best[0]:
            found = FitsAfter(ledger_version=ledger.version, candidate=candidate, victims=victims)
            best = (rank, found)
    return None if best is None else best[1]


def _victims(
    ledger: Ledger,
    wanted: Wanted,
    candidate: Candidate,
    occupants: Mapping[InstanceId, Occupant],
    foreign: Foreign | None,
) -> tuple[Victim, ...] | None:
    """The fewest that make room on this place, or None."""
    here = [
        o
        for o in in_order(occupants.values())
        if o.instance != wanted.instance
        and may_go(o)
        and _in_the_way(ledger, ledger.entries.get(o.instance), candidate, wanted)
    ]
    short = {}
    if not takes_whole_host(ledger, candidate, wanted.phase):
        charges = candidate.charges.of(wanted.phase)
        short = lacks(ledger, candidate.host, charges, replaces=wanted.instance, foreign=foreign)
    for chosen in itertools.chain(itertools.islice(_sets(here), PLANS_MAX), _prefixes(here)):
        if not _free_enough(ledger, chosen, short):
            continue
        for stops in (False, True):
            after, victims = _without(ledger, chosen, stop=stops)
            if placed(after, candidate, wanted, foreign) is not None:
                return victims
    return None


def _free_enough(
    ledger: Ledger, chosen: Sequence[Occupant], short: Mapping[DomainName, int]
) -> bool:
    """Whether it could fit if all of these were stopped: most sets are passed over by this sum."""
    return all(
        sum(ledger.entries[o.instance].charges.get(name, 0) for o in chosen) >= lack
        for name, lack in short.items()
    )


def _in_the_way(ledger: Ledger, entry: Entry | None, candidate: Candidate, wanted: Wanted) -> bool:
    if entry is None or entry.host != candidate.host:
        return False
    if takes_whole_host(ledger, candidate, wanted.phase) and entry.phase is not Phase.PARKED:
        return True
    return any(entry.charges.get(name, 0) > 0 for name in candidate.charges.of(wanted.phase))


def _sets(occupants: Sequence[Occupant]) -> Iterator[tuple[Occupant, ...]]:
    for size in range(1, len(occupants) + 1):
        yield from itertools.combinations(occupants, size)


def _prefixes(occupants: Sequence[Occupant]) -> Iterator[Sequence[Occupant]]:
    """Past the bound: more and more of them, in their order, until all are gone."""
    for size in range(1, len(occupants) + 1):
        yield occupants[:size]


def _without(
    ledger: Ledger, chosen: Sequence[Occupant], *, stop: bool
) -> tuple[Ledger, tuple[Victim, ...]]:
    """The ledger once these have given way; parked where that may be, unless ``stop``."""
    victims = []
    for occupant in chosen:
        entry = ledger.entries[occupant.instance]
        why = None if stop else _why_stopped(ledger, entry, occupant)
        parks = not stop and why is None and occupant.parks and occupant.state == "ready"
        if parks:
            ledger = hold(ledger, after_park(entry, occupant))
        else:
            ledger = free(ledger, occupant.instance)
        windowed = occupant.state == "ready" and not occupant.ready_elsewhere
        victims.append(
            Victim(instance=occupant.instance, stop=not parks, windowed=windowed, why=why)
        )
    return ledger, tuple(victims)


def _why_stopped(ledger: Ledger, entry: Entry, occupant: Occupant) -> str | None:
    """Why a victim that could park is stopped; None where it is parked, or never parks."""
    if not occupant.parks or occupant.state != "ready":
        return None
    if occupant.grown:
        return "parked_growth"
    short = parked_shortage(ledger, entry, occupant.parked)
    if short is None:
        return None
    return full_name(short)


def _no_room(
    ledger: Ledger,
    wanted: Wanted,
    occupants: Mapping[InstanceId, Occupant],
    foreign: Foreign | None,
) -> NoRoom:
    nearest: Shortage | None = None
    hopeless = True
    bare = ledger
    for instance in ledger.entries:
        known = occupants.get(instance)
        if instance != wanted.instance and (known is None or not known.protected):
            bare = free(bare, instance)
    wholes = [takes_whole_host(ledger, c, wanted.phase) for c in wanted.candidates]
    for candidate in wanted.candidates:
        charges = candidate.charges.of(wanted.phase)
        short = shortage(ledger, candidate.host, charges, replaces=wanted.instance, foreign=foreign)
        if short is not None and (nearest is None or _lack(short) < _lack(nearest)):
            nearest = short
        if placed(bare, candidate, wanted, None) is not None:
            hopeless = False
    return NoRoom(short=nearest, hopeless=hopeless, empty_host=bool(wholes) and all(wholes))


def _lack(short: Shortage) -> int:
    return short.need_bytes - short.available_bytes


def commit(ledger: Ledger, wanted: Wanted, found: Fits, *, ask: str) -> Ledger | None:
    """The ledger with ``found`` booked, or None when it was planned against an older one.

    What a wake takes the place of stays booked where it is larger, so that it can be gone
    back to.
    """
    if found.ledger_version != ledger.version:
        return None
    before = ledger.entries.get(wanted.instance)
    entry = Entry(
        instance=wanted.instance,
        host=found.candidate.host,
        phase=wanted.phase,
        charges=_covering(found.candidate.charges.of(wanted.phase), before),
        ask=ask,
        before=before,
    )
    return hold(ledger, entry)


def _covering(charges: Charges, before: Entry | None) -> Charges:
    held = {} if before is None else before.charges
    return {name: max(charges.get(name, 0), held.get(name, 0)) for name in {**held, **charges}}
