"""The machine of a world: small cards, so that models must make room for each other."""

from __future__ import annotations

import random
from collections.abc import Mapping

import attrs

from capyctl.domain.checkpoints import CheckpointFacts
from capyctl.domain.devices import Gpu, MachineShape, MemoryDomain, MemoryKind
from capyctl.domain.ids import DomainName, GpuId, HostId
from capyctl.domain.specs import (
    Candidate,
    DeploymentSpec,
    EngineSettings,
    PhaseCharges,
    Residency,
    ResolvedSpec,
    Windows,
)
from capyctl.domain.units import GIB

HOST = HostId("host")
CARD_BYTES = 24 * GIB
RAM_BYTES = 256 * GIB
RAM = DomainName("system")
ENGINE_RAM_BYTES = 2 * GIB
PARKED_BYTES = GIB


def draw_shape(chance: random.Random, host: HostId = HOST) -> MachineShape:
    """One to three cards of 24 GiB beside 256 GiB of host RAM."""
    names = [f"gpu{number}" for number in range(chance.choice([1, 1, 1, 2, 2, 3]))]
    cards = tuple(
        Gpu(
            id=GpuId(name),
            uuid=f"GPU-{name}" if host == HOST else f"GPU-{host}-{name}",
            name="Simulated",
            total_bytes=CARD_BYTES,
            domain=DomainName(name),
        )
        for name in names
    )
    ram = MemoryDomain(
        name=RAM,
        kind=MemoryKind.DISTINCT,
        total_bytes=RAM_BYTES,
        managed_limit_bytes=RAM_BYTES * 9 // 10,
        free_reserve_bytes=GIB,
        parked_limit_bytes=RAM_BYTES // 2,
    )
    devices = tuple(
        MemoryDomain(
            name=card.domain,
            kind=MemoryKind.DEVICE,
            total_bytes=card.total_bytes,
            managed_limit_bytes=card.total_bytes,
            free_reserve_bytes=GIB,
            parked_limit_bytes=chance.choice([4 * GIB, 12 * GIB, card.total_bytes]),
            gpu=card.id,
        )
        for card in cards
    )
    return MachineShape(host=host, gpus=cards, domains=(ram, *devices))


def phase_charges(card: DomainName, request_bytes: int, *, parks: bool) -> PhaseCharges:
    """What an engine of this size is charged, and what it uses, on one card."""
    ready = {card: request_bytes, RAM: ENGINE_RAM_BYTES}
    cold = {card: request_bytes, RAM: 3 * ENGINE_RAM_BYTES}
    parked = {card: PARKED_BYTES, RAM: ENGINE_RAM_BYTES} if parks else {}
    return PhaseCharges(cold=cold, ready=ready, parking=ready, parked=parked, wake=ready)


@attrs.frozen
class WorldResolver:
    """Fits a specification to a machine: the engine's part of it names its size."""

    shapes: Mapping[HostId, MachineShape]

    def path_on(self, path: str, host: HostId) -> str:
        return path

    def __call__(self, spec: DeploymentSpec, facts: CheckpointFacts, host: HostId) -> ResolvedSpec:
        residency = spec.residency or Residency.DEEP
        parks = residency is not Residency.RESTART_ONLY
        request_bytes = int(spec.engine_part) * GIB
        engine = EngineSettings(
            profile=spec.profile,
            profile_revision=1,
            family=spec.family,
            executable=("/engine",),
            model_path=spec.model_path,
            served_name=spec.routes[0],
            request_bytes=request_bytes,
            parks=parks,
        )
        candidates = tuple(
            Candidate(
                host=host,
                gpu=card.id,
                gpu_uuid=card.uuid,
                charges=phase_charges(card.domain, request_bytes, parks=parks),
            )
            for card in self.shapes[host].gpus
        )
        windows = Windows(
            request_deadline_s=spec.request_deadline_s,
            initialize_s=300.0,
            wake_s=65.0 if parks else None,
            stop_s=900.0,
        )
        return ResolvedSpec(
            residency=residency,
            engine=engine,
            candidates=candidates,
            windows=windows,
            weights_bytes=facts.weights_bytes,
            provisional=False,
        )
