"""Worlds with several hosts over the real link, from seeds.

A failure here is seen again with ``FleetSimulation(seed).run()``; pin it in `test_pinned.py`
once it is understood.
"""

from __future__ import annotations

import os

import pytest

from capyctl.control.hearing import Hearing
from capyctl.link.remote import RemoteHost
from capyctl.messages.placement import Free
from capyctl.simulation.checks import Violation
from capyctl.simulation.faults import Faults
from capyctl.simulation.fleet_run import FleetSimulation

CHUNK_COUNT = 5
FAULTS_SEEDS_COUNT = int(os.environ.get("CAPYCTL_FLEETS", "500"))


def run_all(seeds, faults=None):
    for seed in seeds:
        FleetSimulation(seed, faults=faults).run()


@pytest.mark.slow
@pytest.mark.parametrize("start", range(0, 20, CHUNK_COUNT))
def test_fleets(start):
    run_all(range(start, start + CHUNK_COUNT))


@pytest.mark.faults
@pytest.mark.parametrize("start", range(1000, 1000 + FAULTS_SEEDS_COUNT, 50))
def test_many_fleets(start):
    run_all(range(start, start + 50))


@pytest.mark.slow
def test_a_fleet_is_the_same_each_time():
    assert FleetSimulation(5).run().digest == FleetSimulation(5).run().digest


@pytest.mark.slow
def test_a_fleet_notices_memory_that_is_freed_without_evidence(monkeypatch):
    lost = Hearing.lost

    def and_free(self, host):
        for mine in self.world.directory.instances.values():
            for one in mine.values():
                if one.host == host:
                    self.world.tell(self.placement, Free(instance=one.id))
        lost(self, host)

    monkeypatch.setattr(Hearing, "lost", and_free)
    away = Faults(link_every_s=60.0, link_down_max_s=200.0)

    with pytest.raises(Violation):
        run_all(range(20), away)


@pytest.mark.slow
def test_a_fleet_notices_processes_that_nobody_knows(monkeypatch):
    monkeypatch.setattr(RemoteHost, "unclaimed", lambda self, stored: [])
    failing = Faults(actor_crash_chance=0.03)

    with pytest.raises(Violation, match="the server does not know it"):
        run_all(range(10), failing)
