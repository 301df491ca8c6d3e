"""Memory that is short: everyone is told the same, and nobody is moved for nothing."""

from __future__ import annotations

import json
import os
import time

import pytest

from capyctl.domain.units import GIB
from capyctl.simulated.usage import Draw, put_draw, start_ticks_of
from tests.e2e.daemon import running, simulation, wait_until
from tests.e2e.streams import Crowd
from tests.e2e.truth import check_truth, settle

pytestmark = pytest.mark.slow

BIG_MIB = 8192
"""Two of these do not fit one card of 24 GiB."""
LOOK_S = 1.5
"""Memory is looked at once a second."""
ALONE = {"devices": [{"sharing": "exclusive"}]}


def measured(daemon, name, mib=BIG_MIB, **document):
    """A deployment whose files are on record, so that a start is decided by memory alone."""
    id = daemon.create(name, mib, **document)
    wait_until(
        lambda: daemon.deployment(id)["checkpoint_digest"]["state"] == "recorded",
        what=f"{name} is measured",
    )
    return id


def ready(daemon, name, mib=BIG_MIB, **document):
    id = measured(daemon, name, mib, **document)
    daemon.do(id, "start")
    return wait_all_ready(daemon, id)


def wait_all_ready(daemon, id):
    def all_up():
        found = daemon.deployment(id)
        return found["ready_instances"] == found["desired_instances"]

    wait_until(all_up, what=f"every instance of {id} is ready")
    return id


def states(daemon, id):
    return [one["observed_state"] for one in daemon.deployment(id)["instances"]]


def log_of(daemon, event):
    entries = map(json.loads, daemon.log_path.read_text().splitlines())
    return [entry for entry in entries if entry["event"] == event]


def test_what_a_model_waits_for_has_the_same_figures_in_status_api_and_log(tmp_path):
    """A warm model is never moved, so an operator's start and a request are both told why."""
    with running(tmp_path, simulate=simulation()) as daemon:
        ready(daemon, "qwen", lifecycle={"warm": True})
        b = measured(daemon, "b")
        refused = daemon.act(b, "start").json()["error"]["message"]
        evicting = daemon.act(b, "start", evict=True)
        asked = daemon.chat("b")
        logged = [e["fields"]["reason"] for e in log_of(daemon, "memory_is_refused")]
        shown = daemon.deployment(b)
    why = shown["latest_operation"]["reason"]
    assert why.startswith(
        "insufficient_device_memory: needs 14.1 GiB of gpu0 memory, 8.0 GiB available "
        "(held: qwen 14.1 GiB ready); "
    )
    assert refused == f"Instance 0: {why}"
    assert evicting.status == 503
    assert evicting.json()["error"]["message"] == f"Instance 0: {why}"
    assert (asked.status, asked.json()["code"]) == (429, "insufficient_resources")
    assert asked.json()["message"] == f"No room for `b`: {why}"
    assert logged == [why]


def test_a_stranger_that_takes_the_memory_of_a_parked_model_is_named_and_waited_for(tmp_path):
    with running(tmp_path, simulate=simulation()) as daemon:
        a = ready(daemon, "a")
        daemon.do(a, "park")
        daemon.wait_state(a, "parked")
        (engine,) = daemon.engines()
        folder = daemon.state / "simulated"
        ticks = start_ticks_of(os.getpid())
        stranger = Draw(pid=os.getpid(), start_ticks=ticks, gpu="gpu0", bytes=18 * GIB, ram_bytes=0)
        room = {"gpu0": 24 * GIB, "system": 64 * GIB}
        put_draw(folder, stranger, room=room, unified=False)

        def told():
            operation = daemon.deployment(a).get("latest_operation") or {}
            return operation.get("reason")

        with Crowd(1) as crowd:
            time.sleep(LOOK_S)
            answer = crowd.do(daemon.chat, "a", max_tokens=1)
            why = wait_until(told, what="it waits with a reason")
            held = [one.pid for one in daemon.engines()], states(daemon, a)
            logged = [e["fields"]["reason"] for e in log_of(daemon, "memory_is_waited_for")]
            (folder / f"{os.getpid()}.json").unlink()
            served = answer.result(30)
        after = [one.pid for one in daemon.engines()]
        settle(daemon)
        check_truth(daemon)
    assert "needs 14.1 GiB of gpu0 memory, 6.0 GiB available" in why
    assert "programs outside capyctl 16.1 GiB beyond the free reserve" in why
    assert logged == [why]
    assert held == ([engine.pid], ["waking"])
    assert served.status == 200
    assert after == [engine.pid], "its wake was not tried without memory"


