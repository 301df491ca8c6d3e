"""Strategies for ledgers: machines of one to three cards, and instances on them, in GiB."""

from __future__ import annotations

import attrs
from hypothesis import strategies as st

from capyctl.domain.devices import Gpu, MachineShape, MemoryDomain, MemoryKind
from capyctl.domain.ids import DeploymentId, DomainName, GpuId, HostId, InstanceId
from capyctl.domain.specs import Candidate, Phase, PhaseCharges
from capyctl.domain.units import GIB
from capyctl.ledger.ledger import Entry, Ledger, hold, open_ledger, shortage
from capyctl.ledger.places import Wanted
from capyctl.ledger.victims import Occupant

HOST = HostId("host")
RAM = DomainName("system")
CARD_GIB = 24


def id_of(number: int) -> InstanceId:
    return InstanceId(DeploymentId(f"D{number}"), 0)


def shape_of(cards_count: int, *, parked_limit_gib: int = CARD_GIB) -> MachineShape:
    cards = tuple(
        Gpu(
            id=GpuId(f"gpu{n}"),
            uuid=f"GPU-{n}",
            name="card",
            total_bytes=CARD_GIB * GIB,
            domain=DomainName(f"gpu{n}"),
        )
        for n in range(cards_count)
    )
    ram = MemoryDomain(
        name=RAM,
        kind=MemoryKind.DISTINCT,
        total_bytes=64 * GIB,
        managed_limit_bytes=48 * GIB,
        free_reserve_bytes=GIB,
        parked_limit_bytes=32 * GIB,
    )
    domains = tuple(
        MemoryDomain(
            name=card.domain,
            kind=MemoryKind.DEVICE,
            total_bytes=card.total_bytes,
            managed_limit_bytes=card.total_bytes,
            free_reserve_bytes=GIB,
            parked_limit_bytes=parked_limit_gib * GIB,
            gpu=card.id,
        )
        for card in cards
    )
    return MachineShape(host=HOST, gpus=cards, domains=(ram, *domains))


def charges(card: DomainName, gib: int, parked_gib: int = 1) -> PhaseCharges:
    ready = {card: gib * GIB, RAM: 2 * GIB}
    parked = {card: min(gib, parked_gib) * GIB, RAM: 2 * GIB}
    return PhaseCharges(cold=ready, ready=ready, parking=ready, parked=parked, wake=ready)


def places(shape: MachineShape, gib: int) -> tuple[Candidate, ...]:
    return tuple(
        Candidate(host=HOST, gpu=g.id, gpu_uuid=g.uuid, charges=charges(g.domain, gib))
        for g in shape.gpus
    )


@attrs.frozen(kw_only=True)
class Scene:
    """A ledger with instances in it, what may be done with them, and what is wanted."""

    ledger: Ledger
    occupants: dict[InstanceId, Occupant]
    wanted: Wanted


@st.composite
def scenes(draw, *, occupants_max: int = 5) -> Scene:
    cards_count = draw(st.integers(1, 3))
    shape = shape_of(cards_count, parked_limit_gib=draw(st.sampled_from([0, 2, CARD_GIB])))
    ledger = open_ledger((shape,))
    occupants: dict[InstanceId, Occupant] = {}
    for number in range(draw(st.integers(0, occupants_max))):
        card = draw(st.sampled_from(shape.gpus)).domain
        figures = charges(card, draw(st.integers(1, CARD_GIB)))
        state = draw(st.sampled_from(["ready", "ready", "parked", "parked", "moving"]))
        phase = Phase.PARKED if state == "parked" else Phase.READY
        id = id_of(number)
        entry = Entry(instance=id, host=HOST, phase=phase, charges=figures.of(phase))
        if shortage(ledger, HOST, entry.charges) is not None:
            continue
        ledger = hold(ledger, entry)
        if draw(st.integers(0, 9)) == 0:
            continue  # In the books, and nothing was told of it yet.
        occupants[id] = Occupant(
            instance=id,
            state=state,
            parks=draw(st.booleans()),
            protected=draw(st.integers(0, 4)) == 0,
            waiting=draw(st.integers(0, 4)) == 0,
            ready_elsewhere=draw(st.booleans()),
            last_used_s=float(draw(st.integers(0, 5))),
            parked=figures.parked,
        )
    wanted = Wanted(
        instance=id_of(99),
        phase=Phase.COLD,
        candidates=places(shape, draw(st.integers(1, CARD_GIB + 1))),
    )
    return Scene(ledger=ledger, occupants=occupants, wanted=wanted)
