"""Bytes that one instance is charged on each domain in each phase."""

from __future__ import annotations

from capyctl.domain.devices import Gpu, MachineShape, MemoryDomain, MemoryKind
from capyctl.domain.ids import DomainName
from capyctl.domain.specs import Charges, Phase, PhaseCharges, Residency
from capyctl.domain.units import GIB
from capyctl.ledger.engine_memory import EngineMemory
from capyctl.ledger.margins import margin_bytes
from capyctl.ledger.residency import copy_bytes, host_ram
from capyctl.ledger.sizing_request import (
    CUDA_BYTES,
    ENGINE_RAM_BYTES,
    ShortResources,
    SizingRequest,
    Stop,
    percent_of,
)

GRAPHS_BYTES = GIB * 5 // 4
"""First-start allowance for capturing a model's graphs, on unified memory."""
PARKED_DEVICE_BYTES = GIB
PARKED_UNIFIED_BYTES = 2 * GIB
LOADER_PERCENT = 225
LOADER_EAGER_PERCENT = 360


def main_domain(machine: MachineShape, gpu: Gpu | None) -> MemoryDomain:
    """The domain that holds the model: the card's own, the unified one, or host RAM."""
    if gpu is not None:
        return machine.domain(gpu.domain)
    return next(d for d in machine.domains if d.kind is not MemoryKind.DEVICE)


def derived_charges(
    request: SizingRequest,
    machine: MachineShape,
    gpu: Gpu | None,
    memory: EngineMemory,
    *,
    residency: Residency,
    loader: str | None,
    kept: int = 0,
) -> PhaseCharges:
    """Ready, parking and wake are R + C, cold is the startup figure + C; beside a card, host
    RAM is charged for the engine and for a copy of the weights. On a machine without a GPU
    there is no C. Weights that a park keeps by design are in the parked charge."""
    main = main_domain(machine, gpu)
    context = CUDA_BYTES if gpu is not None else 0
    ready = {main.name: memory.request + context}
    startup = request.startup_bytes or _startup_bytes(request, memory, loader)
    cold = {main.name: startup + context}
    parked: dict[DomainName, int] = {}
    if residency is not Residency.RESTART_ONLY:
        parked[main.name] = min(_residue(main) + kept, ready[main.name])
    ram = host_ram(machine)
    if ram is not None and main.kind is MemoryKind.DEVICE:
        beside = _beside_card(memory, residency)
        ready[ram.name] = beside
        cold[ram.name] = max(beside, _loading(request, memory.weights, loader))
        if parked:
            parked[ram.name] = beside
    return PhaseCharges(cold=cold, ready=ready, parking=ready, parked=parked, wake=ready)


def declared_charges(
    resources: PhaseCharges | ShortResources, machine: MachineShape, gpu: Gpu | None
) -> PhaseCharges:
    """What the document states, checked against the machine's domains."""
    if isinstance(resources, ShortResources):
        return _expanded(resources, machine, gpu)
    known = {d.name for d in machine.domains}
    beside_cards = any(d.kind is MemoryKind.DEVICE for d in machine.domains)
    ram = host_ram(machine)
    for phase in Phase:
        named = resources.of(phase)
        path = f"resources.{phase.value}.allocations"
        if not named.keys() <= known:
            detail = f"this machine has only the memory domains {', '.join(sorted(known))}"
            raise Stop("invalid_config", path, detail)
        if named and beside_cards and ram is not None and ram.name not in named:
            detail = f"beside a card, {ram.name} (host RAM) must be named too"
            raise Stop("missing_system_allocation", path, detail)
    return resources


def _expanded(short: ShortResources, machine: MachineShape, gpu: Gpu | None) -> PhaseCharges:
    """Both figures while it starts, runs and stops, as a sum where there is one pool."""
    main = main_domain(machine, gpu)
    ram = host_ram(machine)
    if main.kind is MemoryKind.DEVICE and ram is not None:
        held: Charges = {main.name: short.gpu_bytes, ram.name: short.ram_bytes}
    else:
        held = {main.name: short.gpu_bytes + short.ram_bytes}
    return PhaseCharges(cold=held, ready=held, parking=held, parked={}, wake=held)


def _startup_bytes(request: SizingRequest, memory: EngineMemory, loader: str | None) -> int:
    """Placeholder until a start was measured: R on a card and for llama.cpp, on unified memory
    max(R + G, factor x W + M), on host RAM max(R, factor x W)."""
    if memory.kind is MemoryKind.DEVICE or request.family == "llamacpp":
        return memory.request
    loading = _loading(request, memory.weights, loader)
    if memory.kind is MemoryKind.DISTINCT:
        return max(memory.request, loading)
    models = 2 if request.draft_bytes else 1
    graphs = models * GRAPHS_BYTES if request.captures_graphs else 0
    return max(memory.request + graphs, loading + margin_bytes(memory.weights, memory.kind))


def _loading(request: SizingRequest, weights: int, loader: str | None) -> int:
    """Factor x W: what reading the weights takes of host memory at its worst."""
    if request.family == "llamacpp":
        return 0
    return percent_of(weights, LOADER_EAGER_PERCENT if loader == "eager" else LOADER_PERCENT)


def _beside_card(memory: EngineMemory, residency: Residency) -> int:
    copy = copy_bytes(memory.weights) if residency is Residency.HOST_BACKED else 0
    return ENGINE_RAM_BYTES + copy


def _residue(main: MemoryDomain) -> int:
    """Charged after a park until one was measured."""
    return PARKED_UNIFIED_BYTES if main.kind is MemoryKind.UNIFIED else PARKED_DEVICE_BYTES
