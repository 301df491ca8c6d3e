"""What an instance's launches were seen to take, as it is kept for later ones."""

from __future__ import annotations

import attrs

from capyctl.domain.events import NewEvent
from capyctl.domain.ids import HostId
from capyctl.domain.specs import Charges, Measured
from capyctl.machines.instance import Instance


def with_peak(one: Instance, peak: Charges) -> Measured | None:
    """``one.seen`` with the peak of the start that has just ended."""
    if not peak or one.held is None:
        return None
    return Measured(host=HostId(one.held.candidate.host), installation=_files_of(one), peak=peak)


def with_residue(one: Instance, residue: Charges) -> Measured:
    """``one.seen`` with what the park that has just ended left; the largest is kept."""
    assert one.held is not None
    host = HostId(one.held.candidate.host)
    seen = one.seen or Measured(host=host, installation=_files_of(one))
    largest = {
        name: max(seen.residue.get(name, 0), residue.get(name, 0))
        for name in {**seen.residue, **residue}
    }
    return attrs.evolve(seen, residue=largest)


def drift_flagged(one: Instance) -> NewEvent | None:
    """The event that the engine's files are not what they were when its profile was first used."""
    found = None if one.launch is None else one.launch.installation
    if found is None or not found.flag or one.held is None or one.launch is None:
        return None
    return NewEvent(
        kind="installation_drift_flagged",
        deployment=one.id.deployment,
        operation=None,
        payload={
            "host_id": one.held.candidate.host,
            "installation": one.launch.profile,
            "registered_digest": found.registered,
            "observed_digest": found.observed,
        },
    )


def _files_of(one: Instance) -> str | None:
    installation = None if one.launch is None else one.launch.installation
    return None if installation is None else installation.observed
