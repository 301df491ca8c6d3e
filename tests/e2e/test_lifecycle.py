"""Every action of the management API on engines that are real processes, and engines gone wrong."""

import os
import signal
import time

import pytest

from tests.e2e.daemon import running, simulation, wait_until
from tests.e2e.streams import Crowd, chat_stream, events
from tests.e2e.truth import check_truth, settle, wait_gone

pytestmark = pytest.mark.slow


def ready(daemon, name, mib=1024, **document):
    id = daemon.create(name, mib, **document)
    daemon.do(id, "start")
    daemon.wait_state(id, "ready")
    wait_ready(daemon, id)
    return id


def wait_ready(daemon, id):
    def all_up():
        found = daemon.deployment(id)
        return found["ready_instances"] == found["desired_instances"] and found

    return wait_until(all_up, what=f"every instance of {id} is ready")


def replace(daemon, id, **document):
    """Replace the configuration; the receipt."""
    found = daemon.deployment(id)
    config = {"name": found["name"], "engine": "vllm", "model": found["name"], **document}
    body = {"config": config, "expected_revision": int(found["revision"])}
    return daemon.change("PUT", f"/deployments/{id}", body, key=f"replace-{time.time_ns()}")


def instance_action(daemon, id, index, action):
    found = daemon.deployment(id)
    body = {
        "action": action,
        "expected_revision": int(found["revision"]),
        "deadline_ms": int(time.time() * 1000) + 60_000,
    }
    path = f"/deployments/{id}/instances/{index}/actions"
    return daemon.change("POST", path, body, key=f"{action}-{time.time_ns()}")


def operation(daemon, id):
    return next(o for o in daemon.snapshot()["operations"] if o["id"] == id)


def ended(daemon, id):
    """The operation, once it has ended."""
    return wait_until(
        lambda: (o := operation(daemon, id))["state"] not in ("pending", "running") and o,
        what=f"operation {id} has ended",
    )


def code_of(reply):
    return reply.status, reply.json()["error"]["code"]


def pids(daemon):
    return sorted(one.pid for one in daemon.engines())


def kinds(daemon, after=None):
    return [event.kind for event in events(daemon, after)]


# -- actions ---------------------------------------------------------------------------------


def test_start_park_wake_stop_delete(tmp_path):
    with running(tmp_path, simulate=simulation()) as daemon:
        id = ready(daemon, "a")
        (pid,) = pids(daemon)
        again = daemon.act(id, "start")
        busy = daemon.act(id, "delete")
        parked = daemon.do(id, "park")
        daemon.wait_state(id, "parked")
        park = ended(daemon, parked["operation_id"])
        no_more = daemon.act(id, "park")
        woken = daemon.do(id, "start")
        daemon.wait_state(id, "ready")
        wake = ended(daemon, woken["operation_id"])
        same = pids(daemon)
        served = daemon.chat("a", max_tokens=2)
        daemon.do(id, "stop")
        daemon.wait_state(id, "stopped")
        settle(daemon)
        check_truth(daemon)
        told = kinds(daemon)
        deleted = daemon.do(id, "delete")
        left = daemon.snapshot()
        gone = daemon.request("POST", f"/deployments/{id}/actions", stale_stop(), key="x")
        fresh = daemon.create("a")
    assert code_of(again) == (409, "runtime_retained")
    assert code_of(busy) == (409, "delete_requires_cleanup")
    assert code_of(no_more) == (409, "lifecycle_conflict")
    assert (park["state"], wake["state"]) == ("succeeded", "succeeded")
    assert wake["action"] == "restore"
    assert same == [pid]
    assert served.status == 200
    assert [k for k in told if k.startswith("ordinary_cleanup")] == [
        "ordinary_cleanup_accepted",
        "ordinary_cleanup_armed",
        "ordinary_cleanup_completed",
    ]
    assert left["deployments"] == []
    assert left["routes"] == []
    assert deleted["operation_id"] in {o["id"] for o in left["operations"]}
    assert code_of(gone) == (404, "not_found")
    assert fresh != id


def stale_stop():
    return {
        "action": "stop",
        "expected_revision": 1,
        "deadline_ms": int(time.time() * 1000) + 60_000,
    }


def test_preinitialize_leaves_a_parked_engine_that_only_wakes(tmp_path):
    with running(tmp_path, simulate=simulation()) as daemon:
        id = daemon.create("a", 1024, instances=2)
        receipt = daemon.do(id, "preinitialize")
        done = ended(daemon, receipt["operation_id"])
        found = daemon.wait_state(id, "parked")
        before = pids(daemon)
        reply = daemon.chat("a", max_tokens=2)
        after = pids(daemon)
        settle(daemon)
        check_truth(daemon)
        launched = kinds(daemon).count("initialize_armed")
    assert done["state"] == "succeeded"
    assert [one["observed_state"] for one in found["instances"]] == ["parked", "parked"]
    assert reply.status == 200
    assert before == after
    assert launched == 2


