"""Memory of one instance, phase by phase, on every device of a machine that could run it.

W is the size of the weights, K of the key/value cache, M a margin, R the memory requested for
one instance, C the CUDA context. See `docs/reference/memory-sizing.md` for the rules in one place.
"""

from __future__ import annotations

from capyctl.domain.devices import Gpu, MachineShape, MemoryKind
from capyctl.domain.ids import GpuId
from capyctl.domain.specs import Phase, PhaseCharges, Residency
from capyctl.ledger.context_fit import ContextFit, fit_context, llamacpp_window
from capyctl.ledger.engine_memory import engine_memory, static_pool_bytes
from capyctl.ledger.hybrid_states import StatePlan
from capyctl.ledger.phase_charges import declared_charges, derived_charges, main_domain
from capyctl.ledger.residency import choose_loader, choose_residency, kept_bytes
from capyctl.ledger.sizing_request import (
    CONCURRENCY_DEFAULT,
    Place,
    ShortResources,
    Sized,
    SizingRequest,
    Stop,
    Unresolvable,
)
from capyctl.ledger.windows import derive_windows


def size(request: SizingRequest, machine: MachineShape) -> Sized | Unresolvable:
    """Charges for every device that could run an instance, and the settings that go with them.

    The cache is the same wherever an instance runs: on unlike cards it follows the smallest.
    """
    try:
        return _size(request, machine)
    except Stop as stop:
        return stop.found


def _size(request: SizingRequest, machine: MachineShape) -> Sized:
    gpus = _candidates(request, machine)
    stated = request.resources
    declared = {gpu: declared_charges(stated, machine, gpu) for gpu in gpus if stated is not None}
    residency = choose_residency(request, machine, gpus)
    parks = residency is not Residency.RESTART_ONLY
    loader = choose_loader(request, machine, parks=parks)
    window = llamacpp_window(request) if request.family == "llamacpp" else request.context_length
    memory = engine_memory(request, tuple(main_domain(machine, gpu) for gpu in gpus), window)
    fit = ContextFit(context=window)
    if request.family in ("vllm", "sglang"):
        fit = fit_context(request, memory.kv)
    kept = kept_bytes(request, residency)
    states = memory.states
    pool = None
    if request.family == "sglang":
        pool = static_pool_bytes(request, memory, own_pools=fit.pool_tokens is not None)
    return Sized(
        residency=residency,
        places=tuple(
            Place(
                gpu=gpu,
                charges=declared.get(gpu)
                or derived_charges(
                    request, machine, gpu, memory, residency=residency, loader=loader, kept=kept
                ),
            )
            for gpu in gpus
        ),
        windows=derive_windows(
            family=request.family,
            weights_bytes=request.weights_bytes,
            parks=parks,
            request_deadline_s=request.request_deadline_s,
            initialize_s=request.initialize_s,
            wake_s=request.wake_s,
        ),
        kv_cache_bytes=memory.kv,
        request_bytes=memory.request,
        static_pool_bytes=pool,
        pool_tokens=fit.pool_tokens,
        context_length=fit.context,
        state_slots=states.slots,
        running_limit=states.running if states.limited else None,
        kept_bytes=kept,
        concurrency=_concurrency(request, states),
        loader=loader,
        provisional=request.weights_bytes is None and request.resources is None,
        notes=fit.notes,
    )


def _concurrency(request: SizingRequest, states: StatePlan) -> int | None:
    """Stated, or what the states of a hybrid model are sized for, or the family's default."""
    if request.family == "sglang" and request.state_pool_stated:
        return None
    return request.concurrency or states.running or CONCURRENCY_DEFAULT.get(request.family)


def _candidates(request: SizingRequest, machine: MachineShape) -> tuple[Gpu | None, ...]:
    """One per device: a model is fitted to each, and placement picks."""
    wanted = request.gpu
    if not machine.gpus:
        if wanted is not None:
            raise Stop("invalid_config", "devices[0].id", "this machine has no GPU")
        return (None,)
    named = _named_in(request.resources, machine)
    if named is not None and wanted not in (None, named):
        detail = "resources name the memory of another device"
        raise Stop("invalid_config", "devices[0].id", detail)
    found = tuple(gpu for gpu in machine.gpus if (named or wanted) in (None, gpu.id))
    if not found:
        known = ", ".join(gpu.id for gpu in machine.gpus)
        detail = f"this machine has no such GPU; it has {known}"
        raise Stop("invalid_config", "devices[0].id", detail)
    return found


def _named_in(
    resources: PhaseCharges | ShortResources | None, machine: MachineShape
) -> GpuId | None:
    """The device whose own domain declared resources name, if they do."""
    if not isinstance(resources, PhaseCharges):
        return None
    named = {name for phase in Phase for name in resources.of(phase)}
    devices = [d for d in machine.domains if d.kind is MemoryKind.DEVICE and d.name in named]
    if len(devices) > 1:
        both = " and ".join(d.name for d in devices)
        raise Stop("multi_gpu_unsupported", "resources", f"one instance on {both} at once")
    return devices[0].gpu if devices else None
