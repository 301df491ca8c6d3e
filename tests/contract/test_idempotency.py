"""Idempotency keys: one change each, the first answer again, conflicts, and what is no body."""

from __future__ import annotations

import json

import pytest

from tests.contract.fleet import fresh_key, fresh_name


def test_a_create_again_is_the_first_answer(fleet):
    document, key = fleet.document(), fresh_key()
    first = fleet.send_create(document, key=key)

    again = fleet.send_create(document, key=key)

    assert (again.status, again.body) == (first.status, first.body)


def test_a_create_again_makes_nothing(fleet):
    document, key = fleet.document(), fresh_key()
    fleet.send_create(document, key=key)
    before = fleet.snapshot()["operations"]

    fleet.send_create(document, key=key)

    assert fleet.snapshot()["operations"] == before


def test_order_and_spacing_of_a_body_do_not_matter(fleet):
    name, key = fresh_name(), fresh_key()
    first = fleet.send_create(fleet.document(name=name), key=key)
    other = json.dumps(
        {"activate": False, "config": dict(reversed(fleet.document(name=name).items()))}, indent=3
    )

    again = fleet.target.change("POST", "/deployments", f"\n {other}\t".encode(), key=key)

    assert again.body == first.body


def test_escapes_in_a_body_do_not_matter(fleet):
    name, key = fresh_name("clé"), fresh_key()
    document = fleet.document(name=name)
    first = fleet.send_create(document, key=key)
    raw = json.dumps({"config": document, "activate": False}, ensure_ascii=False)

    again = fleet.target.change("POST", "/deployments", raw.encode(), key=key)

    assert again.body == first.body


def test_an_absent_evict_is_false(stopped):
    fleet, id = stopped
    body, key = fleet.action(id, "stop"), fresh_key()
    first = fleet.send_action(id, body, key=key)

    assert fleet.send_action(id, {**body, "evict": False}, key=key).body == first.body


@pytest.mark.parametrize("field", ["name", "model", "instances"])
def test_the_key_of_a_create_with_another_document_is_409(fleet, field):
    document, key = fleet.document(), fresh_key()
    fleet.send_create(document, key=key)
    other = {"name": fresh_name(), "model": "other", "instances": 2}

    answer = fleet.send_create({**document, field: other[field]}, key=key)

    assert (answer.status, answer.code) == (409, "idempotency_conflict")


def test_a_conflict_keeps_the_first_answer(fleet):
    document, key = fleet.document(), fresh_key()
    first = fleet.send_create(document, key=key)
    fleet.send_create(fleet.document(), key=key)

    assert fleet.send_create(document, key=key).body == first.body


def test_another_key_with_the_same_name_is_a_route_conflict(fleet):
    document = fleet.document()
    fleet.send_create(document)

    assert fleet.send_create(document).code == "route_conflict"


def test_an_action_again_is_the_first_answer(stopped):
    fleet, id = stopped
    body, key = fleet.action(id, "stop"), fresh_key()
    first = fleet.send_action(id, body, key=key)

    assert fleet.send_action(id, body, key=key).body == first.body


@pytest.mark.parametrize("field", ["action", "expected_revision", "deadline_ms"])
def test_the_key_of_an_action_with_another_body_is_409(stopped, field):
    fleet, id = stopped
    body, key = fleet.action(id, "stop"), fresh_key()
    fleet.send_action(id, body, key=key)
    other = {"action": "delete", "expected_revision": 2, "deadline_ms": body["deadline_ms"] + 1}

    answer = fleet.send_action(id, {**body, field: other[field]}, key=key)

    assert answer.code == "idempotency_conflict"


@pytest.mark.parametrize("action", ["start", "park", "preinitialize", "delete"])
def test_all_actions_of_a_deployment_share_its_keys(stopped, action):
    fleet, id = stopped
    body, key = fleet.action(id, "stop"), fresh_key()
    fleet.send_action(id, body, key=key)

    assert fleet.send_action(id, {**body, "action": action}, key=key).code == "idempotency_conflict"


def test_each_deployment_has_its_own_keys(fleet):
    first, second, key = fleet.create(), fleet.create(), fresh_key()
    one = fleet.act(first, "stop", key=key)

    other = fleet.act(second, "stop", key=key)

    assert (one.status, other.status) == (202, 202)
    assert other.json()["deployment_id"] == second