def test_restart_only_is_never_parked(tmp_path):
    with running(tmp_path, simulate=simulation()) as daemon:
        id = ready(daemon, "a", residency="restart_only")
        refused = [daemon.act(id, action) for action in ("park", "preinitialize")]
    assert [code_of(reply) for reply in refused] == [(503, "unsupported_capability")] * 2


def test_one_instance_is_stopped_and_started(tmp_path):
    two = simulation(gpus=2)
    with running(tmp_path, simulate=two) as daemon:
        id = ready(daemon, "a", 8192, instances=2)
        devices = [one["devices"][0]["id"] for one in daemon.deployment(id)["instances"]]
        instance_action(daemon, id, 0, "stop")
        wait_until(
            lambda: daemon.deployment(id)["instances"][0]["observed_state"] == "stopped",
            what="instance 0 is stopped",
        )
        held = daemon.deployment(id)
        replies = [daemon.chat("a", max_tokens=2).status for _ in range(4)]
        still = daemon.deployment(id)
        nothing = instance_action(daemon, id, 0, "stop")
        instance_action(daemon, id, 0, "start")
        back = wait_ready(daemon, id)
        settle(daemon)
        check_truth(daemon)
    assert sorted(devices) == ["gpu0", "gpu1"]
    assert held["instances"][0]["operator_stopped"] is True
    assert held["observed_state"] == "ready"
    assert held["conditions"] == []
    assert replies == [200] * 4
    assert still["instances"][0]["observed_state"] == "stopped"
    assert nothing["operation_id"] is None
    assert back["instances"][0]["operator_stopped"] is False


def test_requests_use_both_cards(tmp_path):
    slow = {"tokens_per_s": 20, "reply_tokens": 20}
    with running(tmp_path, simulate=simulation(gpus=2, models={"a": slow})) as daemon:
        id = ready(daemon, "a", 8192, instances=2)
        with chat_stream(daemon, "a") as one, chat_stream(daemon, "a") as other:
            one.read(2)
            other.read(2)
            load = daemon.get(f"/metrics/load?deployment={id}").json()["deployments"][0]
            one.read()
            other.read()
    assert [i["router_in_flight"] for i in load["instances"]] == [1, 1]
    assert one.is_complete
    assert other.is_complete


def test_an_evicting_start_names_and_moves_its_victims(tmp_path):
    with running(tmp_path, simulate=simulation()) as daemon:
        a = ready(daemon, "a", 8192)
        b = daemon.create("b", 8192)
        wait_until(
            lambda: daemon.deployment(b)["checkpoint_digest"]["state"] == "recorded",
            what="b is measured",
        )
        blocked = daemon.act(b, "start")
        receipt = daemon.do(b, "start", evict=True)
        daemon.wait_state(b, "ready")
        moved = daemon.wait_state(a, "parked")
        settle(daemon)
        check_truth(daemon)
        back = daemon.chat("a", max_tokens=2)
    assert code_of(blocked) == (503, "capacity_blocked")
    assert "--evict" in blocked.json()["error"]["message"]
    assert receipt["victims"] == [f"{a}/0"]
    assert receipt["switch_id"]
    assert moved["instances"][0]["operator_stopped"] is False
    assert back.status == 200


# -- replace ---------------------------------------------------------------------------------


def test_a_running_model_restarts_on_its_new_revision(tmp_path):
    with running(tmp_path, simulate=simulation()) as daemon:
        id = ready(daemon, "a")
        before = pids(daemon)
        receipt = replace(daemon, id, residency="restart_only")
        wait_until(
            lambda: (
                (i := daemon.deployment(id)["instances"][0])["observed_state"] == "ready"
                and i["revision"] == "2"
            ),
            what="revision 2 is ready",
        )
        after = pids(daemon)
        reply = daemon.chat("a", max_tokens=2)
        settle(daemon)
        check_truth(daemon)
    assert receipt["revision"] == "2"
    assert len(before) == len(after) == 1
    assert before != after
    assert reply.status == 200


def test_a_request_during_a_restart_waits_for_it(tmp_path):
    with running(tmp_path, simulate=simulation(engines={"load_s": 1.0})) as daemon:
        id = ready(daemon, "a")
        replace(daemon, id, request_deadline="900s")
        with Crowd(6) as crowd:
            for _ in range(6):
                crowd.do(daemon.chat, "a", max_tokens=2)
            statuses = [reply.status for reply in crowd.results()]
        wait_until(
            lambda: daemon.deployment(id)["instances"][0].get("revision") == "2",
            what="revision 2 runs",
        )
    assert statuses == [200] * 6


