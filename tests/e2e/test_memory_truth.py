"""What is charged is what was seen: starts, parks, files and workers of a real daemon."""

from __future__ import annotations

import json
import os
import signal
import time

import pytest

from tests.e2e.daemon import processes_of, running, simulation, wait_until
from tests.e2e.streams import events

pytestmark = pytest.mark.slow

GIB = 1 << 30


def ready(daemon, name, mib=1024, **document):
    id = daemon.create(name, mib, **document)
    daemon.do(id, "start")
    daemon.wait_state(id, "ready")
    return id


def parked(daemon, id):
    daemon.do(id, "park")
    return daemon.wait_state(id, "parked")


def measured(daemon, id):
    """Ready, and what its start took is on record."""

    def there():
        found = daemon.deployment(id)
        return found["startup"]["provenance"] == "measured" and found

    daemon.wait_state(id, "ready")
    return wait_until(there, what="the start is measured")


def operation(daemon, id):
    return next(o for o in daemon.snapshot()["operations"] if o["id"] == id)


def test_a_start_and_a_park_are_measured_and_kept_for_later_launches(tmp_path):
    models = {"a": {"residue": "3GiB", "load_s": 1.0}}
    with running(tmp_path, simulate=simulation(models=models)) as daemon:
        a = daemon.create("a", 1024)
        wait_until(lambda: "startup" in (daemon.deployment(a) or {}), what="sized")
        before = daemon.deployment(a)
        daemon.do(a, "start")
        started = measured(daemon, a)
        parked(daemon, a)
        daemon.kill()
        daemon.start()
        daemon.do(a, "stop")
        after = daemon.wait_state(a, "stopped")
        daemon.do(a, "start")
        again = daemon.wait_state(a, "ready")
    assert before["startup"]["provenance"] == "derived"
    assert before["parked"]["provenance"] == "placeholder"
    assert before["parked"]["charges"]["gpu0"] == str(GIB)
    assert started["startup"]["provenance"] == "measured"
    assert int(started["startup"]["bytes"]) >= int(before["startup"]["bytes"])
    assert after["startup"]["provenance"] == "measured"
    assert after["parked"]["provenance"] == "measured"
    assert after["parked"]["residues"] == {"gpu0": str(3 * GIB)}
    assert after["parked"]["charges"]["gpu0"] == str(3 * GIB)
    assert again["instances"][0]["startup"]["provenance"] == "measured"


