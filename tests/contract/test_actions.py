"""Actions on a whole deployment: receipts, deadlines, and what each is refused with."""

from __future__ import annotations

import re

import pytest

from tests.contract.fleet import fresh_key, fresh_name, now_ms
from tests.contract.rows import ULID as NOBODY

ULID = "[0-7][0-9A-HJKMNP-TV-Z]{25}"
RECEIPT = re.compile(
    rf'\{{"api_version":"1","deployment_id":"({ULID})","joined":(true|false),'
    rf'"operation_id":"({ULID})","revision":"([1-9][0-9]*)"\}}'.encode()
)
REVISION_CONFLICT = (
    b'{"api_version":"1","error":{"code":"revision_conflict","details":{},'
    b'"message":"Expected revision does not match","operation_id":null,"retryable":false}}'
)
ALL = ("start", "stop", "park", "preinitialize", "delete")


def test_a_stop_is_answered_byte_for_byte(stopped):
    fleet, id = stopped

    found = RECEIPT.fullmatch(fleet.act(id, "stop").body)

    assert found is not None
    assert (found[1].decode(), found[2], found[4]) == (id, b"false", b"1")


def test_a_start_is_answered_byte_for_byte(fleet):
    id = fleet.create()
    answer = fleet.act(id, "start")

    found = RECEIPT.fullmatch(answer.body)

    assert found is not None
    assert (found[1].decode(), found[2], found[4]) == (id, b"false", b"1")
    assert fleet.operation(found[3].decode())["action"] == "initialize"


@pytest.mark.parametrize("action", ALL)
def test_a_stale_revision_is_answered_as_the_page_prints_it(stopped, action):
    fleet, id = stopped

    answer = fleet.send_action(id, {**fleet.action(id, action), "expected_revision": 2})

    assert (answer.status, answer.body) == (409, REVISION_CONFLICT)


@pytest.mark.parametrize("action", ALL)
@pytest.mark.parametrize("ahead_ms", [-60_000, -1, 1_800_000 + 5_000, 10**12])
def test_a_deadline_out_of_the_window_is_400(stopped, action, ahead_ms):
    fleet, id = stopped
    body = {**fleet.action(id, action), "deadline_ms": now_ms() + ahead_ms}

    assert fleet.send_action(id, body).code == "invalid_request"


@pytest.mark.parametrize("ahead_ms", [5_000, 1_800_000 - 5_000])
def test_a_deadline_within_the_window_is_fine(stopped, ahead_ms):
    fleet, id = stopped
    body = {**fleet.action(id, "stop"), "deadline_ms": now_ms() + ahead_ms}

    assert fleet.send_action(id, body).status == 202


@pytest.mark.parametrize("action", ["suspend", "resume"])
def test_suspend_and_resume_are_unsupported(stopped, action):
    fleet, id = stopped

    answer = fleet.act(id, action)

    assert (answer.status, answer.code) == (503, "unsupported_capability")


@pytest.mark.parametrize("action", ["suspend", "resume"])
def test_suspend_and_resume_of_an_unknown_deployment_are_404(stopped, action):
    fleet, id = stopped

    answer = fleet.send_action(NOBODY, fleet.action(id, action))

    assert (answer.status, answer.code) == (404, "not_found")


@pytest.mark.parametrize("action", ["unknown", "restart", "Start", ""])
def test_an_unknown_action_is_400(stopped, action):
    fleet, id = stopped

    assert fleet.act(id, action).code == "invalid_request"


def test_park_with_nothing_ready_is_409(stopped):
    fleet, id = stopped

    answer = fleet.act(id, "park")

    assert (answer.status, answer.code) == (409, "lifecycle_conflict")


@pytest.mark.parametrize("action", ["park", "preinitialize"])
def test_what_never_parks_is_unsupported(fleet, action):
    id = fleet.create(residency="restart_only")

    answer = fleet.act(id, action)

    assert (answer.status, answer.code) == (503, "unsupported_capability")


def test_a_restart_only_model_has_no_window_to_wake(fleet):
    id = fleet.create(residency="restart_only")

    assert "wake_ms" not in fleet.row(id)["timeouts"]


def test_a_stop_of_what_holds_nothing_has_succeeded_at_once(stopped):
    fleet, id = stopped

    receipt = fleet.act(id, "stop").json()

    assert fleet.operation(receipt["operation_id"])["state"] == "succeeded"


def test_a_never_started_deployment_can_be_deleted(fleet):
    id = fleet.create()

    receipt = fleet.act(id, "delete").json()

    assert fleet.find(id) is None
    assert fleet.operation(receipt["operation_id"])["state"] == "succeeded"
    assert fleet.operation(receipt["operation_id"])["action"] == "delete"


@pytest.mark.parametrize("action", ALL)
def test_an_action_on_a_deleted_deployment_is_404(fleet, action):
    id = fleet.create()
    body = fleet.action(id, action)
    fleet.act(id, "delete")

    assert fleet.send_action(id, body).code == "not_found"


