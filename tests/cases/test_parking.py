"""Parking and waking: only measured memory counts, and a park that went wrong harms nobody."""

import time

import pytest

from tests.cases.scenes import BIG_MIB, Clients, kill_engines, parked, ready, seen
from tests.e2e.daemon import running, simulation, wait_until
from tests.e2e.truth import check_truth, recorded, settle

pytestmark = pytest.mark.slow

GIB = 1 << 30


def test_the_next_model_starts_only_once_parked_memory_is_free(tmp_path):
    """The engine says at once that it is parked; its memory comes free later."""
    lag_s = 1.2
    document = simulation(engines={"release_lag_s": lag_s})
    with running(tmp_path, simulate=document) as daemon:
        ready(daemon, "b", "a", mib=BIG_MIB)
        reply = daemon.chat("b", max_tokens=1)
        (park,) = seen(daemon, "park_armed")
        start = seen(daemon, "initialize_armed")[-1]
        check_truth(daemon)
    assert reply.status == 200
    assert int(start.data["recorded_at_ms"]) - int(park.data["recorded_at_ms"]) >= lag_s * 1000


@pytest.mark.faults
def test_a_park_that_frees_nothing_is_taken_back_with_its_figures(tmp_path):
    """Its memory is waited for as long as it may take: half a minute."""
    document = simulation(models={"a": {"faults": {"park_frees_nothing": True}}})
    with running(tmp_path, simulate=document) as daemon:
        (a,) = ready(daemon, "a")
        daemon.do(a, "park")
        refused = wait_until(
            lambda: seen(daemon, "park_refused"), what="it is refused", within_s=45
        )
        found = daemon.wait_state(a, "ready")
        served = daemon.chat("a", max_tokens=1)
        held = recorded(daemon.state)[0].charges
    operation = found["latest_operation"]
    assert refused
    assert operation["state"] == "failed"
    assert "too few came free" in operation["reason"]
    assert held["gpu0"] > GIB
    assert served.status == 200


@pytest.mark.parametrize("engine", ["vllm", "sglang"])
def test_what_leaves_more_behind_with_each_park_is_stopped_for_once_and_stays_manageable(
    tmp_path, engine
):
    """1, 1.7 and 2.4 GiB are left: the fourth park is a stop, also after a crash in between."""
    keeps = {"a": {"residue": "1GiB", "residue_growth": "716.8MiB"}}
    limit = ("host.resource_policy.parked_growth_limit=1GiB",)
    with running(tmp_path, simulate=simulation(models=keeps), sets=limit) as daemon:
        a = parked(daemon, "a", engine=engine)
        for _ in range(2):
            assert daemon.chat("a", max_tokens=1).status == 200
            daemon.do(a, "park")
            grown = daemon.wait_state(a, "parked")
        assert daemon.chat("a", max_tokens=1).status == 200
        daemon.kill()
        daemon.start()
        daemon.wait_state(a, "ready")
        (engine_before,) = {one.group for one in daemon.engines()}
        path = f"/deployments/{a}/actions"
        body = {"action": "park", "expected_revision": 1, "deadline_ms": deadline_ms()}
        receipt = daemon.request("POST", path, body, key="the fourth").json()
        shown = daemon.wait_state(a, "stopped")
        again = daemon.request("POST", path, body, key="the fourth").json()
        left = [one for one in daemon.engines() if one.group == engine_before]
        settle(daemon)
        held = recorded(daemon.state)[0].charges
        started = daemon.chat("a", max_tokens=1).status
        daemon.do(a, "stop")
        daemon.wait_state(a, "stopped")
    assert grown["parked"]["growth"].startswith("parked_growth: ")
    operation = shown["latest_operation"]
    assert (operation["state"], operation["error_code"]) == ("failed", "parked_growth")
    assert "2.4 GiB" in operation["reason"]
    assert again == receipt
    assert left == []
    assert held == {}
    assert started == 200


def deadline_ms():
    return int(time.time() * 1000) + 60_000


def test_a_switch_stops_what_frees_nothing_when_parked(tmp_path):
    document = simulation(models={"a": {"faults": {"refuses_park": True}}})
    with running(tmp_path, simulate=document) as daemon:
        _, a = ready(daemon, "b", "a", mib=BIG_MIB)
        reply = daemon.chat("b", max_tokens=1)
        shown = daemon.wait_state(a, "stopped")
        check_truth(daemon)
    assert reply.status == 200
    assert shown["instances"][0]["observed_state"] == "stopped"


def test_requests_during_a_park_wake_it_once(tmp_path):
    document = simulation(engines={"park_s": 0.6, "wake_s": 0.1})
    with running(tmp_path, simulate=document) as daemon:
        (a,) = ready(daemon, "a")
        daemon.do(a, "park")
        clients = Clients()
        clients.begin_at([0.1 * n for n in range(8)], lambda: daemon.chat("a", max_tokens=1))
        statuses = clients.statuses()
        parks, wakes = seen(daemon, "park_armed"), seen(daemon, "restore_armed")
    assert statuses == [200] * 8
    assert len(parks) == 1
    assert len(wakes) == 1


def test_a_parked_engine_that_dies_is_noticed_and_starts_anew(tmp_path):
    with running(tmp_path, simulate=simulation()) as daemon:
        a = parked(daemon, "a")
        kill_engines(daemon)
        shown = daemon.wait_state(a, "failed")
        freed = recorded(daemon.state)[0].charges
        reply = daemon.chat("a", max_tokens=1)
        launched = seen(daemon, "initialize_armed")
    assert "while parked" in shown["instances"][0]["last_error"]
    assert freed == {}
    assert reply.status == 200
    assert len(launched) == 2


@pytest.mark.parametrize("fault", ["dies_on_wake", "gibberish_after_wake"])
def test_a_wake_that_fails_ends_in_one_cold_start(tmp_path, fault):
    bad = {"faults": {fault: True, "first_launches": 1}}
    with running(tmp_path, simulate=simulation(models={"a": bad})) as daemon:
        a = parked(daemon, "a")
        first = daemon.chat("a", max_tokens=4)
        failed = daemon.deployment(a)
        second = daemon.chat("a", max_tokens=4)
        launched = seen(daemon, "initialize_armed")
        wakes = seen(daemon, "restore_armed")
        check_truth(daemon)
    assert first.status in (200, 500), first
    assert second.status == 200
    assert len(launched) == 2
    assert len(wakes) == 1
    assert failed is not None


def test_what_parked_engines_keep_is_counted_against_the_next(tmp_path):
    """Residues of three parked engines leave no room for a model that fits an empty card."""
    document = simulation(memory="16GiB", engines={"residue": "1GiB"})
    with running(tmp_path, simulate=document) as daemon:
        for name in ("a", "b"):
            parked(daemon, name)
        settle(daemon)
        held = [one.charges["gpu0"] for one in recorded(daemon.state)]
        check_truth(daemon)
    assert held == [GIB, GIB]


def test_a_larger_residue_is_what_is_booked(tmp_path):
    document = simulation(engines={"residue": "1600MiB"})
    with running(tmp_path, simulate=document) as daemon:
        parked(daemon, "a", mib=4096)
        held = recorded(daemon.state)[0].charges["gpu0"]
        check_truth(daemon)
    assert held == 1600 << 20
