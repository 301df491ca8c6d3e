"""Where an instance goes, and who must go first. Decides only; changes nothing."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import TypeAlias

import attrs

from capyctl.domain.ids import DomainName, HostId, InstanceId
from capyctl.domain.specs import Candidate, Charges, Phase
from capyctl.domain.victims import Victim
from capyctl.ledger.ledger import Entry, Foreign, Ledger, Shortage, free, free_all, hold, lacks
from capyctl.ledger.places import (
    DeviceTaken,
    HostFull,
    Hosts,
    Obstacle,
    Wanted,
    entry_for,
    obstacle,
    on_its_device,
    placed,
    preference,
)
from capyctl.ledger.victims import (
    NO_PARK,
    Occupant,
    after_park,
    full_name,
    in_order,
    may_go,
    parked_count,
    parked_shortage,
)
from capyctl.ledger.whole_host import takes_whole_host

PLANS_MAX = 4096
"""Bound on the sets of victims that are looked at for one place."""
SEARCH_MAX = 8 * PLANS_MAX
"""The same for all places of one plan; past it only the simplest sets are tried."""

UNKNOWN = "it has not connected yet"

Occupants: TypeAlias = Mapping[InstanceId, Occupant]


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
    """Not even with every unprotected instance gone, and every machine there."""

    empty_host: bool = False
    """Its start takes a whole host, which may hold nothing but parked models."""
    obstacles: tuple[Obstacle, ...] = ()
    """What is in the way on each machine that may be used, by id; the nearest place of each."""
    closed: tuple[tuple[HostId, str], ...] = ()
    """Machines that could run it and may not be used now, by id, and why."""

    @property
    def ineligible(self) -> bool:
        """No machine that could run it may be used now."""
        return bool(self.closed) and not self.obstacles


Plan: TypeAlias = Fits | FitsAfter | NoRoom
_NO_HOSTS = Hosts()


def plan(
    ledger: Ledger,
    wanted: Wanted,
    occupants: Occupants,
    *,
    may_evict: bool,
    foreign: Foreign | None = None,
    hosts: Hosts = _NO_HOSTS,
) -> Plan:
    """The best place for ``wanted``, on machines where something may begin.

    1. A place where it fits as things are, by `places.preference`.
    2. Evicting: on the one place with the fewest victims, none of them ready ones of the same
       model; among those, the ones served elsewhere, then the least recently used, then by
       preference.
    3. Evicting, and nothing else would do: parked copies of the same model go too.
    4. No room, with the figures of the place that comes nearest.
    """
    hosts = _with_unknown(ledger, wanted, hosts)
    open_ones = tuple(c for c in wanted.candidates if c.host not in hosts.closed)
    usable = attrs.evolve(wanted, candidates=open_ones)
    place = _place_now(ledger, usable, foreign, hosts)
    if place is not None:
        return Fits(ledger_version=ledger.version, candidate=place)
    if may_evict:
        kept_free = {*hosts.promised, *hosts.switching}
        places = tuple(c for c in open_ones if c.host not in kept_free)
        within = attrs.evolve(usable, candidates=places)
        own = _own_parked(wanted, occupants)
        most = hosts.parked_max
        found = _evict(ledger, within, occupants, foreign, most) or (
            _evict(ledger, within, own, foreign, most) if own else None
        )
        if found is not None:
            return found
    return _no_room(ledger, wanted, occupants, foreign, hosts)


def _with_unknown(ledger: Ledger, wanted: Wanted, hosts: Hosts) -> Hosts:
    """A machine without books is closed: nothing would seem too much for it."""
    unknown = {c.host: UNKNOWN for c in wanted.candidates if not ledger.domains_of(c.host)}
    if not unknown:
        return hosts
    return attrs.evolve(hosts, closed={**unknown, **hosts.closed})


def _place_now(
    ledger: Ledger, wanted: Wanted, foreign: Foreign | None, hosts: Hosts
) -> Candidate | None:
    fitting = [
        place
        for candidate in wanted.candidates
        if (place := placed(ledger, candidate, wanted, foreign, hosts.promised.get(candidate.host)))
        is not None
    ]
    return min(fitting, key=lambda c: preference(ledger, c, wanted), default=None)


def _own_parked(wanted: Wanted, occupants: Occupants) -> Occupants | None:
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
    occupants: Occupants,
    foreign: Foreign | None,
    parked_max: Mapping[HostId, int],
) -> FitsAfter | None:
    best: tuple[tuple[object, ...], FitsAfter] | None = None
    movable = _movable(ledger, wanted, occupants)
    search = _Search(ledger=ledger, movable=movable, parked_max=parked_max)
    for candidate in wanted.candidates:
        most = None if best is None else len(best[1].victims)
        victims = _victims(wanted, candidate, search, foreign, most)
        if victims is None:
            continue
        going = [occupants[v.instance] for v in victims]
        rank = (
            len(victims),
            any(not o.ready_elsewhere for o in going),
            max(o.last_used_s for o in going),
            *preference(ledger, candidate, wanted),
        )
        if best is None or rank < best[0]:
            found = FitsAfter(ledger_version=ledger.version, candidate=candidate, victims=victims)
            best = (rank, found)
    return None if best is None else best[1]


@attrs.define
class _Search:
    """One plan's look for victims: who may go, by host, and how much may still be looked at."""

    ledger: Ledger
    movable: Mapping[HostId, Sequence[Occupant]]
    parked_max: Mapping[HostId, int]
    left_count: int = SEARCH_MAX
    _books: dict[HostId, Ledger] = attrs.field(factory=dict)

    def books(self, host: HostId) -> Ledger:
        """Of that host alone: sets are tried on little."""
        found = self._books.get(host)
        if found is None:
            found = self._books[host] = self.ledger.only(host)
        return found

    def sets(self, here: Sequence[Occupant], most: int | None) -> Iterator[Sequence[Occupant]]:
        """Fewest first; past the bound more and more of them, in their order, until all go."""
        size_max = len(here) if most is None else min(most, len(here))
        for chosen in itertools.islice(_sets(here, size_max), min(PLANS_MAX, self.left_count)):
            self.left_count -= 1
            yield chosen
        for size in range(1, size_max + 1):
            yield here[:size]


