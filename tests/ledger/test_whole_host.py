"""A placeholder larger than the machine: all of it, once it is empty."""

from __future__ import annotations

import attrs
import pytest

from capyctl.domain.devices import Gpu, MachineShape, MemoryDomain, MemoryKind
from capyctl.domain.ids import DeploymentId, DomainName, GpuId, HostId, InstanceId
from capyctl.domain.specs import Candidate, Phase, PhaseCharges, StartupSource
from capyctl.domain.units import GIB
from capyctl.ledger.ledger import Entry, charge, hold, open_ledger
from capyctl.ledger.places import Wanted
from capyctl.ledger.plan import Fits, FitsAfter, NoRoom, commit, plan
from capyctl.ledger.victims import Occupant

HOST = HostId("host")
NEW = InstanceId(DeploymentId("N" * 26), 0)
OLD = InstanceId(DeploymentId("O" * 26), 0)
LIMITS = {"system": 128, "gpu0": 22}


def shape() -> MachineShape:
    def domain(name, kind, gpu=None):
        return MemoryDomain(
            name=DomainName(name),
            kind=kind,
            total_bytes=2 * LIMITS[name] * GIB,
            managed_limit_bytes=LIMITS[name] * GIB,
            free_reserve_bytes=GIB,
            parked_limit_bytes=LIMITS[name] * GIB // 2,
            gpu=gpu,
        )

    card = Gpu(
        id=GpuId("gpu0"), uuid="GPU-0", name="x", total_bytes=24 * GIB, domain=DomainName("gpu0")
    )
    domains = (domain("system", MemoryKind.DISTINCT), domain("gpu0", MemoryKind.DEVICE, card.id))
    return MachineShape(host=HOST, gpus=(card,), domains=domains)


def gib(system=0, gpu0=0):
    return {"system": system * GIB, "gpu0": gpu0 * GIB}


def candidate(cold_ram=200, ready_ram=4, **changes) -> Candidate:
    ready = gib(ready_ram, 20)
    charges = PhaseCharges(
        cold=gib(cold_ram, 20), ready=ready, parking=ready, parked=gib(4, 1), wake=ready
    )
    return attrs.evolve(Candidate(host=HOST, gpu="gpu0", charges=charges), **changes)


def entry(phase: Phase, **held) -> Entry:
    return Entry(instance=OLD, host=HOST, phase=phase, charges=gib(**held))


def occupant(state="ready", **changes) -> Occupant:
    made = Occupant(
        instance=OLD,
        state=state,
        parks=True,
        protected=False,
        waiting=False,
        ready_elsewhere=False,
        last_used_s=0.0,
        parked=gib(4, 1),
    )
    return attrs.evolve(made, **changes)


def ask(ledger, one, *, may_evict=False, occupants=()):
    wanted = Wanted(instance=NEW, phase=Phase.COLD, candidates=(one,))
    known = {o.instance: o for o in occupants}
    return wanted, plan(ledger, wanted, known, may_evict=may_evict)


def test_on_an_empty_host_it_takes_everything_until_ready():
    ledger = open_ledger((shape(),))

    wanted, found = ask(ledger, candidate())
    assert isinstance(found, Fits)
    booked = commit(ledger, wanted, found, ask="a")
    ready = charge(booked, NEW, Phase.READY, found.candidate.charges.ready)

    assert found.candidate.startup is StartupSource.WHOLE_HOST
    assert dict(booked.entries[NEW].charges) == gib(128, 22)
    assert dict(ready.entries[NEW].charges) == gib(4, 20)


def test_parked_models_do_not_count_and_stay_charged():
    ledger = hold(open_ledger((shape(),)), entry(Phase.PARKED, system=4, gpu0=1))

    _, found = ask(ledger, candidate())

    assert dict(found.candidate.charges.cold) == gib(124, 21)


@pytest.mark.parametrize("phase", [Phase.COLD, Phase.READY, Phase.PARKING, Phase.WAKE])
def test_anything_else_that_runs_is_in_the_way(phase):
    ledger = hold(open_ledger((shape(),)), entry(phase, system=4, gpu0=1))

    _, found = ask(ledger, candidate(), occupants=(occupant("moving"),))

    assert isinstance(found, NoRoom)
    assert found.empty_host
    assert not found.hopeless


def test_an_evicting_start_empties_the_host_by_parking():
    ledger = hold(open_ledger((shape(),)), entry(Phase.READY, system=4, gpu0=1))

    _, found = ask(ledger, candidate(), may_evict=True, occupants=(occupant(),))

    assert isinstance(found, FitsAfter)
    assert [(v.instance, v.stop) for v in found.victims] == [(OLD, False)]


def test_a_model_in_the_way_that_never_makes_way_is_hopeless():
    ledger = hold(open_ledger((shape(),)), entry(Phase.READY, system=4, gpu0=1))

    _, found = ask(ledger, candidate(), may_evict=True, occupants=(occupant(protected=True),))

    assert isinstance(found, NoRoom)
    assert found.hopeless


def test_a_declared_figure_that_is_too_large_never_fits():
    _, found = ask(open_ledger((shape(),)), candidate(startup=StartupSource.DECLARED))

    assert isinstance(found, NoRoom)
    assert found.hopeless
    assert not found.empty_host


def test_a_model_that_is_too_large_when_ready_never_fits():
    _, found = ask(open_ledger((shape(),)), candidate(ready_ram=130))

    assert isinstance(found, NoRoom)
    assert found.hopeless


def test_one_that_fits_as_it_is_takes_no_more():
    ledger = hold(open_ledger((shape(),)), entry(Phase.READY, system=4, gpu0=1))

    _, found = ask(ledger, candidate(cold_ram=72))

    assert isinstance(found, Fits)
    assert found.candidate.startup is StartupSource.DERIVED


def test_nothing_else_starts_beside_it():
    ledger = open_ledger((shape(),))
    wanted, found = ask(ledger, candidate())
    booked = commit(ledger, wanted, found, ask="a")
    small = Wanted(instance=OLD, phase=Phase.COLD, candidates=(candidate(cold_ram=4),))

    assert isinstance(plan(booked, small, {}, may_evict=False), NoRoom)