def test_evicting_for_several_exclusive_instances_moves_what_is_on_every_card(tmp_path):
    with running(tmp_path, simulate=simulation(gpus=2)) as daemon:
        a = ready(daemon, "a", instances=2)
        b = measured(daemon, "b", 1024, instances=2, **ALONE)
        blocked = daemon.act(b, "start")
        receipt = daemon.do(b, "start", evict=True)
        wait_all_ready(daemon, b)
        settle(daemon)
        check_truth(daemon)
        moved = states(daemon, a)
        cards = [one["devices"][0]["id"] for one in daemon.deployment(b)["instances"]]
    assert (blocked.status, blocked.json()["error"]["code"]) == (503, "capacity_blocked")
    assert "is not to be shared" in blocked.json()["error"]["message"]
    assert sorted(receipt["victims"]) == [f"{a}/0", f"{a}/1"]
    assert moved == ["parked", "parked"]
    assert sorted(cards) == ["gpu0", "gpu1"]


def test_evicting_moves_nobody_when_one_instance_has_no_place(tmp_path):
    with running(tmp_path, simulate=simulation(gpus=2)) as daemon:
        a = ready(daemon, "a")
        warm = ready(daemon, "warm", lifecycle={"warm": True})
        b = measured(daemon, "b", 1024, instances=2, **ALONE)
        refused = daemon.act(b, "start", evict=True)
        settle(daemon)
        check_truth(daemon)
        kept = [states(daemon, id) for id in (a, warm, b)]
    assert refused.status == 503
    assert refused.json()["error"]["code"] == "capacity_blocked"
    assert kept[:2] == [["ready"], ["ready"]]


def test_evicting_for_a_second_instance_does_not_move_the_first(tmp_path):
    with running(tmp_path, simulate=simulation()) as daemon:
        a = measured(daemon, "a", instances=2)
        instance_start(daemon, a, 0)
        daemon.wait_state(a, "ready")
        (before,) = daemon.engines()
        refused = daemon.act(a, "start", evict=True)
        settle(daemon)
        (after,) = daemon.engines()
        kept = states(daemon, a)
    assert (refused.status, refused.json()["error"]["code"]) == (503, "capacity_blocked")
    assert "held: a/0 14.1 GiB ready" in refused.json()["error"]["message"]
    assert after == before
    assert kept[0] == "ready"


def instance_start(daemon, id, index):
    body = {
        "action": "start",
        "expected_revision": 1,
        "deadline_ms": int(time.time() * 1000) + 60_000,
    }
    daemon.change("POST", f"/deployments/{id}/instances/{index}/actions", body, key="first")


def test_a_failed_model_stays_so_with_a_replace_and_starts_on_its_new_revision(tmp_path):
    bad = {"faults": {"wrong_model_name": True, "first_launches": 1}}
    with running(tmp_path, simulate=simulation(models={"a": bad})) as daemon:
        a = measured(daemon, "a", 1024)
        daemon.do(a, "start")
        daemon.wait_state(a, "failed")
        config = {"name": "a", "engine": "vllm", "model": "a", "request_deadline": "900s"}
        body = {"config": config, "expected_revision": 1}
        daemon.change("PUT", f"/deployments/{a}", body, key="replace")
        settle(daemon)
        check_truth(daemon)
        later = daemon.deployment(a)
        nothing = daemon.engines()
        reply = daemon.chat("a", max_tokens=1)
        (one,) = daemon.deployment(a)["instances"]
    assert (later["observed_state"], later["revision"]) == ("failed", "2")
    assert nothing == []
    assert reply.status == 200
    assert (one["observed_state"], one["revision"]) == ("ready", "2")
