"""Models and settings that an engine cannot park, or not without harm."""

from __future__ import annotations

import re

from capyctl.config.drafts import Speculation
from capyctl.config.engine_config import EngineConfig
from capyctl.domain.checkpoints import CheckpointFacts
from capyctl.domain.devices import Profile
from capyctl.domain.errors import Refused
from capyctl.domain.specs import Residency

VLLM_KEEPS_DRAFTS = (0, 32)
"""The first release that can keep a draft's weights through a deep park."""


def check_parking(
    residency: Residency,
    settings: EngineConfig,
    profile: Profile,
    facts: CheckpointFacts | None,
    speculation: Speculation | None,
) -> None:
    """Pass what can be parked, and what never is.

    Raises:
        Refused: ``unsupported_capability``, with the setting and what to do.
    """
    if residency is Residency.RESTART_ONLY:
        return
    if profile.family == "sglang" and speculation is None and _modelopt(settings, facts):
        raise _missing(
            "engine_config.quantization",
            "such weights cannot be parked; deploy them with residency restart_only",
        )
    if profile.family != "vllm" or residency is not Residency.DEEP or speculation is None:
        return
    version = _version(profile.version)
    if speculation.has_weights and version is not None and version < VLLM_KEEPS_DRAFTS:
        raise _missing(
            "residency",
            f"vLLM {profile.version} does not read a draft's weights again after a deep park; use "
            "vLLM 0.32 or newer, or residency host_backed or restart_only",
        )
    if speculation.method == "eagle3" and settings.cuda_graphs is not False:
        raise _missing(
            "residency",
            "vLLM's graphs do not outlive a deep park beside an EAGLE-3 draft; use residency "
            "host_backed or restart_only, or cuda_graphs: false",
        )


def _modelopt(settings: EngineConfig, facts: CheckpointFacts | None) -> bool:
    of_files = facts.quantization if facts is not None else None
    return (settings.quantization or of_files or "").startswith("modelopt")


def _version(told: str) -> tuple[int, int] | None:
    found = re.match(r"(\d+)\.(\d+)", told)
    return None if found is None else (int(found[1]), int(found[2]))


def _missing(path: str, detail: str) -> Refused:
    text = f"capability_missing:deep_park at `{path}`: {detail}"
    return Refused("unsupported_capability", text)
