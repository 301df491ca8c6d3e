"""How a model is kept while it is parked, chosen by the shape of the machine."""

from __future__ import annotations

from capyctl.domain.devices import Gpu, MachineShape, MemoryDomain, MemoryKind
from capyctl.domain.profiles import NEVER_PARK
from capyctl.domain.specs import Residency
from capyctl.domain.units import gib
from capyctl.ledger.sizing_request import (
    ENGINE_RAM_BYTES,
    ShortResources,
    SizingRequest,
    Stop,
    percent_of,
)


def host_ram(machine: MachineShape) -> MemoryDomain | None:
    """Host RAM beside cards with memory of their own."""
    return next((d for d in machine.domains if d.kind is MemoryKind.DISTINCT), None)


def choose_residency(
    request: SizingRequest, machine: MachineShape, gpus: tuple[Gpu | None, ...]
) -> Residency:
    """`restart_only` where nothing can park; `deep` on unified memory; on a card `host_backed`
    where a copy of the weights fits host RAM, else `deep`."""
    why = _why_not_parking(request, gpus)
    if why is not None:
        if request.residency not in (None, Residency.RESTART_ONLY):
            token, detail = why
            raise Stop(token, "residency", detail)
        return Residency.RESTART_ONLY
    if request.residency is Residency.RESTART_ONLY:
        return Residency.RESTART_ONLY
    if request.model_type == "gpt_oss":
        detail = "this model cannot be parked; deploy it with residency restart_only"
        raise Stop("capability_missing:deep_park", "residency", detail)
    no_copy = _why_no_copy(request, machine)
    if request.residency is Residency.HOST_BACKED and no_copy is not None:
        raise Stop("host_backed_unavailable", "residency", no_copy)
    if request.residency is not None:
        return request.residency
    copied = no_copy is None and request.weights_bytes is not None
    return Residency.HOST_BACKED if copied else Residency.DEEP


def _why_not_parking(
    request: SizingRequest, gpus: tuple[Gpu | None, ...]
) -> tuple[str, str] | None:
    if request.family in NEVER_PARK:
        return "capability_missing", f"{request.family} never parks; use restart_only"
    if not request.profile_parks:
        detail = (
            "the profile's security.deep_park is disabled; enable it there, or declare "
            "residency restart_only"
        )
        return "invalid_config", detail
    if gpus == (None,):
        return "capability_missing", "nothing parks on a machine without a GPU; use restart_only"
    if isinstance(request.resources, ShortResources):
        detail = "resources in their short form are for restart_only; state all five phases to park"
        return "invalid_config", detail
    return None


def _why_no_copy(request: SizingRequest, machine: MachineShape) -> str | None:
    """Why a copy of the weights cannot be kept in host RAM; None when it can, as far as known."""
    ram = host_ram(machine)
    if machine.unified or ram is None:
        return "unified memory has no host RAM of its own to keep a copy in; use deep"
    if request.speculative and request.family == "sglang":
        return "SGLang keeps all weights where it decodes speculatively; use deep"
    if request.weights_bytes is None:
        return None
    needed = copy_bytes(request.weights_bytes) + ENGINE_RAM_BYTES
    room = min(ram.parked_limit_bytes, ram.managed_limit_bytes)
    if needed > room:
        return f"a copy needs {gib(needed)} of host RAM, the limit is {gib(room)}; use deep"
    return None


def kept_bytes(request: SizingRequest, residency: Residency) -> int:
    """Weights that a park leaves where they are: all of a speculative SGLang's, a draft's of a
    vLLM that parks deep."""
    if residency is Residency.RESTART_ONLY:
        return 0
    if request.family == "sglang":
        return request.weights_bytes or 0 if request.speculative else 0
    drafts = residency is Residency.DEEP and request.drafts_by_weights
    return request.draft_bytes if drafts else 0


def copy_bytes(weights: int) -> int:
    """Pinned host memory of one copy: 1.5 W."""
    return percent_of(weights, 150)


def choose_loader(request: SizingRequest, machine: MachineShape, *, parks: bool) -> str | None:
    """vLLM's safetensors strategy: `lazy` on unified memory, `eager` on cards, while parking."""
    if request.family != "vllm":
        return None
    if request.loader is not None or not parks:
        return request.loader
    return "lazy" if machine.unified else "eager"
