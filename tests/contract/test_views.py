"""What else can be read: the effective configuration, the engine log and the load."""

from __future__ import annotations

import json
from urllib.parse import quote

import pytest

from tests.contract.fleet import fresh_name
from tests.contract.rows import ULID

SECRETS = {
    "accept_extra_args": True,
    "extra_args": ["--x-token", "sesame-1", "--other-api-key=sesame-2", "--seed=64"],
}


@pytest.fixture(scope="module")
def ready(stopped):
    """A deployment of two ready instances, with its fleet."""
    fleet, _ = stopped
    return fleet, fleet.ready(instances=2)


# -- effective-config ----------------------------------------------------------------------------


def effective(fleet, who):
    return fleet.target.ask("GET", f"/deployments/{who}/effective-config")


def test_by_id_and_by_name_it_is_the_same(ready):
    fleet, id = ready

    by_id, by_name = effective(fleet, id), effective(fleet, fleet.row(id)["name"])

    assert by_id.status == 200
    assert by_name.body == by_id.body


def test_an_escaped_name_is_a_name(fleet):
    name = fresh_name("a model / with ünïcode & more")
    id = fleet.create(name=name)

    assert effective(fleet, quote(name, safe="")).json()["deployment_id"] == id


def test_a_plus_in_a_name_is_a_plus(fleet):
    name = fresh_name("a+b")
    id = fleet.create(name=name)

    assert effective(fleet, name).json()["deployment_id"] == id


def test_it_has_these_fields_and_its_revision_is_a_number(ready):
    fleet, id = ready

    found = effective(fleet, id).json()

    assert found.keys() == {"api_version", "deployment_id", "revision", "effective", "hosts"}
    assert (found["api_version"], found["deployment_id"], found["revision"]) == ("1", id, 1)
    assert isinstance(found["revision"], int)
    for host in found["hosts"]:
        assert host.keys() == {"host_id", "outcome", "effective", "diagnostic"}


def test_the_revision_follows_a_replace(fleet):
    document = fleet.document()
    id = fleet.create(document)
    fleet.send_replace(id, {**document, "instances": 3}, revision=1)

    found = effective(fleet, id).json()

    assert (found["revision"], found["effective"]["instances"]) == (2, 3)


@pytest.mark.parametrize("who", [ULID, "nobody", "a%20b", "%C3%BC", "nobody%2Factions"])
def test_who_is_unknown_is_404(target, who):
    answer = target.ask("GET", f"/deployments/{who}/effective-config")

    assert (answer.status, answer.code) == (404, "not_found")


@pytest.mark.parametrize(
    "who", ["%20", "%20%20", "%00", "a%0Ab", "%7F", "%", "%2", "%FF", "x" * 257]
)
def test_what_is_no_name_is_400(target, who):
    answer = target.ask("GET", f"/deployments/{who}/effective-config")

    assert (answer.status, answer.code) == (400, "invalid_request")


def test_secrets_are_redacted(fleet):
    answer = fleet.send_create(fleet.document(engine_config=SECRETS))
    if answer.status != 202:
        pytest.skip(f"these arguments are refused here: {answer.message}")
    id = answer.json()["deployment_id"]

    body = effective(fleet, id).body

    assert b"sesame" not in body
    assert b"[redacted]" in body
    assert b"--other-api-key=[redacted]" in body
    assert b"--seed=64" in body


def test_values_of_env_are_redacted_and_their_names_are_not(fleet):
    answer = fleet.send_create(fleet.document(engine_config={"env": {"RUST_LOG": "sesame"}}))
    if answer.status != 202:
        pytest.skip(f"this variable is refused here: {answer.message}")

    found = effective(fleet, answer.json()["deployment_id"])

    env = found.json()["effective"]["engine_config"]["env"]
    assert env == {"RUST_LOG": "[redacted]"}
    assert b"sesame" not in found.body


# -- engine-log ----------------------------------------------------------------------------------


def log(fleet, id, query=""):
    return fleet.target.ask("GET", f"/deployments/{id}/engine-log{query}")


def test_the_log_of_an_instance(ready):
    fleet, id = ready

    found = log(fleet, id, "?instance=1").json()

    assert found.keys() == {
        "api_version",
        "deployment_id",
        "instance",
        "host_id",
        "incarnation",
        "kib",
        "truncated",
        "text",
        "read_at_ms",
    }
    assert (found["deployment_id"], found["instance"], found["kib"]) == (id, 1, 64)
    assert isinstance(found["read_at_ms"], int)
    assert found["truncated"] is False
    assert found["text"].endswith("\n")


@pytest.mark.parametrize("kib", [1, 64, 256])
def test_its_length_can_be_chosen(ready, kib):
    fleet, id = ready

    found = log(fleet, id, f"?instance=0&kib={kib}").json()

    assert found["kib"] == kib
    assert len(found["text"].encode()) <= kib * 1024


