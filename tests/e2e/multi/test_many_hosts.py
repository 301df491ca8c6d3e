"""The benchmark of many hosts, in small: each of its parts works, and what it says is so."""

from __future__ import annotations

import pytest

from benchmarks.hosts.__main__ import measured
from benchmarks.hosts.stages import STAGES, Figure, Plan

pytestmark = pytest.mark.slow

SMALL = Plan(
    hosts=10,
    each=3,
    idle_s=0.1,
    settle_s=0.0,
    reads=5,
    starts=4,
    load_s=0,
    suspend_s=1.5,
    lost_s=3.0,
)
REQUESTS_S_MAX = 5.0


def test_every_stage_with_ten_hosts(tmp_path):
    figures = list(measured(tmp_path, SMALL))

    found = {one.what: one.value for one in figures}
    assert len(found) == len(figures), "no two figures have one name"
    lost_s = found["a host is lost: until uncertain"]
    assert found["a host is lost: until suspended"] < lost_s
    assert SMALL.lost_s - 1.5 < lost_s, "heartbeats are a second apart"
    assert found["requests to other hosts that failed"] == 0
    assert found["server killed: until it answers"] <= found["server killed: until all are ready"]
    assert 0 < found["start: its request to the host's prepare, p50"] < REQUESTS_S_MAX * 1000


def test_a_bar_is_missed_only_above_it():
    assert not Figure(what="w", value=1.0, unit="s").missed
    assert not Figure(what="w", value=1.0, unit="s", most=1.0).missed
    assert Figure(what="w", value=1.1, unit="s", most=1.0).missed
    assert len(STAGES) == 9
