"""Machines and a model to size deployments on."""

from __future__ import annotations

from capyctl.domain.checkpoints import AttentionShape, HybridShape
from capyctl.domain.devices import Gpu, MachineShape, MemoryDomain, MemoryKind
from capyctl.domain.ids import DomainName, GpuId, HostId
from capyctl.domain.units import GIB

QWEN3_4B = AttentionShape(layers_kv=((8, 128, 128),) * 36, context_length=40960)
QWEN3_NEXT = HybridShape(
    attention=AttentionShape(layers_kv=((2, 256, 256),) * 12, context_length=262_144),
    recurrent_count=36,
    conv_bytes=8192 * 3 * 2,
    temporal_bytes=32 * 128 * 128 * 4,
)
"""48 layers, every fourth with a cache: 24,576 bytes a token, and 72.7 MiB a state."""
QWEN3_4B_GGUF_BYTES = 2_497_280_256
QWEN3_4B_PER_TOKEN = 147_456


def domain(name, kind, total, *, managed=None, parked=None, gpu=None):
    return MemoryDomain(
        name=DomainName(name),
        kind=kind,
        total_bytes=total,
        managed_limit_bytes=total // 2 if managed is None else managed,
        free_reserve_bytes=total // 5,
        parked_limit_bytes=total // 4 if parked is None else parked,
        gpu=GpuId(gpu) if gpu else None,
    )


def card(index, total):
    name = f"gpu{index}"
    reserve = max(GIB, total * 8 // 100)
    pool = domain(name, MemoryKind.DEVICE, total, managed=total - reserve, gpu=name)
    gpu = Gpu(id=GpuId(name), uuid=f"GPU-{index}", name="card", total_bytes=total, domain=pool.name)
    return gpu, pool


def discrete(*totals, ram=256 * GIB):
    cards = [card(i, total) for i, total in enumerate(totals or (24 * GIB,))]
    system = domain("system", MemoryKind.DISTINCT, ram)
    return MachineShape(
        host=HostId("box"),
        gpus=tuple(gpu for gpu, _ in cards),
        domains=(system, *(pool for _, pool in cards)),
    )


def unified(total=128 * GIB):
    pool = domain("unified", MemoryKind.UNIFIED, total)
    gpu = Gpu(id=GpuId("gpu0"), uuid="GPU-0", name="gb", total_bytes=total, domain=pool.name)
    return MachineShape(host=HostId("box"), gpus=(gpu,), domains=(pool,))


def without_gpu(total=32 * GIB):
    return MachineShape(
        host=HostId("box"), gpus=(), domains=(domain("system", MemoryKind.DISTINCT, total),)
    )