@pytest.mark.parametrize(
    "query",
    [
        "?kib=0&instance=0",
        "?kib=257&instance=0",
        "?kib=-1&instance=0",
        "?kib=1.5&instance=0",
        "?kib=x&instance=0",
        "?kib=&instance=0",
        "?kib=1&kib=1&instance=0",
        "?instance=0&instance=0",
        "?instance=x",
        "?instance=-1",
        "?instance=",
        "?instance=%2B0",
        "?instance=0&lines=5",
        "?instance",
    ],
)
def test_a_bad_query_of_the_log_is_400(ready, query):
    fleet, id = ready

    assert log(fleet, id, query).code == "invalid_request"


def test_one_of_several_must_be_named(ready):
    fleet, id = ready

    assert log(fleet, id).code == "invalid_request"


@pytest.mark.parametrize("query", ["?instance=2", "?instance=63"])
def test_an_unknown_instance_has_no_log(ready, query):
    fleet, id = ready

    assert log(fleet, id, query).code == "not_found"


def test_what_does_not_run_has_no_log(stopped):
    fleet, id = stopped

    assert log(fleet, id).code == "not_found"


@pytest.mark.parametrize("id", [ULID, "nobody", "a.b-c_d"])
def test_a_deployment_of_nobody_has_no_log(target, id):
    assert target.ask("GET", f"/deployments/{id}/engine-log").code == "not_found"


@pytest.mark.parametrize("id", ["%20", "a%20b", "x" * 129, "%C3%BC"])
def test_what_is_no_id_of_a_log_is_400(target, id):
    assert target.ask("GET", f"/deployments/{id}/engine-log").code == "invalid_request"


# -- metrics/load --------------------------------------------------------------------------------


def test_the_load_of_all_is_numbers(ready):
    fleet, id = ready

    found = fleet.target.ask("GET", "/metrics/load").json()

    assert found.keys() == {"observed_at_ms", "stale_after_ms", "deployments"}
    assert found["stale_after_ms"] == 3000
    row = next(row for row in found["deployments"] if row["deployment_id"] == id)
    assert row.keys() == {"deployment_id", "name", "router", "max_running", "instances"}
    assert row["router"] == {
        "in_flight": 0,
        "in_flight_limit": 32,
        "waiting": 0,
        "waiting_limit": 64,
    }
    assert [one["index"] for one in row["instances"]] == [0, 1]
    for one in row["instances"]:
        assert one.keys() == {
            "index",
            "host_id",
            "generation",
            "observed_state",
            "router_in_flight",
            "max_running",
            "sample",
        }
        assert isinstance(one["generation"], int)
        assert one["observed_state"] == "ready"


def test_the_load_of_what_is_stopped(stopped):
    fleet, id = stopped

    (row,) = fleet.target.ask("GET", f"/metrics/load?deployment={id}").json()["deployments"]

    (one,) = row["instances"]
    assert (one["observed_state"], one["sample"], one["router_in_flight"]) == ("stopped", None, 0)


def test_a_running_engine_is_sampled(ready):
    fleet, id = ready

    def sampled():
        found = fleet.target.ask("GET", f"/metrics/load?deployment={id}").json()
        return [one["sample"] for one in found["deployments"][0]["instances"]]

    fleet.wait(id, lambda _: all(sampled()), what="a sample", within_s=10.0)
    sample = sampled()[0]
    assert sample.keys() == {"sampled_at_ms", "age_ms", "fresh", "ingress_in_flight", "engine"}
    assert sample["engine"].keys() == {"running", "waiting", "kv_usage_ppm"}


def test_the_load_of_nobody_is_404(target):
    assert target.ask("GET", f"/metrics/load?deployment={ULID}").code == "not_found"


@pytest.mark.parametrize("id", ["nobody", "", ULID.lower(), "%20", f"{ULID}0"])
def test_a_malformed_deployment_of_the_load_is_400(target, id):
    assert target.ask("GET", f"/metrics/load?deployment={id}").code == "invalid_request"


# -- the rest ------------------------------------------------------------------------------------


def test_model_sources_lists_what_is_referenced(target):
    found = target.ask("GET", "/model-sources").json()

    assert found.keys() == {"api_version", "referenced"}
    assert isinstance(found["referenced"], list)


def test_latency_is_json(target):
    assert json.loads(target.ask("GET", "/metrics/latency").body)["api_version"] == "1"


def test_the_api_describes_itself(target):
    found = target.ask("GET", "/openapi.json").json()

    assert found["openapi"].startswith("3.1.")
    assert "/management/v1/deployments/{id}/actions" in found["paths"]
