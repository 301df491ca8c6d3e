"""What was measured of a revision's launches, and the charges that follow from it."""

from __future__ import annotations

from collections.abc import Iterable

import attrs

from capyctl.domain.ids import HostId
from capyctl.domain.specs import Candidate, Charges, Measured, StartupSource
from capyctl.domain.units import parse_bytes


def merged(known: tuple[Measured, ...], fresh: Measured) -> tuple[Measured, ...]:
    """One entry per host. Larger figures win; another installation of the engine begins anew."""
    before = _of_host(known, fresh.host)
    others = tuple(one for one in known if one.host != fresh.host)
    if before is None or before.installation != fresh.installation:
        return (*others, fresh)
    after = attrs.evolve(
        before,
        peak=_larger(before.peak, fresh.peak),
        residue=_larger(before.residue, fresh.residue),
    )
    return known if after == before else (*others, after)


def _of_host(known: Iterable[Measured], host: HostId) -> Measured | None:
    return next((one for one in known if one.host == host), None)


def _larger(one: Charges, other: Charges) -> Charges:
    return {name: max(one.get(name, 0), other.get(name, 0)) for name in {**one, **other}}


def measured_candidate(candidate: Candidate, known: tuple[Measured, ...]) -> Candidate:
    """``candidate`` charged by what was measured on its host, where anything was.

    1. Declared phases stay; a declared start stays.
    2. The peak of a start replaces the placeholder, never below the ready charge: a charge
       only ever falls until the next is asked for.
    3. What a park leaves replaces its placeholder, never below that nor above ready.
    """
    found = _of_host(known, candidate.host)
    if found is None or candidate.declared:
        return candidate
    charges, startup = candidate.charges, candidate.startup
    parked = {
        name: min(max(held, found.residue.get(name, 0)), charges.ready.get(name, held))
        for name, held in charges.parked.items()
    }
    cold = charges.cold
    peaks = {name: found.peak[name] for name in cold if name in found.peak}
    if startup is not StartupSource.DECLARED and peaks:
        cold = {**cold, **{n: max(p, charges.ready.get(n, 0)) for n, p in peaks.items()}}
        startup = StartupSource.MEASURED
    return attrs.evolve(
        candidate, charges=attrs.evolve(charges, cold=cold, parked=parked), startup=startup
    )


def growth_max_bytes(limit: str, first_bytes: int) -> int | None:
    """By how much a parked charge may exceed its first measured one; None: by any amount.

    ``limit`` is `parked_growth_limit`: ``auto`` (the first charge again), ``off``, a percentage
    of the first charge, or a size.
    """
    if limit == "off":
        return None
    if limit == "auto":
        return first_bytes
    if limit.endswith("%"):
        return first_bytes * int(limit.removesuffix("%")) // 100
    return parse_bytes(limit)
