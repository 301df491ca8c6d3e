"""What the snapshot says of a deployment's memory: its start, and what it keeps while parked."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from capyctl.domain.ids import DomainName
from capyctl.domain.measured import measured_candidate
from capyctl.domain.specs import Candidate, Charges, Residency, StartupSource
from capyctl.machines.deployment import Deployment, Picture


def memory_of(deployment: Deployment, picture: Picture) -> dict[str, Any]:
    """`startup` and `parked`; neither until the files are measured. Bytes are decimal text."""
    resolved = deployment.resolved
    if resolved is None or not resolved.candidates:
        return {}
    held = next((one.held.candidate for one in picture.active if one.held is not None), None)
    chosen = held or resolved.candidates[0]
    measured = measured_candidate(_derived(deployment, chosen), deployment.measured)
    took_all = chosen.startup is StartupSource.WHOLE_HOST
    unmeasured = measured.startup is StartupSource.DERIVED
    found = {"startup": startup_of(chosen if took_all and unmeasured else measured)}
    if resolved.residency is not Residency.RESTART_ONLY:
        found["parked"] = _parked(deployment, picture, measured)
    return found


def _derived(deployment: Deployment, chosen: Candidate) -> Candidate:
    """The place as the configuration has it: a held one may be charged for a whole host."""
    resolved = deployment.resolved
    assert resolved is not None
    same = (c for c in resolved.candidates if (c.host, c.gpu) == (chosen.host, chosen.gpu))
    return next(same, chosen)


def startup_of(candidate: Candidate) -> dict[str, Any]:
    """`bytes` where the model lives, what they rest on, and the charge of every domain."""
    cold = candidate.charges.cold
    card = DomainName(candidate.gpu or "")
    main = card if card in cold else next(iter(cold), card)
    return {
        "bytes": str(cold.get(main, 0)),
        "provenance": candidate.startup.value,
        "charges": _text(cold),
    }


def _parked(deployment: Deployment, picture: Picture, candidate: Candidate) -> dict[str, Any]:
    """``placeholder`` until a park was measured; then ``measured`` with what was left."""
    known = [one for one in deployment.measured if one.host == candidate.host and one.residue]
    growths = [one.held.grown for one in picture.active if one.held is not None and one.held.grown]
    provenance = "measured" if known and not candidate.declared else "placeholder"
    found: dict[str, Any] = {
        "provenance": "declared" if candidate.declared else provenance,
        "charges": _text(candidate.charges.parked),
        "residues": _text(known[0].residue if known else {}),
    }
    if growths:
        found["growth"] = f"parked_growth: {growths[0]}"
    return found


def _text(charges: Charges) -> Mapping[str, str]:
    return {name: str(held) for name, held in charges.items()}
