"""The engines of a simulated machine: the profiles they are published as, and their variables."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from capyctl.domain.devices import Profile
from capyctl.domain.specs import Phase, PhaseCharges

VLLM_VERSION = "0.32.0"
LLAMACPP_VERSION = "0.6.0-dev"
SGLANG_VERSION = "0.5.23"
TENSORFOLD_VERSION = "0.6.5"

DOCUMENT = "CAPYCTL_SIMULATED"
"""Variable: a document as JSON text, or the path of one."""
USAGE = "CAPYCTL_SIMULATED_USAGE"
"""Variable: the folder in which engines write what they draw. Without it nothing is drawn."""
CHARGES = "CAPYCTL_SIMULATED_CHARGES"
"""Variable: JSON of phase to memory domain to bytes. Without it weights and KV cache are drawn."""

_PROGRAM = Path(__file__).with_name("engine_program.py")


def profiles(*, document: Path, usage_dir: Path) -> tuple[Profile, ...]:
    """The published engines of a simulated machine.

    They run by the path of their program and apart from the caller's Python variables, so
    that a closed environment without ``PYTHONPATH`` suffices.
    """
    env = {DOCUMENT: str(document), USAGE: str(usage_dir)}
    return tuple(
        Profile(
            name=family,
            family=family,
            revision=1,
            executable=(sys.executable, "-I", str(_PROGRAM), family),
            version=version,
            env=env,
            deep_park=parks,
            source="simulated",
        )
        for family, version, parks in (
            ("vllm", VLLM_VERSION, True),
            ("llamacpp", LLAMACPP_VERSION, False),
            ("sglang", SGLANG_VERSION, True),
            ("tensorfold", TENSORFOLD_VERSION, False),
        )
    )


def charges_env(charges: PhaseCharges) -> dict[str, str]:
    """The variable that makes an engine draw exactly what it is charged, phase by phase."""
    phases = {phase.value: dict(charges.of(phase)) for phase in Phase}
    return {CHARGES: json.dumps(phases, separators=(",", ":"), sort_keys=True)}
