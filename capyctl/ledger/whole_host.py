"""A start whose placeholder is larger than its machine: it may begin on an empty one."""

from __future__ import annotations

from collections.abc import Mapping

import attrs

from capyctl.domain.devices import MemoryDomain
from capyctl.domain.ids import DomainName, HostId, InstanceId
from capyctl.domain.specs import Candidate, Charges, Phase, StartupSource
from capyctl.ledger.ledger import Ledger


def takes_whole_host(ledger: Ledger, candidate: Candidate, phase: Phase) -> bool:
    """Whether a start there exceeds a limit by its startup figure alone.

    Not for a declared figure, nor for a model that would be too large when ready.
    """
    if phase is not Phase.COLD or candidate.startup is StartupSource.DECLARED:
        return False
    domains, charges = ledger.domains_of(candidate.host), candidate.charges
    return _exceeds(charges.cold, domains) and not _exceeds(charges.ready, domains)


def _exceeds(charges: Charges, domains: Mapping[DomainName, MemoryDomain]) -> bool:
    return any(
        name in domains and held > domains[name].managed_limit_bytes
        for name, held in charges.items()
    )


def host_is_empty(ledger: Ledger, host: HostId, *, but: InstanceId) -> bool:
    """Nothing is ready, starting or waking there; parked models do not count."""
    return all(
        entry.phase is Phase.PARKED
        for entry in ledger.entries_on(host).values()
        if entry.instance != but
    )


def whole_host(ledger: Ledger, candidate: Candidate, *, but: InstanceId) -> Candidate:
    """``candidate`` charged with all that parked models leave of every domain of its host."""
    host = candidate.host
    cold = {
        name: max(0, domain.managed_limit_bytes - ledger.charged_bytes((host, name), without=but))
        for name, domain in ledger.domains_of(host).items()
    }
    charges = attrs.evolve(candidate.charges, cold=cold)
    return attrs.evolve(candidate, charges=charges, startup=StartupSource.WHOLE_HOST)
