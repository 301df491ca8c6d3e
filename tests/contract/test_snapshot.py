"""The snapshot: its fields and their order, what is a string and what is a number."""

from __future__ import annotations

import json
import re

import pytest

from tests.contract.fleet import fresh_name

TOP = [
    "api_version",
    "cursor",
    "ledger_epoch",
    "session_epoch",
    "deployments",
    "routes",
    "operations",
]
ALWAYS = {
    "id": str,
    "name": str,
    "kind": str,
    "revision": str,
    "generation": str,
    "desired_state": str,
    "observed_state": str,
    "admission_enabled": bool,
    "dispatch_enabled": bool,
    "suspended": bool,
    "effective_fingerprint": (str, type(None)),
    "development_controls": dict,
    "desired_instances": int,
    "ready_instances": int,
    "conditions": list,
    "instances": list,
    "hosts": list,
    "timeouts": dict,
    "checkpoint_digest": dict,
    "latest_operation": dict,
}
ON_INSTANCE = {
    "index": int,
    "host_id": (str, type(None)),
    "devices": (list, type(None)),
    "generation": (str, type(None)),
    "observed_state": str,
    "lifecycle": str,
    "operator_stopped": bool,
}
OPTIONAL = {
    "operator_action",
    "model_sources",
    "startup",
    "parked",
    "switch",
    "warm",
    "activation",
    "context",
    "parsers",
}
STATES = {
    "ready",
    "parked",
    "queued",
    "starting",
    "waking",
    "parking",
    "stopping",
    "stopped",
    "failed",
    "uncertain",
    "reconciling",
}
ULID = re.compile("[0-7][0-9A-HJKMNP-TV-Z]{25}")
NUMBER = re.compile("0|[1-9][0-9]*")


@pytest.fixture(scope="module")
def seen(stopped):
    """A snapshot with a stopped and a ready deployment in it, and the id of the ready one."""
    fleet, _ = stopped
    id = fleet.ready(instances=2)
    return fleet.snapshot(), id


def test_the_top_level_has_these_fields_in_this_order(seen):
    assert list(seen[0]) == TOP
    assert seen[0]["api_version"] == "1"


def test_it_is_compact_utf8_json(stopped):
    fleet, _ = stopped
    name = fresh_name("clé-鍵")
    fleet.create(name=name)

    body = fleet.target.ask("GET", "/snapshot").body

    assert name.encode() in body

    text = json.dumps(json.loads(body), separators=(",", ":"), ensure_ascii=False)
    assert body == text.encode()


def test_the_cursor_is_a_ulid_and_a_sequence(seen):
    incarnation, _, seq = seen[0]["cursor"].partition(":")

    assert ULID.fullmatch(incarnation)
    assert NUMBER.fullmatch(seq)
    assert len(seen[0]["cursor"]) <= 46


@pytest.mark.parametrize("field", ["ledger_epoch", "session_epoch"])
def test_epochs_are_decimal_strings(seen, field):
    assert NUMBER.fullmatch(seen[0][field])


@pytest.mark.parametrize("field", ALWAYS)
def test_every_deployment_has(seen, field):
    for row in seen[0]["deployments"]:
        assert isinstance(row[field], ALWAYS[field])
        assert not (ALWAYS[field] is int and isinstance(row[field], bool))


def test_a_deployment_has_no_other_field(seen):
    for row in seen[0]["deployments"]:
        assert row.keys() - ALWAYS.keys() <= OPTIONAL


@pytest.mark.parametrize("field", ["revision", "generation"])
def test_revisions_and_generations_are_decimal_strings(seen, field):
    for row in seen[0]["deployments"]:
        assert NUMBER.fullmatch(row[field])


def test_deployments_are_ordered_by_id(seen):
    ids = [row["id"] for row in seen[0]["deployments"]]

    assert ids == sorted(ids)
    assert all(ULID.fullmatch(id) for id in ids)


@pytest.mark.parametrize("field", ON_INSTANCE)
def test_every_instance_has(seen, field):
    for row in seen[0]["deployments"]:
        for one in row["instances"]:
            assert isinstance(one[field], ON_INSTANCE[field])


def test_observed_states_are_those_of_the_page(seen):
    for row in seen[0]["deployments"]:
        assert {row["observed_state"], *(i["observed_state"] for i in row["instances"])} <= STATES


def test_lifecycles_are_active_or_retiring(seen):
    for row in seen[0]["deployments"]:
        assert {one["lifecycle"] for one in row["instances"]} <= {"active", "retiring"}


