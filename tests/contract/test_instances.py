"""Actions on one instance."""

from __future__ import annotations

import pytest

from tests.contract.fleet import fresh_key
from tests.contract.rows import ULID
from tests.contract.speaking import canonical


@pytest.fixture(scope="module")
def pair(stopped):
    """A deployment of two instances that nobody starts."""
    fleet, _ = stopped
    return fleet, fleet.create(instances=2)


def states(row):
    return [one["observed_state"] for one in row["instances"]]


@pytest.mark.parametrize("index", [2, 3, 63])
def test_an_instance_beyond_the_count_is_404(pair, index):
    fleet, id = pair

    assert fleet.act(id, "stop", index=index).code == "not_found"


@pytest.mark.parametrize("action", ["park", "preinitialize", "delete", "suspend"])
def test_only_start_and_stop_are_for_one_instance(pair, action):
    fleet, id = pair

    answer = fleet.act(id, action, index=0)

    assert (answer.status, answer.code) == (503, "unsupported_capability")


@pytest.mark.parametrize("action", ["park", "suspend"])
def test_an_unknown_instance_is_the_earlier_fault(pair, action):
    fleet, id = pair
    there = fleet.action(id, action)

    assert fleet.send_action(id, there, index=2).code == "not_found"
    assert fleet.send_action(ULID, there, index=0).code == "not_found"


def test_a_stop_of_what_holds_nothing_only_records_the_mark(pair):
    fleet, id = pair

    answer = fleet.act(id, "stop", index=1)

    assert answer.status == 202
    assert answer.body == canonical(
        {
            "api_version": "1",
            "deployment_id": id,
            "instance": 1,
            "joined": False,
            "operation_id": None,
            "revision": "1",
        }
    )
    assert fleet.row(id)["instances"][1]["operator_stopped"] is True


def test_a_stale_revision_is_409(pair):
    fleet, id = pair
    body = {**fleet.action(id, "stop"), "expected_revision": 2}

    assert fleet.send_action(id, body, index=0).code == "revision_conflict"


@pytest.mark.parametrize("deadline_ms", [1, 2**62])
def test_a_deadline_out_of_the_window_is_400(pair, deadline_ms):
    fleet, id = pair
    body = {**fleet.action(id, "stop"), "deadline_ms": deadline_ms}

    assert fleet.send_action(id, body, index=0).code == "invalid_request"


def test_the_key_of_an_instance_s_stop_with_a_start_is_409(pair):
    fleet, id = pair
    body, key = fleet.action(id, "stop"), fresh_key()
    fleet.send_action(id, body, key=key, index=0)

    answer = fleet.send_action(id, {**body, "action": "start"}, key=key, index=0)

    assert answer.code == "idempotency_conflict"


def test_one_of_two_is_started_and_stopped_by_itself(fleet):
    id = fleet.create(instances=2)
    started = fleet.accept(id, "start", index=1)
    one_ready = fleet.wait(id, lambda row: row["ready_instances"] == 1, what="one is ready")
    again = fleet.act(id, "start", index=1)
    fleet.accept(id, "start", index=0)
    both = fleet.wait_ready(id)
    stopped = fleet.accept(id, "stop", index=0)
    rest = fleet.wait(id, lambda row: states(row)[0] == "stopped", what="0 is stopped")
    served = fleet.chat(fleet.row(id)["name"])
    fleet.accept(id, "start")
    whole = fleet.wait_ready(id)

    assert (started["instance"], stopped["instance"]) == (1, 0)
    assert started["operation_id"]
    assert states(one_ready) == ["stopped", "ready"]
    assert one_ready["conditions"] == ["degraded"]
    assert again.code == "runtime_retained"
    assert both["conditions"] == []
    assert states(rest) == ["stopped", "ready"]
    assert rest["conditions"] == []
    assert rest["observed_state"] == "ready"
    assert [one["operator_stopped"] for one in rest["instances"]] == [True, False]
    assert served.status == 200
    assert [one["operator_stopped"] for one in whole["instances"]] == [False, False]


def test_instances_are_ordered_by_index(fleet):
    id = fleet.create(instances=5)

    assert [one["index"] for one in fleet.row(id)["instances"]] == [0, 1, 2, 3, 4]