def test_a_count_alone_leaves_what_runs(tmp_path):
    with running(tmp_path, simulate=simulation(gpus=2)) as daemon:
        id = ready(daemon, "a", 8192)
        (first,) = pids(daemon)
        replace(daemon, id, instances=2)
        daemon.do(id, "start")
        wait_ready(daemon, id)
        both = pids(daemon)
        replace(daemon, id, instances=1)
        wait_until(
            lambda: len(daemon.deployment(id)["instances"]) == 1, what="one instance is left"
        )
        found = wait_ready(daemon, id)
        settle(daemon)
        check_truth(daemon)
        last = pids(daemon)
        reply = daemon.chat("a", max_tokens=2)
    assert first in both
    assert len(both) == 2
    assert last == [first]
    assert [one["index"] for one in found["instances"]] == [0]
    assert reply.status == 200


def test_a_parked_model_is_not_running_after_a_replace(tmp_path):
    with running(tmp_path, simulate=simulation()) as daemon:
        id = ready(daemon, "a")
        daemon.do(id, "park")
        daemon.wait_state(id, "parked")
        replace(daemon, id, request_deadline="900s")
        settle(daemon)
        check_truth(daemon)
        found = daemon.deployment(id)
        reply = daemon.chat("a", max_tokens=2)
        after = daemon.deployment(id)
    assert found["observed_state"] in ("stopped", "parked")
    assert found["ready_instances"] == 0
    assert reply.status == 200
    assert after["instances"][0]["revision"] == "2"


def test_a_stopped_model_stays_stopped_and_a_stale_replace_is_refused(tmp_path):
    with running(tmp_path, simulate=simulation()) as daemon:
        id = ready(daemon, "a")
        daemon.do(id, "stop")
        daemon.wait_state(id, "stopped")
        replace(daemon, id, request_deadline="900s")
        body = {
            "config": {"name": "a", "engine": "vllm", "model": "a"},
            "expected_revision": 1,
        }
        stale = daemon.request("PUT", f"/deployments/{id}", body, key="stale")
        settle(daemon)
        refused = daemon.chat("a")
        daemon.do(id, "start")
        daemon.wait_state(id, "ready")
    assert code_of(stale) == (409, "revision_conflict")
    assert refused.json()["code"] == "deployment_stopped"


# -- engines gone wrong ----------------------------------------------------------------------


def test_an_engine_that_is_killed_while_it_serves_is_failed_and_starts_again(tmp_path):
    slow = {"tokens_per_s": 20, "reply_tokens": 200}
    with running(tmp_path, simulate=simulation(models={"a": slow})) as daemon:
        id = ready(daemon, "a")
        (before,) = pids(daemon)
        with chat_stream(daemon, "a") as stream:
            stream.read(2)
            os.kill(before, signal.SIGKILL)
            stream.read()
        found = daemon.wait_state(id, "failed")
        left = daemon.engines()
        reply = daemon.chat("a", max_tokens=2)
        settle(daemon)
        check_truth(daemon)
        (after,) = pids(daemon)
    assert stream.is_cut
    assert not stream.is_complete
    assert '"engine_error"' in stream.lines[-1]
    assert "signal 9" in found["instances"][0]["last_error"]
    assert left == []
    assert reply.status == 200
    assert after != before


def test_an_engine_that_dies_within_a_request(tmp_path):
    bad = {"reply_tokens": 100, "faults": {"dies_at_token": 40, "first_launches": 1}}
    with running(tmp_path, simulate=simulation(models={"a": bad})) as daemon:
        id = ready(daemon, "a")
        broken = daemon.chat("a")
        daemon.wait_state(id, "failed")
        again = daemon.chat("a")
        settle(daemon)
        check_truth(daemon)
    assert (broken.status, broken.json()["code"]) == (500, "engine_error")
    assert again.status == 200


def test_an_engine_that_wakes_as_another_is_stopped(tmp_path):
    bad = {"faults": {"gibberish_after_wake": True, "first_launches": 1}}
    with running(tmp_path, simulate=simulation(models={"a": bad})) as daemon:
        id = ready(daemon, "a")
        daemon.do(id, "park")
        daemon.wait_state(id, "parked")
        (before,) = pids(daemon)
        receipt = daemon.do(id, "start")
        done = ended(daemon, receipt["operation_id"])
        settle(daemon)
        check_truth(daemon)
        wait_gone([before])
        reply = daemon.chat("a", max_tokens=2)
    assert (done["state"], done["error_code"]) == ("failed", "wake_mismatch")
    assert reply.status == 200