def test_each_instance_has_its_own_keys(fleet):
    id, key = fleet.create(instances=2), fresh_key()
    body = fleet.action(id, "stop")

    answers = [
        fleet.send_action(id, body, key=key),
        fleet.send_action(id, body, key=key, index=0),
        fleet.send_action(id, body, key=key, index=1),
    ]

    assert [answer.status for answer in answers] == [202] * 3
    assert [answer.json().get("instance") for answer in answers] == [None, 0, 1]


def test_creates_replaces_and_actions_do_not_share_keys(fleet):
    document, key = fleet.document(), fresh_key()
    id = fleet.send_create(document, key=key).json()["deployment_id"]

    replaced = fleet.send_replace(id, document, revision=1, key=key)
    acted = fleet.act(id, "stop", key=key)

    assert (replaced.status, acted.status) == (202, 202)


def test_a_replace_again_is_the_first_answer(fleet):
    document, key = fleet.document(), fresh_key()
    id = fleet.create(document)
    first = fleet.send_replace(id, document, revision=1, key=key)

    again = fleet.send_replace(id, document, revision=1, key=key)

    assert again.body == first.body
    assert fleet.row(id)["revision"] == "2"


def test_the_key_of_a_replace_with_another_body_is_409(fleet):
    document, key = fleet.document(), fresh_key()
    id = fleet.create(document)
    fleet.send_replace(id, document, revision=1, key=key)

    answers = [
        fleet.send_replace(id, document, revision=2, key=key),
        fleet.send_replace(id, {**document, "instances": 2}, revision=1, key=key),
    ]

    assert [answer.code for answer in answers] == ["idempotency_conflict"] * 2


def test_a_replay_outlives_the_deployment(fleet):
    document, key = fleet.document(), fresh_key()
    first = fleet.send_create(document, key=key)
    fleet.accept_delete(first.json()["deployment_id"])

    assert fleet.send_create(document, key=key).body == first.body


def test_a_replayed_delete_is_the_first_answer(fleet):
    id = fleet.create()
    body, key = fleet.action(id, "delete"), fresh_key()
    first = fleet.send_action(id, body, key=key)

    again = fleet.send_action(id, body, key=key)

    assert (again.status, again.body) == (202, first.body)


def test_a_replay_after_a_replace_is_the_first_answer(fleet):
    document = fleet.document()
    id = fleet.create(document)
    body, key = fleet.action(id, "stop"), fresh_key()
    first = fleet.send_action(id, body, key=key)
    fleet.send_replace(id, document, revision=1)

    assert fleet.send_action(id, body, key=key).body == first.body


def test_a_replayed_start_does_not_lift_a_later_stop(fleet):
    id = fleet.ready()
    body, key = fleet.action(id, "start"), fresh_key()
    fleet.accept(id, "stop")
    fleet.wait_state(id, "stopped")
    first = fleet.send_action(id, body, key=key)
    fleet.wait_ready(id)
    fleet.accept(id, "stop")
    fleet.wait_state(id, "stopped")

    again = fleet.send_action(id, body, key=key)

    assert again.body == first.body
    assert fleet.row(id)["observed_state"] == "stopped"
    assert fleet.chat(fleet.row(id)["name"]).status == 409


def test_a_replayed_instance_stop_does_not_put_its_mark_back(fleet):
    id = fleet.create(instances=2)
    body, key = fleet.action(id, "stop"), fresh_key()
    first = fleet.send_action(id, body, key=key, index=1)
    fleet.accept(id, "start")
    fleet.wait_ready(id)

    again = fleet.send_action(id, body, key=key, index=1)

    assert again.body == first.body
    assert [one["operator_stopped"] for one in fleet.row(id)["instances"]] == [False, False]


def test_a_refused_change_leaves_its_key_to_any_other(stopped):
    fleet, id = stopped
    body, key = fleet.action(id, "stop"), fresh_key()
    refused = fleet.send_action(id, {**body, "expected_revision": 7}, key=key)

    accepted = fleet.send_action(id, body, key=key)

    assert (refused.code, accepted.status) == ("revision_conflict", 202)


def test_a_start_can_be_sent_again_under_its_key_once_its_reason_has_passed(fleet):
    fleet.checkpoint("freshly-made", weights_mib=8192)
    id = fleet.create_unmeasured(fleet.document(model="freshly-made"))
    body, key = fleet.action(id, "start"), fresh_key()
    codes = set()
    while (answer := fleet.send_action(id, body, key=key)).status != 202:
        codes.add(answer.code)
        assert answer.json()["error"]["retryable"]

    assert codes <= {"checkpoint_digest_pending", "queue_full"}
    assert answer.json()["deployment_id"] == id