def test_a_deleted_deployment_leaves_its_routes(fleet):
    id = fleet.create(routes=[fresh_name(), fresh_name()])
    fleet.act(id, "delete")

    assert [row for row in fleet.snapshot()["routes"] if row["deployment_id"] == id] == []


@pytest.mark.parametrize("action", ["start", "preinitialize"])
def test_nothing_starts_before_its_files_are_measured(fleet, action):
    id = fleet.create_unmeasured(fleet.document() | {"model": fresh_name("missing")})

    answer = fleet.act(id, action)

    assert (answer.status, answer.code) == (503, "checkpoint_digest_pending")


def test_a_model_with_no_place_is_capacity_blocked(fleet):
    fleet.checkpoint("vast", weights_mib=100 * 1024)
    id = fleet.create(model="vast")

    plain, evicting = fleet.act(id, "start"), fleet.act(id, "start", evict=True)

    assert (plain.code, evicting.code) == ("capacity_blocked", "capacity_blocked")
    assert "insufficient_device_memory: needs 1" in plain.message
    assert "--evict" not in plain.message  # it would not help: the card itself is too small
    assert "instance 0" in evicting.message.lower()
    assert fleet.row(id)["observed_state"] == "stopped"


# -- the life of one deployment ------------------------------------------------------------------


def test_start_park_wake_stop_delete(fleet):
    """One deployment through every action, with what the snapshot shows after each."""
    name = fresh_name()
    id = fleet.create(name=name)
    start = fleet.accept(id, "start")
    fleet.wait_ready(id)
    running = fleet.row(id)
    again = fleet.act(id, "start")
    park = fleet.accept(id, "park")
    parked = fleet.wait_state(id, "parked")
    deleted_early = fleet.act(id, "delete")
    wake = fleet.accept(id, "start")
    woken = fleet.wait_ready(id)
    stop = fleet.accept(id, "stop")
    stopped = fleet.wait_state(id, "stopped")
    fleet.accept_delete(id)
    kinds = {row["id"]: row for row in fleet.snapshot()["operations"] if row["deployment_id"] == id}

    assert (running["desired_state"], running["ready_instances"]) == ("ready", 1)
    assert running["instances"][0]["host_id"]
    assert (again.status, again.code) == (409, "runtime_retained")
    assert parked["desired_state"] in ("parked", "ready")
    assert parked["ready_instances"] == 0
    assert deleted_early.code == "delete_requires_cleanup"
    assert (woken["observed_state"], woken["revision"]) == ("ready", "1")
    assert (stopped["desired_state"], stopped["ready_instances"]) == ("stopped", 0)
    assert [kinds[one["operation_id"]]["action"] for one in (start, park, wake, stop)] == [
        "initialize",
        "park",
        "restore",
        "ordinary_cleanup",
    ]
    assert {row["state"] for row in kinds.values()} == {"succeeded"}
    assert fleet.find(id) is None


def test_preinitialize_starts_and_parks_each_instance(fleet):
    id = fleet.create(instances=2)

    receipt = fleet.accept(id, "preinitialize")

    operation = fleet.wait_operation(receipt["operation_id"], "succeeded", "failed", "cancelled")
    row = fleet.row(id)
    assert operation["action"] == "preinitialize"
    assert operation["state"] == "succeeded"
    assert [one["observed_state"] for one in row["instances"]] == ["parked", "parked"]


def test_a_start_under_way_is_joined(fleet, simulated):
    fleet.checkpoint("slow")
    id = fleet.create(model="slow")
    first = fleet.accept(id, "start")

    second = fleet.act(id, "start")

    found = RECEIPT.fullmatch(second.body)
    assert found is not None
    assert (found[2], found[3].decode()) == (b"true", first["operation_id"])


def test_a_joined_start_again_is_its_own_first_answer(fleet, simulated):
    fleet.checkpoint("slow")
    id = fleet.create(model="slow")
    fleet.accept(id, "start")
    body, key = fleet.action(id, "start"), fresh_key()
    first = fleet.send_action(id, body, key=key)
    fleet.wait_ready(id)

    again = fleet.send_action(id, body, key=key)

    assert first.json()["joined"] is True
    assert again.body == first.body


def test_a_start_under_way_shows_and_cannot_be_parked_or_deleted(fleet, simulated):
    fleet.checkpoint("slow")
    id = fleet.create(model="slow")
    receipt = fleet.accept(id, "start")
    row = fleet.wait_state(id, "starting")

    park, delete = fleet.act(id, "park"), fleet.act(id, "delete")

    assert row["desired_state"] == "ready"
    assert row["latest_operation"]["id"] == receipt["operation_id"]
    assert (row["latest_operation"]["kind"], row["latest_operation"]["state"]) == (
        "initialize",
        "running",
    )
    assert park.code == "lifecycle_conflict"
    assert delete.code == "delete_requires_cleanup"