def test_what_is_stopped_has_no_conditions(seen):
    rest = [row for row in seen[0]["deployments"] if row["observed_state"] == "stopped"]

    assert rest
    assert [row["conditions"] for row in rest] == [[]] * len(rest)


def test_a_running_instance_names_its_host_and_revision(seen):
    snapshot, id = seen
    row = next(row for row in snapshot["deployments"] if row["id"] == id)

    for one in row["instances"]:
        assert one["host_id"]
        assert (one["observed_state"], one["revision"]) == ("ready", "1")
        assert NUMBER.fullmatch(one["generation"])
        assert "last_error" not in one


def test_the_page_s_example_has_no_other_shape(seen):
    snapshot, id = seen
    row = next(row for row in snapshot["deployments"] if row["id"] == id)

    assert (row["desired_state"], row["observed_state"]) == ("ready", "ready")
    assert (row["desired_instances"], row["ready_instances"]) == (2, 2)
    assert row["conditions"] == []
    assert row["checkpoint_digest"]["state"] == "recorded"
    assert row["checkpoint_digest"]["provisional"] is False
    assert row["latest_operation"].keys() == {"id", "kind", "state"}
    assert row["latest_operation"]["kind"] == "initialize"
    assert row["latest_operation"]["state"] == "succeeded"


def test_timeouts_are_those_of_a_small_model(seen):
    snapshot, id = seen
    row = next(row for row in snapshot["deployments"] if row["id"] == id)

    windows = {name: value for name, value in row["timeouts"].items() if name != "provenance"}
    assert windows == {
        "request_deadline_ms": 1_800_000,
        "initialize_ms": 610_000,
        "wake_ms": 65_000,
        "stop_ms": 900_000,
    }


def test_declared_timeouts_are_shown(stopped):
    fleet, _ = stopped
    id = fleet.create(timeouts={"initialize": "120s", "wake": "20s"}, request_deadline="300s")

    timeouts = fleet.row(id)["timeouts"]

    assert timeouts["request_deadline_ms"] == 300_000
    assert (timeouts["initialize_ms"], timeouts["wake_ms"]) == (120_000, 20_000)
    assert timeouts["provenance"] == {"initialize": "declared", "wake": "declared"}


def test_hosts_say_whether_they_resolve_it(seen):
    for row in seen[0]["deployments"]:
        assert {host["outcome"] for host in row["hosts"]} <= {"resolved", "refused"}


def test_a_digest_is_told_in_full(seen):
    for row in seen[0]["deployments"]:
        digest = row["checkpoint_digest"]
        assert digest["state"] in ("pending", "recorded", "mismatch", "unusable")
        if digest["state"] == "recorded":
            assert re.fullmatch("sha256:[0-9a-f]{64}", digest["digest"])
            assert isinstance(digest["weights_bytes"], int)


def test_operations_are_ordered_by_id(seen):
    ids = [row["id"] for row in seen[0]["operations"]]

    assert ids == sorted(ids)


def test_every_operation_has_these_fields(seen):
    for row in seen[0]["operations"]:
        assert row.keys() - {"error_code"} == {
            "id",
            "deployment_id",
            "action",
            "state",
            "has_error",
            "accepted_at",
        }
        assert row["state"] in ("pending", "running", "succeeded", "failed", "cancelled")
        assert isinstance(row["has_error"], bool)


def test_instants_are_utc_with_three_digits(seen):
    for row in seen[0]["operations"]:
        assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", row["accepted_at"])


def test_an_error_code_is_a_closed_token(seen):
    for row in seen[0]["operations"]:
        assert re.fullmatch(r"[a-z0-9_:.]{1,64}", row.get("error_code", "x"))


def test_nothing_changes_without_a_change(target, stopped):
    stopped[0].wait_measured()
    first = target.ask("GET", "/snapshot").body

    assert target.ask("GET", "/snapshot").body == first


def test_a_change_moves_the_cursor(stopped):
    fleet, id = stopped
    before = fleet.snapshot()["cursor"]
    fleet.act(id, "stop", index=0)
    fleet.create()

    incarnation, _, seq = fleet.snapshot()["cursor"].partition(":")

    assert incarnation == before.partition(":")[0]
    assert int(seq) > int(before.partition(":")[2])


def test_twenty_readers_get_a_snapshot_or_queue_full(target):
    connections = [target.connect() for _ in range(20)]
    try:
        for connection in connections:
            connection.send(target.request("GET", "/management/v1/snapshot"))
        answers = [target.checked(connection.answer()) for connection in connections]
    finally:
        for connection in connections:
            connection.__exit__()

    assert {answer.code for answer in answers} <= {None, "queue_full"}
    assert sum(answer.status == 200 for answer in answers) >= 2