def test_a_declared_start_stays_declared(tmp_path):
    with running(tmp_path, simulate=simulation()) as daemon:
        stated = {"memory": {"request": "6GiB", "startup": "9GiB"}}
        a = ready(daemon, "a", engine_config=stated)
        found = daemon.deployment(a)
    assert found["startup"]["provenance"] == "declared"
    assert found["startup"]["bytes"] == str(9 * GIB + GIB * 5 // 4)


def test_a_park_without_room_is_refused_and_in_a_switch_it_is_a_stop(tmp_path):
    keeps = {"residue": "3.5GiB"}
    with running(tmp_path, simulate=simulation(models={"a": keeps, "b": keeps})) as daemon:
        a = ready(daemon, "a", 2048)
        parked(daemon, a)
        b = ready(daemon, "b", 2048)
        parked(daemon, b)
        daemon.do(a, "start")
        daemon.wait_state(a, "ready")
        receipt = daemon.do(a, "park")
        ended = wait_until(
            lambda: (o := operation(daemon, receipt["operation_id"]))["state"] == "failed" and o,
            what="the park is refused",
        )
        shown = daemon.deployment(a)
        served = daemon.chat("a", max_tokens=1)
        daemon.create("c", 10 * 1024)
        switched = daemon.chat("c", max_tokens=1)
        done = [e.data["payload"] for e in events(daemon) if e.kind == "switch_completed"]
        later = daemon.deployment(a)
        log = daemon.log_path.read_text()
    assert ended["error_code"] == "park_parked_capacity"
    assert shown["observed_state"] == "ready"
    reason = shown["latest_operation"]["reason"]
    assert "parked it would keep 3.5 GiB of gpu0 memory, 2.5 GiB of the 6.0 GiB" in reason
    assert "b 3.5 GiB parked" in reason
    assert served.status == 200
    assert switched.status == 200
    assert done[-1]["detail"] == "released: stopped (no room to park)"
    assert later["observed_state"] == "stopped"
    assert "victim_released" in log


def touch_config(daemon, name, **changes):
    path = daemon.models / name / "config.json"
    before = path.read_text()
    path.write_text(json.dumps({**json.loads(before), **changes}))
    return path, before


def test_other_files_than_were_measured_are_not_launched(tmp_path):
    with running(tmp_path, simulate=simulation()) as daemon:
        a = ready(daemon, "a")
        daemon.do(a, "stop")
        daemon.wait_state(a, "stopped")
        path, before = touch_config(daemon, "a", torch_dtype="float32")
        daemon.do(a, "start")
        daemon.wait_state(a, "failed")
        failed = wait_until(
            lambda: (
                (found := daemon.deployment(a))["checkpoint_digest"]["state"] == "mismatch"
                and found
            ),
            what="the files are told to differ",
        )
        refused = daemon.act(a, "start")
        asked = daemon.chat("a")
        path.write_text(before)
        daemon.act(a, "start")
        wait_until(
            lambda: daemon.deployment(a)["checkpoint_digest"]["state"] == "recorded",
            what="the restored files are believed",
        )
        daemon.do(a, "start")
        again = daemon.wait_state(a, "ready")
        left = daemon.engines()
    assert failed["latest_operation"]["given_up"] is True
    assert failed["latest_operation"]["error_code"] == "checkpoint_mismatch"
    assert failed["checkpoint_digest"]["state"] == "mismatch"
    assert failed["checkpoint_digest"]["diagnostic"] == "checkpoint_mismatch"
    assert (refused.status, refused.json()["error"]["code"]) == (409, "checkpoint_mismatch")
    assert asked.status == 409
    assert again["checkpoint_digest"]["digest"] == failed["checkpoint_digest"]["expected"]
    assert len(left) == 1


def test_a_wake_that_reloads_compares_first(tmp_path):
    with running(tmp_path, simulate=simulation()) as daemon:
        a = ready(daemon, "a", residency="deep")
        parked(daemon, a)
        touch_config(daemon, "a", torch_dtype="float32")
        asked = daemon.chat("a")
        failed = daemon.wait_state(a, "failed")
        left = daemon.engines()
    assert asked.status in (409, 500)
    assert failed["instances"][0]["last_error"].startswith("checkpoint_mismatch: ")
    assert failed["checkpoint_digest"]["state"] == "mismatch"
    assert left == []


def test_a_first_start_that_may_take_the_whole_machine_needs_it_empty(tmp_path):
    with running(tmp_path, simulate=simulation(ram="32GiB")) as daemon:
        a = ready(daemon, "a")
        large = daemon.create("large", 8 * 1024)
        wait_until(
            lambda: daemon.deployment(large)["checkpoint_digest"]["state"] == "recorded",
            what="measured",
        )
        plain = daemon.act(large, "start")
        parked(daemon, a)
        daemon.do(large, "start")
        found = daemon.wait_state(large, "ready")
        later = measured(daemon, large)
    error = plain.json()["error"]
    assert (plain.status, error["code"]) == (409, "startup_requires_empty_host")
    assert "needs 28.8 GiB of system memory" in error["message"]
    assert "a 5.5 GiB ready" in error["message"]
    assert found["instances"][0]["startup"]["provenance"] == "whole_host"
    assert later["startup"]["provenance"] == "measured"


def test_a_worker_that_is_killed_takes_its_engine_along_at_once(tmp_path):
    with running(tmp_path, simulate=simulation(engines={"worker_loss_s": 60.0})) as daemon:
        a = ready(daemon, "a")
        worker = next(
            p.pid
            for p in processes_of(str(tmp_path))
            if (daemon_comm(p.pid)).startswith("VLLM::Worker")
        )
        began_s = time.monotonic()
        os.kill(worker, signal.SIGKILL)
        failed = daemon.wait_state(a, "failed")
        took_s = time.monotonic() - began_s
        again = daemon.chat("a", max_tokens=1)
    assert took_s < 40.0
    assert f"its worker process {worker} ended" in failed["instances"][0]["last_error"]
    assert again.status == 200


def daemon_comm(pid: int) -> str:
    with open(f"/proc/{pid}/comm") as comm:
        return comm.read()


def test_an_engine_that_ends_by_itself_with_0_has_failed(tmp_path):
    dies = {"faults": {"dies_at_token": 20, "exit_code": 0, "first_launches": 1}}
    with running(tmp_path, simulate=simulation(models={"a": dies})) as daemon:
        a = ready(daemon, "a")
        daemon.chat("a")
        failed = daemon.wait_state(a, "failed")
    assert (
        "exit code 0, although nothing had told it to end" in failed["instances"][0]["last_error"]
    )


def test_a_refused_start_names_who_holds_the_memory(tmp_path):
    with running(tmp_path, simulate=simulation()) as daemon:
        ready(daemon, "qwen", 8 * 1024)
        b = daemon.create("b", 8 * 1024)
        wait_until(
            lambda: daemon.deployment(b)["checkpoint_digest"]["state"] == "recorded",
            what="measured",
        )
        plain = daemon.act(b, "start")
    error = plain.json()["error"]
    assert (plain.status, error["code"]) == (503, "capacity_blocked")
    assert "insufficient_device_memory: needs 14.1 GiB of gpu0 memory, 8.0 GiB" in error["message"]
    assert "(held: qwen 14.1 GiB ready)" in error["message"]