def test_a_start_while_a_stop_finishes_is_still_stopping_or_accepted(fleet):
    id = fleet.ready()
    fleet.accept(id, "stop")

    answer = fleet.act(id, "start")

    assert answer.status == 202 or answer.code == "still_stopping"
    fleet.accept(id, "start")
    fleet.wait_ready(id)


def test_a_second_stop_is_never_joined(fleet):
    id = fleet.ready()
    fleet.accept(id, "stop")

    answer = fleet.act(id, "stop")

    assert answer.code == "lifecycle_conflict" or answer.json()["joined"] is False


def test_a_stop_ends_a_start_that_is_under_way(fleet, simulated):
    fleet.checkpoint("slow")
    id = fleet.create(model="slow")
    start = fleet.accept(id, "start")

    fleet.accept(id, "stop")

    fleet.wait_state(id, "stopped")
    row = fleet.wait_operation(start["operation_id"], "failed", "cancelled")
    assert row["has_error"] is (row["state"] == "failed" or "error_code" in row)


def test_a_launch_that_fails_says_why(fleet, simulated):
    fleet.checkpoint("dies")
    id = fleet.create(model="dies")
    receipt = fleet.accept(id, "start")

    row = fleet.wait_state(id, "failed")

    instance = row["instances"][0]
    assert instance["observed_state"] == "failed"
    assert instance["last_error"].startswith("launch_failed: launch failed: ")
    latest = row["latest_operation"]
    assert (latest["id"], latest["state"]) == (receipt["operation_id"], "failed")
    assert latest["error_code"] == "launch_failed"
    assert latest["reason"].startswith("launch failed: ")
    assert latest["hint"]
    assert fleet.operation(receipt["operation_id"])["error_code"] == "launch_failed"


def test_a_start_after_a_failed_launch_is_a_new_one(fleet, simulated):
    fleet.checkpoint("dies-once")
    id = fleet.create(model="dies-once")
    fleet.accept(id, "start")
    fleet.wait_state(id, "failed")

    fleet.accept(id, "start")

    row = fleet.wait_ready(id)
    assert "last_error" not in row["instances"][0]


def test_a_failed_deployment_can_be_stopped_and_deleted(fleet, simulated):
    fleet.checkpoint("dies")
    id = fleet.create(model="dies")
    fleet.accept(id, "start")
    fleet.wait_state(id, "failed")

    fleet.accept(id, "stop")
    fleet.wait_state(id, "stopped")
    fleet.accept_delete(id)

    assert fleet.find(id) is None


def test_a_park_that_the_engine_refuses_leaves_it_ready(fleet, simulated):
    fleet.checkpoint("no-park")
    id = fleet.ready(model="no-park")
    receipt = fleet.accept(id, "park")

    row = fleet.wait_operation(receipt["operation_id"], "succeeded", "failed", "cancelled")

    assert (row["state"], row["has_error"]) == ("failed", True)
    assert row["error_code"] in ("park_refused", "park_parked_capacity")
    assert fleet.row(id)["observed_state"] == "ready"
    assert fleet.chat(fleet.row(id)["name"]).status == 200


def test_an_evicting_start_with_room_has_no_victims(fleet):
    id = fleet.create()

    receipt = fleet.accept(id, "start", evict=True)

    assert receipt.keys() == {
        "api_version",
        "deployment_id",
        "joined",
        "operation_id",
        "revision",
        "switch_id",
        "victims",
    }
    assert receipt["victims"] == []
    fleet.wait_ready(id)


def test_evict_false_is_a_plain_start(fleet):
    id = fleet.create()

    receipt = fleet.accept(id, "start", evict=False)

    assert "victims" not in receipt
    fleet.wait_ready(id)


def test_a_full_machine_blocks_a_start_and_evicting_makes_room(fleet, simulated):
    """Four cards, four large models; the fifth gets in at the cost of one of them."""
    fleet.checkpoint("large", weights_mib=40 * 1024)
    first = [fleet.ready(model="large") for _ in range(4)]
    id = fleet.create(model="large")
    blocked = fleet.act(id, "start")
    body, key = fleet.action(id, "start", evict=True), fresh_key()
    evicting = fleet.send_action(id, body, key=key)
    row = fleet.wait_ready(id)
    again = fleet.send_action(id, body, key=key)
    rows = {row["id"]: row for row in fleet.snapshot()["deployments"]}

    assert (blocked.status, blocked.code) == (503, "capacity_blocked")
    assert "evict" in blocked.message
    receipt = evicting.json()
    assert len(receipt["victims"]) == 1
    victim = receipt["victims"][0].partition("/")[0]
    assert victim in first
    assert rows[victim]["observed_state"] in ("parked", "stopped")
    assert rows[victim]["instances"][0]["operator_stopped"] is False
    assert row["observed_state"] == "ready"
    assert again.json() == {**receipt, "victims": [], "switch_id": None}
