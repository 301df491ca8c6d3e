"""Strategies for several machines: one to four of them, with instances of a few deployments."""

from __future__ import annotations

import attrs
from hypothesis import strategies as st

from capyctl.domain.devices import MachineShape
from capyctl.domain.ids import DeploymentId, HostId, InstanceId
from capyctl.domain.specs import Candidate, Phase, Strategy
from capyctl.ledger.ledger import Entry, Ledger, hold, open_ledger, shortage
from capyctl.ledger.places import Hosts, Wanted
from capyctl.ledger.victims import Occupant
from tests.ledger.machines import CARD_GIB, charges, shape_of

MINE = DeploymentId("MINE")


def machine(name: str, cards_count: int = 1) -> MachineShape:
    return attrs.evolve(shape_of(cards_count), host=HostId(name))


def places_on(shape: MachineShape, gib: int, *, exclusive: bool = False) -> tuple[Candidate, ...]:
    return tuple(
        Candidate(
            host=shape.host,
            gpu=card.id,
            gpu_uuid=card.uuid,
            charges=charges(card.domain, gib),
            exclusive=exclusive,
        )
        for card in shape.gpus
    )


def entry_on(candidate: Candidate, instance: InstanceId, phase: Phase = Phase.READY) -> Entry:
    return Entry(
        instance=instance,
        host=candidate.host,
        phase=phase,
        charges=candidate.charges.of(phase),
        gpu=candidate.gpu,
        exclusive=candidate.exclusive,
    )


@attrs.frozen(kw_only=True)
class Fleet:
    ledger: Ledger
    occupants: dict[InstanceId, Occupant]
    wanted: Wanted
    hosts: Hosts


@st.composite
def fleets(draw) -> Fleet:
    count = draw(st.integers(1, 4))
    shapes = [machine(f"host{n}", draw(st.integers(1, 2))) for n in range(count)]
    ledger = open_ledger(tuple(shapes))
    occupants: dict[InstanceId, Occupant] = {}
    for number in range(draw(st.integers(0, 7))):
        shape = draw(st.sampled_from(shapes))
        gib = draw(st.integers(1, CARD_GIB))
        place = draw(st.sampled_from(places_on(shape, gib, exclusive=draw(st.booleans()))))
        id = InstanceId(draw(st.sampled_from([MINE, DeploymentId("A"), DeploymentId("B")])), number)
        state = draw(st.sampled_from(["ready", "ready", "parked", "moving"]))
        entry = entry_on(place, id, Phase.PARKED if state == "parked" else Phase.READY)
        if shortage(ledger, shape.host, entry.charges) is not None:
            continue
        ledger = hold(ledger, entry)
        occupants[id] = Occupant(
            instance=id,
            state=state,
            parks=draw(st.booleans()),
            protected=draw(st.integers(0, 4)) == 0,
            waiting=False,
            ready_elsewhere=draw(st.booleans()),
            last_used_s=float(draw(st.integers(0, 5))),
            parked=place.charges.parked,
        )
    names = [shape.host for shape in shapes]
    gib = draw(st.integers(1, CARD_GIB))
    exclusive = draw(st.booleans())
    wanted = Wanted(
        instance=InstanceId(MINE, 99),
        phase=Phase.COLD,
        candidates=tuple(
            place for shape in shapes for place in places_on(shape, gib, exclusive=exclusive)
        ),
        strategy=draw(st.sampled_from(Strategy)),
        max_per_host=draw(st.sampled_from([None, None, 1, 2])),
        last_host=draw(st.sampled_from([None, *names])),
        last_gpu="gpu0",
    )
    closed = draw(st.sets(st.sampled_from(names)))
    hosts = Hosts(closed=dict.fromkeys(closed, "offline"))
    return Fleet(ledger=ledger, occupants=occupants, wanted=wanted, hosts=hosts)