@pytest.mark.parametrize("fault", ["dies_on_wake", "refuses_park"])
def test_parking_and_waking_that_go_wrong_leave_a_model_that_serves(tmp_path, fault):
    bad = {"faults": {fault: True, "first_launches": 1}}
    with running(tmp_path, simulate=simulation(models={"a": bad})) as daemon:
        id = ready(daemon, "a")
        daemon.do(id, "park")
        settle(daemon)
        reply = daemon.chat("a", max_tokens=2)
        if reply.status != 200:
            settle(daemon)
            reply = daemon.chat("a", max_tokens=2)
        settle(daemon)
        check_truth(daemon)
    assert reply.status == 200


@pytest.mark.faults
def test_a_park_that_frees_nothing_is_refused_and_the_model_serves_on(tmp_path):
    bad = {"faults": {"park_frees_nothing": True}}
    with running(tmp_path, simulate=simulation(models={"a": bad})) as daemon:
        id = ready(daemon, "a")
        before = pids(daemon)
        receipt = daemon.do(id, "park")
        done = wait_until(
            lambda: (o := operation(daemon, receipt["operation_id"]))["state"] == "failed" and o,
            what="the park is refused",
            within_s=60.0,
        )
        daemon.wait_state(id, "ready")
        after = pids(daemon)
        reply = daemon.chat("a", max_tokens=2)
        settle(daemon)
        check_truth(daemon)
    assert done["error_code"] == "park_refused"
    assert before == after
    assert reply.status == 200


def test_an_engine_that_ignores_sigterm_is_killed_after_its_grace(tmp_path):
    bad = {"worker_loss_s": 60, "faults": {"ignores_sigterm": True}}
    with running(tmp_path, simulate=simulation(models={"a": bad})) as daemon:
        id = ready(daemon, "a")
        began_s = time.monotonic()
        daemon.do(id, "stop")
        daemon.wait_state(id, "stopped")
        took_s = time.monotonic() - began_s
        settle(daemon)
        check_truth(daemon)
        left = daemon.processes()
    assert 14.5 < took_s < 45.0
    assert left == []


def test_a_child_that_outlives_its_engine_is_ended_with_it(tmp_path):
    bad = {"faults": {"forks_child": True}}
    with running(tmp_path, simulate=simulation(models={"a": bad})) as daemon:
        id = ready(daemon, "a")
        (engine,) = daemon.engines()
        group = [one.pid for one in daemon.processes() if one.group == engine.group]
        daemon.do(id, "stop")
        daemon.wait_state(id, "stopped")
        left = [one for one in daemon.processes() if one.pid in group]
        daemon.do(id, "start")
        daemon.wait_state(id, "ready")
        (second,) = daemon.engines()
        os.kill(second.pid, signal.SIGKILL)
        daemon.wait_state(id, "failed")
        after = [one for one in daemon.processes() if one.group == second.group]
    assert len(group) > 1
    assert left == []
    assert after == []


def test_an_engine_that_never_gets_ready_ends_at_its_deadline(tmp_path):
    bad = {"faults": {"never_ready": True}}
    with running(tmp_path, simulate=simulation(models={"a": bad})) as daemon:
        id = daemon.create("a", 1024, timeouts={"initialize": "30s"})
        found = daemon.deployment(id)
        wait_until(
            lambda: daemon.deployment(id)["checkpoint_digest"]["state"] == "recorded",
            what="it is measured",
        )
        body = {
            "action": "start",
            "expected_revision": int(found["revision"]),
            "deadline_ms": int(time.time() * 1000) + 4_000,
        }
        receipt = daemon.change("POST", f"/deployments/{id}/actions", body, key="short")
        done = ended(daemon, receipt["operation_id"])
        settle(daemon)
        check_truth(daemon)
        left = daemon.engines()
        state = daemon.deployment(id)["observed_state"]
    assert done["state"] == "failed"
    assert state == "failed"
    assert left == []


def test_a_wrong_engine_answer_at_readiness_fails_the_start(tmp_path):
    bad = {"faults": {"wrong_model_name": True}}
    with running(tmp_path, simulate=simulation(models={"a": bad})) as daemon:
        id = daemon.create("a", 1024)
        receipt = daemon.do(id, "start")
        done = ended(daemon, receipt["operation_id"])
        settle(daemon)
        check_truth(daemon)
        found = daemon.deployment(id)
    assert done["state"] == "failed"
    assert found["observed_state"] == "failed"
    assert found["instances"][0]["last_error"]
