"""Seeds that found something, with a sentence each on what it was."""

from __future__ import annotations

import pytest

from capyctl.simulation.fleet_run import FleetSimulation
from capyctl.simulation.run import Simulation

PINNED = {
    0: "equal creates at the same moment: the second was refused, not answered like the first",
    2: "the task that settles the slots of lost requests outlived its engine's memory, and failed",
    12: "an idle model whose park was refused was parked again at once, without end",
    24: "a failure while a switch was recorded left the host's turn taken for ever",
    86: "work in the mailbox of an instance whose actor failed was never told again",
    267: "a change that waited for placement was refused though an equal one had been accepted",
    1315: "placement restarted before a start's later phase was told to it, and failed for good",
    5484: "a start was ended as lost while its instance was just taking it up, and ended again",
    10010: "a model whose readiness went down with placement's mailbox was never moved for another",
    20342: "a model waited for memory that only its own parked copies held",
    30031: "a wake that became a cold start, and failed, told a state that was never shown",
    50008: "a stop of what had not begun reached what had, which then stopped without an event",
}


@pytest.mark.slow
@pytest.mark.parametrize(("seed", "found"), PINNED.items(), ids=str)
def test_it_stays_mended(seed, found):
    Simulation(seed).run()


FLEETS = {
    40377: "a model that was drained while its host began anew was ready and reached by nobody",
}


@pytest.mark.slow
@pytest.mark.parametrize(("seed", "found"), FLEETS.items(), ids=str)
def test_a_fleet_stays_mended(seed, found):
    FleetSimulation(seed).run()