def _sets(occupants: Sequence[Occupant], size_max: int) -> Iterator[tuple[Occupant, ...]]:
    for size in range(1, size_max + 1):
        yield from itertools.combinations(occupants, size)


def _movable(
    ledger: Ledger, wanted: Wanted, occupants: Occupants
) -> Mapping[HostId, Sequence[Occupant]]:
    found: dict[HostId, list[Occupant]] = {c.host: [] for c in wanted.candidates}
    for occupant in in_order(o for o in occupants.values() if may_go(o)):
        entry = ledger.entries.get(occupant.instance)
        if entry is None or entry.host not in found or occupant.instance == wanted.instance:
            continue
        mine = occupant.instance.deployment == wanted.instance.deployment
        if mine and occupant.state == "ready":
            continue  # Another of it in its place would serve no more, and nothing meanwhile.
        found[entry.host].append(occupant)
    return found


def _victims(
    wanted: Wanted,
    candidate: Candidate,
    search: _Search,
    foreign: Foreign | None,
    most: int | None,
) -> tuple[Victim, ...] | None:
    """The fewest that make room on this place, at most ``most``; or None."""
    ledger = search.books(candidate.host)
    here = [
        o
        for o in search.movable[candidate.host]
        if _in_the_way(ledger, ledger.entries[o.instance], candidate, wanted)
    ]
    short = {}
    if not takes_whole_host(ledger, candidate, wanted.phase):
        charges = candidate.charges.of(wanted.phase)
        short = lacks(ledger, candidate.host, charges, replaces=wanted.instance, foreign=foreign)
    if not _free_enough(ledger, here, short):
        return None
    for chosen in search.sets(here, most):
        if not _free_enough(ledger, chosen, short):
            continue
        for stops in (False, True):
            after, victims = _without(ledger, chosen, search.parked_max, stop=stops)
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


