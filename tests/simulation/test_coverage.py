"""How much of an instance's table the worlds go along; what they may miss, and why."""

from __future__ import annotations

from collections import Counter

import pytest

from capyctl.simulation.coverage import all_edges
from capyctl.simulation.fleet_run import FleetSimulation
from capyctl.simulation.run import Simulation

WORLDS_COUNT = 400
FLEETS_COUNT = 200
MOVED_SINCE = "its sender saw it elsewhere: it moved while the message was on its way"
SENT_TO = {
    "Start": {"stopped", "failed", "parked", "parking", "park_drain"},
    "Park": {"ready"},
    "Evict": {"ready", "parked"},
}
"""Where an instance is seen when it is told so; anywhere else is a race."""

RARE: dict[tuple[str, str], str] = {
    **{
        (state, message): MOVED_SINCE
        for state, message in sorted(all_edges())
        if message in SENT_TO and state not in SENT_TO[message]
    },
    **{
        (state, "DeadlineReached"): "a start rarely waits there until its own deadline"
        for state in ("cleaning", "parked", "ready", "reconciling", "stop_drain")
    },
    **{
        (state, "EngineExited"): "an engine rarely ends in these few seconds"
        for state in ("parking", "stop_drain", "wake_queued", "waking", "reconciling")
    },
    **{
        (state, message): "the one machine of these worlds is always there"
        for state, message in sorted(all_edges())
        if message in ("HostSuspended", "HostLost", "HostBack")
    },
    **{
        (state, message): "a failure, a replace and files that are not known yet, all at one moment"
        for state, message in sorted(all_edges())
        if message == "Abandon"
    },
    ("queued", "MorePlaces"): "the one machine of these worlds is known before anything starts",
    ("waking", "DeadlineReached"): "a wake is over long before its own deadline",
    ("stopping", "LaunchNotPrepared"): "a start is rarely ended while its latch is being made",
    ("cleaning", "Mark"): MOVED_SINCE,
    ("cleaning", "Stop"): MOVED_SINCE,
}


def test_what_is_rare_is_on_the_table():
    assert set(RARE) <= all_edges()


@pytest.mark.faults
def test_worlds_go_along_all_but_the_rare_edges():
    reached: Counter[tuple[str, str]] = Counter()
    for seed in range(WORLDS_COUNT):
        reached.update(Simulation(seed).run().reached)

    assert all_edges() - set(reached) - set(RARE) == set()


HOST_NEWS = frozenset({"HostSuspended", "HostLost", "HostBack"})
RARE_HOST_NEWS = {
    **{("cleaning", message): "it is swept in a few seconds" for message in HOST_NEWS},
    ("reconciling", "HostLost"): "a proof takes a few seconds",
    ("stop_drain", "HostLost"): "a drain is shorter than the silence after which a host is lost",
}


@pytest.mark.faults
def test_fleets_bring_news_of_hosts_to_all_but_the_rare_states():
    reached: Counter[tuple[str, str]] = Counter()
    for seed in range(2000, 2000 + FLEETS_COUNT):
        reached.update(FleetSimulation(seed).run().reached)

    about_hosts = {edge for edge in all_edges() if edge[1] in HOST_NEWS}
    assert about_hosts - set(reached) - set(RARE_HOST_NEWS) == set()
