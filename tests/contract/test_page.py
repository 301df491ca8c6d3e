"""What the page of the controller says beyond single routes: its tables, and inference."""

from __future__ import annotations

import pytest

from tests.contract.fleet import fresh_key, fresh_name
from tests.contract.speaking import ERRORS

PAGE = {
    "queue_full": (429, True),
    "deadline_exceeded": (504, True),
    "checkpoint_digest_pending": (503, True),
    "model_source_pending": (503, True),
    "still_stopping": (503, True),
    "capacity_blocked": (503, True),
    "switch_failed": (503, True),
    "host_ineligible": (503, True),
    "reconciliation_required": (503, True),
    "invalid_request": (400, False),
    "invalid_config": (400, False),
    "revision_conflict": (409, False),
    "idempotency_conflict": (409, False),
    "route_conflict": (409, False),
    "runtime_retained": (409, False),
    "lifecycle_conflict": (409, False),
    "delete_requires_cleanup": (409, False),
    "profile_not_published": (409, False),
    "checkpoint_mismatch": (409, False),
    "checkpoint_unusable": (409, False),
    "model_source_failed": (409, False),
    "startup_requires_empty_host": (409, False),
    "not_found": (404, False),
    "unauthenticated": (401, False),
    "host_policy_denied": (403, False),
    "unsupported_capability": (503, False),
    "internal": (500, False),
}


@pytest.mark.parametrize("code", PAGE)
def test_the_table_of_errors_is_the_one_held_against_every_answer(code):
    assert ERRORS[code] == PAGE[code]


def test_the_loop_of_the_page(fleet):
    """Snapshot, create, start, request, stop, wait, delete; every retry under its key."""
    name = fresh_name()
    receipt = fleet.send_create(fleet.document(name=name)).json()
    id = receipt["deployment_id"]
    start = fleet.accept(id, "start", key=f"start-{name}")
    row = fleet.wait_ready(id)
    answer = fleet.chat(name, X_Request_Id=f"check-{name}")
    fleet.accept(id, "stop", key=f"stop-{name}")
    fleet.wait_state(id, "stopped")
    fleet.accept_delete(id)

    assert (receipt["revision"], receipt["checkpoint_digest"]) == ("1", "pending")
    assert row["latest_operation"]["id"] == start["operation_id"]
    assert answer.status == 200
    assert fleet.find(id) is None


def test_request_ids_of_the_inference_endpoint(fleet):
    answer = fleet.infer("GET", "/v1/models", X_Request_Id="mine-1")

    assert answer.values("x-request-id") == ["mine-1"]
    (own,) = answer.values("x-capyctl-request-id")
    assert len(own) == 26


@pytest.mark.parametrize("id", ["!", "x" * 128, "a-b_c.d:e/f", "~"])
def test_a_well_formed_request_id_comes_back(fleet, id):
    assert fleet.infer("GET", "/v1/models", X_Request_Id=id).values("x-request-id") == [id]


@pytest.mark.parametrize("id", ["a b", "x" * 129, "clé"])
def test_a_malformed_request_id_does_not_come_back(fleet, id):
    answer = fleet.infer("GET", "/v1/models", X_Request_Id=id)

    assert answer.values("x-request-id") == []
    assert len(answer.values("x-capyctl-request-id")) == 1


def test_request_ids_are_on_refusals_too(fleet):
    answer = fleet.chat("nobody", X_Request_Id="mine-2")

    assert answer.status == 404
    assert answer.values("x-request-id") == ["mine-2"]


def test_a_route_is_listed_before_it_runs(fleet):
    names = [fresh_name(), fresh_name()]
    fleet.create(routes=names)

    listed = {row["id"] for row in fleet.infer("GET", "/v1/models").json()["data"]}

    assert set(names) <= listed


def test_a_request_starts_what_was_never_started(fleet):
    id = fleet.create()

    assert fleet.chat(fleet.row(id)["name"]).status == 200
    assert fleet.row(id)["observed_state"] == "ready"


def test_a_request_wakes_what_is_parked(fleet):
    id = fleet.ready()
    fleet.accept(id, "park")
    fleet.wait_state(id, "parked")

    assert fleet.chat(fleet.row(id)["name"]).status == 200
    assert fleet.row(id)["observed_state"] == "ready"


def test_a_request_for_what_an_operator_stopped_is_409_until_a_start(fleet):
    id = fleet.create()
    name = fleet.row(id)["name"]
    fleet.accept(id, "stop")

    refused = fleet.chat(name)
    fleet.accept(id, "start")
    fleet.wait_ready(id)

    assert (refused.status, refused.json()["code"]) == (409, "deployment_stopped")
    assert fleet.chat(name).status == 200


def test_a_request_for_what_only_a_controller_starts_is_409(fleet):
    id = fleet.create(lifecycle={"activation": "explicit"})
    name = fleet.row(id)["name"]

    refused = fleet.chat(name)
    fleet.accept(id, "start")
    fleet.wait_ready(id)
    served = fleet.chat(name)
    fleet.accept(id, "park")
    fleet.wait_state(id, "parked")
    parked = fleet.chat(name)

    assert (refused.status, refused.json()["code"]) == (409, "deployment_inactive")
    assert served.status == 200
    assert (parked.status, parked.json()["code"]) == (409, "deployment_inactive")
    assert fleet.row(id)["observed_state"] == "parked"


def test_a_start_joins_what_a_request_set_off(fleet, simulated):
    import threading

    fleet.checkpoint("slow")
    id = fleet.create(model="slow")
    name = fleet.row(id)["name"]
    answers = []
    request = threading.Thread(target=lambda: answers.append(fleet.chat(name)))
    request.start()
    fleet.wait(id, lambda row: row["observed_state"] in ("queued", "starting"), what="starting")

    receipt = fleet.act(id, "start").json()
    request.join(30)

    assert receipt["joined"] is True
    assert receipt["operation_id"] == fleet.row(id)["latest_operation"]["id"]
    assert answers[0].status == 200


def test_a_lost_answer_is_found_under_its_key(fleet):
    """The client hangs up once its change is sent, and asks again."""
    document, key = fleet.document(), fresh_key()
    body = {"config": document, "activate": False}
    import json

    data = json.dumps(body).encode()
    request = fleet.target.request(
        "POST",
        "/management/v1/deployments",
        headers=[("Idempotency-Key", key), ("Content-Type", "application/json")],
        body=data,
    )
    with fleet.target.connect() as connection:
        connection.send(request)

    answer = fleet.send_create(document, key=key)

    assert answer.status == 202
    rows = [row for row in fleet.snapshot()["deployments"] if row["name"] == document["name"]]
    assert [row["id"] for row in rows] == [answer.json()["deployment_id"]]


def test_a_hundred_equal_creates_at_once_are_one(fleet):
    """However many send it, one deployment is made, and all who are let in get one answer."""
    from concurrent.futures import ThreadPoolExecutor

    document, key = fleet.document(), fresh_key()
    with ThreadPoolExecutor(10) as pool:
        answers = list(pool.map(lambda _: fleet.send_create(document, key=key), range(100)))

    accepted = {answer.body for answer in answers if answer.status == 202}
    assert len(accepted) == 1
    assert {answer.code for answer in answers} <= {None, "queue_full"}
