"""Every engine family there is. A new one is its module and one line here."""

from __future__ import annotations

from collections.abc import Mapping

from capyctl.contracts.engines import Family
from capyctl.engines.llama_cpp import LlamaCpp
from capyctl.engines.sglang import Sglang
from capyctl.engines.surroundings import Surroundings
from capyctl.engines.tensorfold import Tensorfold
from capyctl.engines.vllm import Vllm


def families(surroundings: Surroundings) -> Mapping[str, Family]:
    """The families by the name that documents use, for engines on this machine."""
    known: list[Family] = [
        Vllm(surroundings=surroundings),
        LlamaCpp(surroundings=surroundings),
        Sglang(surroundings=surroundings),
        Tensorfold(surroundings=surroundings),
    ]
    return {family.name: family for family in known}
