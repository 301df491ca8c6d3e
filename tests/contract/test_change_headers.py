"""What is asked of a change before its body: no query, one key, one type, no encoding."""

from __future__ import annotations

import pytest

from tests.contract.fleet import fresh_key
from tests.contract.rows import CHANGES

JSON = ("Content-Type", "application/json")
KEY = ("Idempotency-Key", "a-key")
BAD = {
    "no-key": [JSON],
    "two-keys": [JSON, KEY, KEY],
    "two-different-keys": [JSON, KEY, ("Idempotency-Key", "another")],
    "empty-key": [JSON, ("Idempotency-Key", "")],
    "blank-key": [JSON, ("Idempotency-Key", "    ")],
    "long-key": [JSON, ("Idempotency-Key", "k" * 257)],
    "tab-in-key": [JSON, ("Idempotency-Key", "a\tb")],
    "delete-in-key": [JSON, ("Idempotency-Key", "a\x7fb")],
    "no-type": [KEY],
    "two-types": [KEY, JSON, JSON],
    "text-type": [KEY, ("Content-Type", "text/plain")],
    "form-type": [KEY, ("Content-Type", "application/x-www-form-urlencoded")],
    "json-like-type": [KEY, ("Content-Type", "application/problem+json")],
    "other-charset": [KEY, ("Content-Type", "application/json; charset=latin-1")],
    "other-parameter": [KEY, ("Content-Type", "application/json; v=1")],
    "two-types-joined": [KEY, ("Content-Type", "application/json, application/json")],
    "empty-type": [KEY, ("Content-Type", "")],
    "gzip": [KEY, JSON, ("Content-Encoding", "gzip")],
    "identity": [KEY, JSON, ("Content-Encoding", "identity")],
}
TYPES = [
    "application/json",
    "Application/JSON",
    "application/json; charset=utf-8",
    "APPLICATION/JSON; CHARSET=UTF-8",
]


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
@pytest.mark.parametrize("headers", BAD.values(), ids=BAD)
def test_these_headers_are_400(target, change, headers):
    method, path, body = change

    answer = target.change(method, path, body, key=None, content_type=None, more=headers)

    assert (answer.status, answer.code) == (400, "invalid_request")


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
@pytest.mark.parametrize("query", ["?x=1", "?dry_run=true"])
def test_a_change_takes_no_query(target, change, query):
    method, path, _ = change

    answer = target.change(method, path + query, b"{}")

    assert (answer.status, answer.code) == (400, "invalid_request")


@pytest.mark.parametrize("content_type", TYPES)
def test_these_types_are_json(fleet, content_type):
    body = {"config": fleet.document(), "activate": False}

    answer = fleet.target.change(
        "POST", "/deployments", body, key=fresh_key(), content_type=content_type
    )

    assert answer.status == 202
    fleet.made.append(answer.json()["deployment_id"])


@pytest.mark.parametrize("key", ["k", "k" * 256, "a key, with: spaces", "clé \xe9", '"quoted"'])
def test_these_keys_are_keys(fleet, key):
    mine = (f"{fresh_key()} {key}")[-256:]

    first = fleet.send_create(
        fleet.document(name=f"of {mine[:80].encode('ascii', 'ignore')!r}"), key=mine
    )

    assert first.status == 202


def test_a_key_is_told_from_one_in_another_case(fleet):
    key = fresh_key()
    first = fleet.send_create(fleet.document(), key=key)

    second = fleet.send_create(fleet.document(), key=key.upper())

    assert first.json()["deployment_id"] != second.json()["deployment_id"]
