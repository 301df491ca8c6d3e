"""Small complete machines for tests of what is on record of several of them."""

from __future__ import annotations

import attrs

from capyctl.domain.devices import Gpu, MachineShape, MemoryDomain, MemoryKind, Profile
from capyctl.domain.hosts import HostPublication, HostRecord
from capyctl.domain.ids import DomainName, GpuId, HostId
from capyctl.domain.specs import ResolvedSpec
from capyctl.domain.units import GIB
from tests.machines.making import CANDIDATE, ENGINE, RESOLVED, charges

A, B, C = HostId("A" * 26), HostId("B" * 26), HostId("C" * 26)
NAMES = {A: "gpu-a", B: "gpu-b", C: "gpu-c"}
PROFILE = Profile(name="p", family="vllm", revision=1, executable=("/engine",), version="1")


def shape(host: HostId, card: str = "GPU-0") -> MachineShape:
    name = DomainName("gpu0")
    gpu = Gpu(id=GpuId("gpu0"), uuid=card, name="Card", total_bytes=24 * GIB, domain=name)
    domain = MemoryDomain(
        name=name,
        kind=MemoryKind.DEVICE,
        total_bytes=24 * GIB,
        managed_limit_bytes=24 * GIB,
        free_reserve_bytes=GIB,
        parked_limit_bytes=8 * GIB,
        gpu=gpu.id,
    )
    return MachineShape(host=host, gpus=(gpu,), domains=(domain,))


def publication(host: HostId, **changes: object) -> HostPublication:
    made = HostPublication(
        shape=shape(host), profiles=(PROFILE,), version="0.1.0", models_root="/models"
    )
    return attrs.evolve(made, **changes)


def record(host: HostId, **changes: object) -> HostRecord:
    made = HostRecord(
        id=host, name=NAMES[host], certificates=(f"c-{host[0]}",), publication=publication(host)
    )
    return attrs.evolve(made, **changes)


def hosts(*records: HostRecord) -> dict[HostId, HostRecord]:
    return {one.id: one for one in records}


def fit(host: HostId, *, program: str = "/engine", gib: int = 10) -> ResolvedSpec:
    """What the deployment of `making` comes to on a machine."""
    candidate = attrs.evolve(CANDIDATE, host=host, charges=charges(gib))
    engine = attrs.evolve(ENGINE, executable=(program,))
    return attrs.evolve(RESOLVED, engine=engine, candidates=(candidate,))
