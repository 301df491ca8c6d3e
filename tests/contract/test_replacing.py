"""Replaces: a new revision, who restarts, and what stays as it was."""

from __future__ import annotations

import re

from tests.contract.fleet import fresh_name

ULID = "[0-7][0-9A-HJKMNP-TV-Z]{25}"


def test_a_replace_is_answered_byte_for_byte(fleet):
    document = fleet.document()
    id = fleet.create(document)

    answer = fleet.send_replace(id, {**document, "residency": "restart_only"}, revision=1)

    assert answer.status == 202
    pattern = (
        r'\{"api_version":"1","checkpoint_digest":"(pending|recorded)",'
        rf'"deployment_id":"{id}","joined":false,"operation_id":"{ULID}","revision":"2"\}}'
    )
    assert re.fullmatch(pattern.encode(), answer.body)


def test_a_replace_goes_up_by_one_and_has_succeeded(fleet):
    document = fleet.document()
    id = fleet.create(document)
    for revision in (1, 2, 3):
        receipt = fleet.send_replace(id, document, revision=revision).json()

    assert receipt["revision"] == "4"
    assert fleet.row(id)["revision"] == "4"
    operation = fleet.operation(receipt["operation_id"])
    assert (operation["action"], operation["state"]) == (
        "managed_configuration_replace",
        "succeeded",
    )


def test_a_stale_revision_is_409_and_changes_nothing(fleet):
    document = fleet.document()
    id = fleet.create(document)
    before = fleet.row(id)

    answer = fleet.send_replace(id, {**document, "instances": 3}, revision=2)

    assert (answer.status, answer.code) == (409, "revision_conflict")
    assert fleet.row(id) == before


def test_a_bad_document_is_400_and_changes_nothing(fleet):
    document = fleet.document()
    id = fleet.create(document)
    before = fleet.row(id)

    answer = fleet.send_replace(id, {**document, "colour": "red"}, revision=1)

    assert answer.json()["error"]["details"] == {"path": "colour"}
    assert fleet.row(id) == before


def test_a_name_of_another_is_409_and_changes_nothing(fleet):
    document = fleet.document()
    id, other = fleet.create(document), fleet.create()
    before = fleet.row(id)

    answer = fleet.send_replace(id, {**document, "name": fleet.row(other)["name"]}, revision=1)

    assert (answer.status, answer.code) == (409, "route_conflict")
    assert fleet.row(id) == before


def test_a_new_name_frees_the_old_one(fleet):
    document = fleet.document()
    id = fleet.create(document)
    fleet.send_replace(id, {**document, "name": fresh_name()}, revision=1)

    assert fleet.send_create(document).status == 202


def test_routes_follow_a_replace(fleet):
    document = fleet.document()
    id = fleet.create(document)
    routes = sorted(fresh_name() for _ in range(3))

    fleet.send_replace(id, {**document, "routes": routes}, revision=1)

    found = [row["route"] for row in fleet.snapshot()["routes"] if row["deployment_id"] == id]
    assert found == routes


def test_a_deleted_deployment_cannot_be_replaced(fleet):
    document = fleet.document()
    id = fleet.create(document)
    fleet.accept_delete(id)

    assert fleet.send_replace(id, document, revision=1).code == "not_found"


def test_an_action_on_the_old_revision_is_409_and_on_the_new_one_accepted(fleet):
    document = fleet.document()
    id = fleet.create(document)
    body = fleet.action(id, "stop")
    fleet.send_replace(id, document, revision=1)

    stale = fleet.send_action(id, body)

    assert stale.code == "revision_conflict"
    assert fleet.act(id, "stop").json()["revision"] == "2"


def test_what_is_stopped_stays_stopped(fleet):
    document = fleet.document()
    id = fleet.create(document)
    fleet.accept(id, "stop")

    fleet.send_replace(id, {**document, "residency": "restart_only"}, revision=1)

    row = fleet.wait(id, lambda row: row["checkpoint_digest"]["state"] == "recorded", what="digest")
    assert (row["observed_state"], row["desired_state"]) == ("stopped", "stopped")
    assert fleet.chat(row["name"]).status == 409


def test_what_runs_is_restarted_on_the_new_revision(fleet):
    document = fleet.document()
    id = fleet.ready(document)
    before = fleet.row(id)["instances"][0]

    fleet.send_replace(id, {**document, "engine_config": {"context_length": 4096}}, revision=1)

    def restarted(row):
        return row["ready_instances"] == 1 and row["instances"][0]["revision"] == "2"

    row = fleet.wait(id, restarted, what="ready on revision 2")
    assert before["revision"] == "1"
    assert row["desired_state"] == "ready"


def test_a_change_of_the_count_alone_leaves_what_runs(fleet):
    document = fleet.document()
    id = fleet.ready(document)
    before = fleet.row(id)["instances"][0]

    fleet.send_replace(id, {**document, "instances": 2}, revision=1)

    row = fleet.row(id)
    assert row["desired_instances"] == 2
    assert row["instances"][0]["generation"] == before["generation"]
    assert row["instances"][0]["observed_state"] == "ready"
    assert row["conditions"] == ["degraded"]


def test_fewer_instances_retire_the_last(fleet):
    document = fleet.document(instances=2)
    id = fleet.ready(document)

    fleet.send_replace(id, {**document, "instances": 1}, revision=1)

    row = fleet.wait(id, lambda row: len(row["instances"]) == 1, what="one is left")
    assert row["instances"][0]["observed_state"] == "ready"
    assert fleet.act(id, "stop", index=1).code == "not_found"
