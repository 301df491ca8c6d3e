"""Which of two faults is told: a request with both is answered for the earlier check."""

from __future__ import annotations

import json

import pytest

from tests.contract.fleet import fresh_key, now_ms
from tests.contract.rows import CONFIG, ULID
from tests.contract.speaking import PREFIX

PATH = f"{PREFIX}/deployments/{ULID}/actions"
FAULTS = (
    "host",
    "token",
    "id",
    "query",
    "key",
    "type",
    "encoding",
    "size",
    "json",
    "shape",
)
"""In the order of the checks; each spoils one thing of a request that is otherwise well formed."""
EXPECTED = {"host": "forbidden", "token": "unauthenticated", "size": "body_too_large"}
PAIRS = [
    (first, second)
    for at, first in enumerate(FAULTS)
    for second in FAULTS[at + 1 :]
    if EXPECTED.get(first) != EXPECTED.get(second)
]


def faulty(target, *faults):
    """An action on nobody's deployment with these faults."""
    id = ULID.lower() if "id" in faults else ULID
    query = "?x=1" if "query" in faults else ""
    headers = [] if "key" in faults else [("Idempotency-Key", "a-key")]
    headers.append(("Content-Type", "text/plain" if "type" in faults else "application/json"))
    if "encoding" in faults:
        headers.append(("Content-Encoding", "gzip"))
    action = {"action": "stop", "expected_revision": 1, "deadline_ms": now_ms() + 60_000}
    if "shape" in faults:
        action["more"] = True
    body = json.dumps(action).encode()
    if "json" in faults:
        body += b"}"
    if "size" in faults:
        body = body.ljust((1 << 20) + 1)
    return target.ask_bare(
        "POST",
        f"{PREFIX}/deployments/{id}/actions{query}",
        headers=headers,
        body=body,
        host="example.com" if "host" in faults else "localhost",
        bearer=None if "token" in faults else "",
    )


def test_without_a_fault_the_deployment_is_looked_for(target):
    assert faulty(target).code == "not_found"


@pytest.mark.parametrize("fault", FAULTS)
def test_one_fault_is_told(target, fault):
    assert faulty(target, fault).code == EXPECTED.get(fault, "invalid_request")


@pytest.mark.parametrize(("first", "second"), PAIRS, ids=[f"{a}-before-{b}" for a, b in PAIRS])
def test_the_earlier_fault_is_told(target, first, second):
    assert faulty(target, first, second).code == EXPECTED.get(first, "invalid_request")


@pytest.mark.parametrize(
    ("first", "second", "word"),
    [
        ("id", "query", "path"),
        ("id", "key", "path"),
        ("query", "key", "query"),
        ("query", "type", "query"),
        ("key", "type", "idempotency-key"),
        ("key", "encoding", "idempotency-key"),
        ("type", "encoding", "content-type"),
        ("type", "json", "content-type"),
        ("encoding", "json", "content-encoding"),
    ],
)
def test_the_message_names_the_earlier_of_two_faults_of_one_code(target, first, second, word):
    message = faulty(target, first, second).message.lower()

    assert word in message


def test_a_replay_comes_before_everything_that_has_moved_on(fleet):
    id = fleet.create()
    body, key = fleet.action(id, "stop"), fresh_key()
    first = fleet.send_action(id, body, key=key)
    fleet.accept_delete(id)

    assert fleet.send_action(id, body, key=key).body == first.body


def test_a_conflict_of_keys_comes_before_not_found(fleet):
    id = fleet.create()
    body, key = fleet.action(id, "stop"), fresh_key()
    fleet.send_action(id, body, key=key)
    fleet.accept_delete(id)

    answer = fleet.send_action(id, {**body, "action": "start"}, key=key)

    assert answer.code == "idempotency_conflict"


def test_a_conflict_of_keys_comes_before_the_revision(stopped):
    fleet, id = stopped
    body, key = fleet.action(id, "stop"), fresh_key()
    fleet.send_action(id, body, key=key)

    answer = fleet.send_action(id, {**body, "expected_revision": 99}, key=key)

    assert answer.code == "idempotency_conflict"


def test_not_found_comes_before_the_revision_and_the_deadline(target):
    body = {"action": "stop", "expected_revision": 99, "deadline_ms": 1}

    assert target.change("POST", f"/deployments/{ULID}/actions", body).code == "not_found"


def test_the_revision_comes_before_the_deadline(stopped):
    fleet, id = stopped
    body = {**fleet.action(id, "stop"), "expected_revision": 99, "deadline_ms": 1}

    assert fleet.send_action(id, body).code == "revision_conflict"


def test_the_deadline_comes_before_the_rules_of_the_action(stopped):
    fleet, id = stopped

    answer = fleet.send_action(id, {**fleet.action(id, "park"), "deadline_ms": 1})

    assert answer.code == "invalid_request"


def test_the_revision_comes_before_the_rules_of_the_action(stopped):
    fleet, id = stopped

    answer = fleet.send_action(id, {**fleet.action(id, "park"), "expected_revision": 2})

    assert answer.code == "revision_conflict"


def test_activate_true_comes_before_the_document(target):
    body = {"config": {"nonsense": True}, "activate": True}

    assert target.change("POST", "/deployments", body).code == "unsupported_capability"


def test_the_document_comes_before_its_name(stopped):
    fleet, id = stopped
    taken = fleet.document(name=fleet.row(id)["name"], nonsense=True)

    assert fleet.send_create(taken).code == "invalid_config"


def test_a_replaced_nobody_is_not_found(fleet):
    document = fleet.document()
    body = {"config": document, "expected_revision": 99}

    assert fleet.target.change("PUT", f"/deployments/{ULID}", body).code == "not_found"


def test_the_revision_of_a_replace_comes_before_its_name(stopped):
    fleet, id = stopped
    other = fleet.create()
    document = fleet.document(name=fleet.row(id)["name"])

    answer = fleet.send_replace(other, document, revision=9)

    assert answer.code == "revision_conflict"


def test_nothing_is_looked_up_for_a_config_without_its_profile(target):
    body = {"config": {**CONFIG, "engine": "nobody"}, "activate": False}

    assert target.change("POST", "/deployments", body).code == "profile_not_published"
