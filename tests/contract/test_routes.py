"""Which paths and methods there are, and what holds for every answer."""

from __future__ import annotations

import pytest

from tests.contract.rows import CHANGES, READS, ULID
from tests.contract.speaking import PREFIX

METHODS = ("GET", "HEAD", "POST", "PUT", "DELETE", "PATCH", "OPTIONS")
TAKEN = {
    "/snapshot": "GET",
    "/events": "GET",
    "/deployments": "POST",
    f"/deployments/{ULID}": "PUT",
    f"/deployments/{ULID}/actions": "POST",
    f"/deployments/{ULID}/instances/0/actions": "POST",
    f"/deployments/{ULID}/effective-config": "GET",
    f"/deployments/{ULID}/engine-log": "GET",
    "/metrics/load": "GET",
    "/metrics/latency": "GET",
    "/model-sources": "GET",
    "/openapi.json": "GET",
}
WRONG = [(method, path) for path, taken in TAKEN.items() for method in METHODS if method != taken]
UNKNOWN = [
    "/",
    "/v1/models",
    "/v1/chat/completions",
    "/management",
    "/management/v1",
    "/management/v1/",
    "/management/v2/snapshot",
    "/Management/v1/snapshot",
    "/management/v1/Snapshot",
    "/management/v1/snapshot/",
    "/management/v1//snapshot",
    "/management/v1/snapshot/x",
    "/management/v1/%73napshot",
    "/management/v1/snapshot%2F",
    "/management/v1/./snapshot",
    "/management/v1/../v1/snapshot",
    "/management/v1/deployments/",
    f"/management/v1/deployments/{ULID}/",
    f"/management/v1/deployments/{ULID}/actions/",
    f"/management/v1/deployments/{ULID}/start",
    f"/management/v1/deployments/{ULID}/instances",
    f"/management/v1/deployments/{ULID}/instances/0",
    "/management/v1/deployments//actions",
    "/management/v1/metrics",
    "/management/v1/metrics/",
    "/management/v1/health",
    "//management/v1/snapshot",
    "/favicon.ico",
]


@pytest.mark.parametrize(("method", "path"), WRONG, ids=[f"{m}-{p}" for m, p in WRONG])
def test_a_known_path_with_a_wrong_method_is_405(target, method, path):
    answer = target.ask(method, path)

    assert answer.status == 405
    if method != "HEAD":
        assert answer.code == "method_not_allowed"


@pytest.mark.parametrize("path", UNKNOWN)
def test_an_unknown_path_is_404(target, path):
    answer = target.ask_bare("GET", path)

    assert (answer.status, answer.code) == (404, "not_found")


@pytest.mark.parametrize("method", ["HEAD", "POST", "PUT", "DELETE", "PATCH"])
def test_an_unknown_path_is_404_with_any_method(target, method):
    assert target.ask(method, "/nothing").status == 404


@pytest.mark.parametrize(
    "path", ["/snapshot", "/metrics/load", "/metrics/latency", "/model-sources", "/openapi.json"]
)
def test_a_read_is_json_with_its_length(target, path):
    answer = target.ask("GET", path)

    assert answer.status == 200
    assert answer.values("content-length") == [str(len(answer.body))]


@pytest.mark.parametrize(
    "path", ["/snapshot", "/metrics/latency", "/model-sources", "/openapi.json"]
)
@pytest.mark.parametrize("query", ["?x=1", "?x", "?=", "?deployment=1", "?%61=1"])
def test_a_read_without_keys_takes_no_query(target, path, query):
    assert target.ask("GET", path + query).code == "invalid_request"


def test_a_lone_question_mark_is_no_query(target):
    assert target.ask("GET", "/snapshot?").status == 200


@pytest.mark.parametrize(
    "path",
    [
        f"/deployments/{ULID}/effective-config?x=1",
        f"/deployments/{ULID}/engine-log?x=1",
        "/metrics/load?x=1",
        f"/metrics/load?deployment={ULID}&deployment={ULID}",
    ],
)
def test_a_read_with_an_unknown_or_repeated_key_is_400(target, path):
    assert target.ask("GET", path).code == "invalid_request"


def test_a_connection_serves_one_request_after_the_other(target):
    with target.connect() as connection:
        for path in ("/snapshot", "/nothing", "/metrics/load"):
            connection.send(target.request("GET", PREFIX + path))
            target.checked(connection.answer())
        connection.send(target.request("GET", f"{PREFIX}/snapshot"))

        assert target.checked(connection.answer()).status == 200


def test_a_connection_outlives_a_refused_change(target):
    method, path, _ = CHANGES["create"]
    with target.connect() as connection:
        connection.send(target.request(method, PREFIX + path, body=b"{}"))
        refused = target.checked(connection.answer())
        connection.send(target.request("GET", f"{PREFIX}/snapshot"))

        assert refused.code == "invalid_request"
        assert target.checked(connection.answer()).status == 200


def test_two_requests_in_one_packet_are_answered_in_order(target):
    one = target.request("GET", f"{PREFIX}/snapshot")
    with target.connect() as connection:
        connection.send(one + target.request("GET", f"{PREFIX}/nothing"))

        assert connection.answer().status == 200
        assert connection.answer().status == 404


def test_a_body_on_a_read_is_no_matter(target):
    assert target.ask("GET", "/snapshot", body=b"{}").status == 200


@pytest.mark.parametrize("origin", ["null", "http://localhost:7443", "http://example.com"])
def test_no_cors_header_is_ever_sent(target, origin):
    answer = target.ask("GET", "/snapshot", headers=[("Origin", origin)])

    assert [name for name, _ in answer.headers if name.lower().startswith("access-control")] == []


def test_a_preflight_is_not_answered(target):
    headers = [("Origin", "http://example.com"), ("Access-Control-Request-Method", "POST")]

    assert target.ask("OPTIONS", "/deployments", headers=headers).status == 405


def test_request_ids_are_neither_read_nor_returned(target):
    answer = target.ask("GET", "/snapshot", headers=[("X-Request-Id", "mine")])

    assert "x-request-id" not in {name.lower() for name, _ in answer.headers}


@pytest.mark.parametrize("path", READS.values(), ids=READS)
def test_head_on_a_read_is_405(target, path):
    assert target.ask("HEAD", path).status == 405