def _in_the_way(ledger: Ledger, entry: Entry, candidate: Candidate, wanted: Wanted) -> bool:
    """It is on the same host, and takes what is needed: memory, the device, or a place."""
    if takes_whole_host(ledger, candidate, wanted.phase) and entry.phase is not Phase.PARKED:
        return True
    if on_its_device(entry, candidate):
        return True
    counts = wanted.max_per_host is not None
    if counts and entry.instance.deployment == wanted.instance.deployment:
        return True
    return any(entry.charges.get(name, 0) > 0 for name in candidate.charges.of(wanted.phase))


def _without(
    ledger: Ledger, chosen: Sequence[Occupant], parked_max: Mapping[HostId, int], *, stop: bool
) -> tuple[Ledger, tuple[Victim, ...]]:
    """The ledger once these have given way; parked where that may be, unless ``stop``."""
    victims = []
    for occupant in chosen:
        entry = ledger.entries[occupant.instance]
        why = None if stop else _why_stopped(ledger, entry, occupant, parked_max.get(entry.host))
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


def _why_stopped(ledger: Ledger, entry: Entry, occupant: Occupant, most: int | None) -> str | None:
    """Why a victim that could park is stopped; None where it is parked, or never parks."""
    if not occupant.parks or occupant.state != "ready":
        return None
    if occupant.grown:
        return "parked_growth"
    if most is not None and parked_count(ledger, entry.host, without=entry.instance) >= most:
        return NO_PARK
    short = parked_shortage(ledger, entry, occupant.parked)
    if short is None:
        return None
    return full_name(short)


def _no_room(
    ledger: Ledger,
    wanted: Wanted,
    occupants: Occupants,
    foreign: Foreign | None,
    hosts: Hosts,
) -> NoRoom:
    nearest: dict[HostId, Obstacle] = {}
    hopeless = True
    bare = free_all(ledger, _who_may_leave(ledger, wanted, occupants))
    wholes = [takes_whole_host(ledger, c, wanted.phase) for c in wanted.candidates]
    for candidate in wanted.candidates:
        host = candidate.host
        hopeless = hopeless and placed(bare, candidate, wanted, None) is None
        if host in hosts.closed:
            continue
        found = obstacle(ledger, candidate, wanted, foreign)
        if found is not None and (host not in nearest or _far(found) < _far(nearest[host])):
            nearest[host] = found
    obstacles = tuple(nearest[host] for host in sorted(nearest))
    closed = {c.host: hosts.closed[c.host] for c in wanted.candidates if c.host in hosts.closed}
    return NoRoom(
        short=min((o for o in obstacles if isinstance(o, Shortage)), key=_lack, default=None),
        hopeless=hopeless,
        empty_host=bool(wholes) and all(wholes),
        obstacles=obstacles,
        closed=tuple(sorted(closed.items())),
    )


def _who_may_leave(ledger: Ledger, wanted: Wanted, occupants: Occupants) -> list[InstanceId]:
    """All but what is protected: what nothing was told of yet may leave as well."""
    places = dict.fromkeys(candidate.host for candidate in wanted.candidates)
    return [
        id
        for host in places
        for id in ledger.entries_on(host)
        if id != wanted.instance and not (id in occupants and occupants[id].protected)
    ]


def _far(found: Obstacle) -> tuple[int, int, str]:
    """The smaller, the more it is worth telling: no order of the places decides."""
    match found:
        case Shortage():
            return 0, _lack(found), found.domain.name
        case DeviceTaken():
            return 1, 0, found.gpu
        case HostFull():
            return 2, 0, ""


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
    entry = entry_for(wanted, found.candidate)
    return hold(
        ledger,
        attrs.evolve(entry, charges=_covering(entry.charges, before), ask=ask, before=before),
    )


def _covering(charges: Charges, before: Entry | None) -> Charges:
    held = {} if before is None else before.charges
    return {name: max(charges.get(name, 0), held.get(name, 0)) for name in {**held, **charges}}
