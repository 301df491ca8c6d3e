"""Creates: receipts byte for byte, documents that are refused with their path, and names."""

from __future__ import annotations

import re

import pytest

from tests.contract.fleet import fresh_key, fresh_name
from tests.contract.speaking import canonical

ULID = "[0-7][0-9A-HJKMNP-TV-Z]{25}"
RECEIPT = re.compile(
    rf'\{{"api_version":"1","checkpoint_digest":"pending","deployment_id":"({ULID})",'
    rf'"joined":false,"operation_id":"({ULID})","revision":"1"\}}'.encode()
)
SHA = "0123456789abcdef0123456789abcdef01234567"
BAD = {
    "no-name": ("name", {"name": None}),
    "name-number": ("name", {"name": 1}),
    "name-empty": ("name", {"name": ""}),
    "name-with-newline": ("name", {"name": "a\nb"}),
    "no-model": ("model", {"model": None}),
    "empty-model": ("model", {"model": ""}),
    "home-model": ("model", {"model": "~/models/x"}),
    "home-model-path": ("model.path", {"model": {"path": "~/models/x"}}),
    "unpinned-hf": ("model.hf", {"model": {"hf": "Qwen/Qwen3-4B"}}),
    "branch-hf": ("model.hf", {"model": {"hf": "Qwen/Qwen3-4B@main"}}),
    "upper-case-sha": ("model.hf", {"model": {"hf": f"Qwen/Qwen3-4B@{SHA.upper()}"}}),
    "hf-and-path": ("model.hf", {"model": {"hf": f"Qwen/Qwen3-4B@{SHA}", "path": "x"}}),
    "no-engine": ("engine", {"engine": None}),
    "engine-and-other-profile": ("engine", {"runtime_profile": "llamacpp"}),
    "unknown-field": ("colour", {"colour": "red"}),
    "unknown-nested": ("engine_config.colour", {"engine_config": {"colour": "red"}}),
    "schema-version": ("schema_version", {"schema_version": 2}),
    "kind": ("kind", {"kind": "host"}),
    "residency": ("residency", {"residency": "sometimes"}),
    "instances-zero": ("instances", {"instances": 0}),
    "instances-many": ("instances", {"instances": 65}),
    "instances-text": ("instances", {"instances": "2"}),
    "instances-true": ("instances", {"instances": True}),
    "deadline-number": ("request_deadline", {"request_deadline": 30}),
    "deadline-short": ("request_deadline", {"request_deadline": "1s"}),
    "deadline-long": ("request_deadline", {"request_deadline": "2h"}),
    "initialize-short": ("timeouts.initialize", {"timeouts": {"initialize": "1s"}}),
    "wake-short": ("timeouts.wake", {"timeouts": {"wake": "1s"}}),
    "env": ("env", {"env": {"A": "b"}}),
    "activation": ("lifecycle.activation", {"lifecycle": {"activation": "never"}}),
    "warm-text": ("lifecycle.warm", {"lifecycle": {"warm": "yes"}}),
    "route-twice": ("routes", {"routes": ["a", "a"]}),
    "no-routes": ("routes", {"routes": []}),
    "host-and-hosts": ("host", {"host": "a", "placement": {"hosts": ["a"]}}),
    "reserved-argument": (
        "engine_config.extra_args",
        {"engine_config": {"accept_extra_args": True, "extra_args": ["--port", "1"]}},
    ),
    "unit": ("engine_config.memory.request", {"engine_config": {"memory": {"request": 12}}}),
}
CLASS = re.compile(
    r"Invalid deployment configuration: (unknown field|duplicate key|invalid unit|missing required"
    r" field|unsupported combination|conflicting arguments|invalid cache reference|contradictory "
    r"connection|schema version / kind mismatch|source not materialisable|source denied by host "
    r"policy|I/O) at `[^`]+`: .+",
    re.DOTALL,
)


def changed(document, changes):
    """``document`` with these fields; None takes one away."""
    return {k: v for k, v in {**document, **changes}.items() if v is not None}


def test_a_create_is_answered_byte_for_byte(fleet):
    answer = fleet.send_create(fleet.document())

    assert answer.status == 202
    assert RECEIPT.fullmatch(answer.body)


def test_a_created_deployment_is_at_revision_1_and_stopped(fleet):
    receipt = fleet.send_create(fleet.document()).json()

    row = fleet.row(receipt["deployment_id"])
    assert (row["revision"], row["desired_state"], row["observed_state"]) == (
        "1",
        "stopped",
        "stopped",
    )
    assert row["ready_instances"] == 0


def test_the_operation_of_a_create_has_succeeded(fleet):
    receipt = fleet.send_create(fleet.document()).json()

    row = fleet.operation(receipt["operation_id"])
    assert row["action"] == "managed_configuration_create"
    assert (row["state"], row["has_error"]) == ("succeeded", False)
    assert row["deployment_id"] == receipt["deployment_id"]


@pytest.mark.parametrize(("path", "changes"), BAD.values(), ids=BAD)
def test_a_bad_document_is_400_and_names_its_field(fleet, path, changes):
    answer = fleet.send_create(changed(fleet.document(), changes))

    assert (answer.status, answer.code) == (400, "invalid_config")
    assert answer.json()["error"]["details"] == {"path": path}
    assert CLASS.fullmatch(answer.message)
    assert f"`{path}`" in answer.message


def test_the_page_s_refusal_begins_as_it_is_printed(fleet):
    answer = fleet.send_create(fleet.document(model="x") | {"model": {"hf": "Qwen/Qwen3-4B"}})

    assert answer.message.startswith(
        "Invalid deployment configuration: unsupported combination at `model.hf`: "
        "`Qwen/Qwen3-4B` is not pinned to a commit: "
    )


def test_a_value_is_not_repeated(fleet):
    answer = fleet.send_create(fleet.document(request_deadline="open-sesame"))

    assert b"open-sesame" not in answer.body


def test_a_profile_of_nobody_is_409_and_says_what_there_is(fleet):
    answer = fleet.send_create(fleet.document() | {"engine": "nobody"})

    assert (answer.status, answer.code) == (409, "profile_not_published")
    details = answer.json()["error"]["details"]
    assert details.keys() == {"profile", "hosts"}
    assert details["profile"] == "nobody"
    assert all(isinstance(names, list) for names in details["hosts"].values())


def test_a_topology_is_refused_on_one_machine(fleet):
    answer = fleet.send_create(fleet.document(topology={"tensor_parallel": 2}))

    assert answer.status == 400
    assert "group_placement_required" in answer.message


def test_an_unknown_host_is_503(fleet):
    answer = fleet.send_create(fleet.document(host="nowhere"))

    assert (answer.status, answer.code) == (503, "host_ineligible")


def test_a_selector_that_no_host_matches_is_403(fleet):
    answer = fleet.send_create(fleet.document(placement={"selector": {"colour": "red"}}))

    assert (answer.status, answer.code) == (403, "host_policy_denied")


def test_a_taken_name_is_409(stopped):
    fleet, id = stopped

    answer = fleet.send_create(fleet.document(name=fleet.row(id)["name"]))

    assert (answer.status, answer.code) == (409, "route_conflict")


def test_a_taken_route_is_409(stopped):
    fleet, id = stopped

    answer = fleet.send_create(fleet.document(routes=[fleet.row(id)["name"]]))

    assert answer.code == "route_conflict"


def test_a_name_is_told_from_one_in_another_case(fleet):
    name = fresh_name("cased")
    fleet.create(name=name)

    assert fleet.send_create(fleet.document(name=name.upper())).status == 202


def test_a_freed_name_is_given_to_a_new_id(fleet):
    name = fresh_name()
    first = fleet.create(name=name)
    fleet.accept_delete(first)

    assert fleet.create(name=name) != first


@pytest.mark.parametrize("refused", ["invalid_config", "profile_not_published", "route_conflict"])
def test_a_refused_create_leaves_nothing_and_its_key_unused(stopped, refused):
    fleet, id = stopped
    document = {
        "invalid_config": fleet.document(colour="red"),
        "profile_not_published": fleet.document() | {"engine": "nobody"},
        "route_conflict": fleet.document(name=fleet.row(id)["name"]),
    }[refused]
    fleet.wait_measured()
    before, key = fleet.target.ask("GET", "/snapshot").body, fresh_key()
    answer = fleet.send_create(document, key=key)
    after = fleet.target.ask("GET", "/snapshot").body

    again = fleet.send_create(fleet.document(), key=key)

    assert answer.code == refused
    assert after == before
    assert again.status == 202


def test_every_route_is_listed_and_ordered(fleet):
    names = [fresh_name("b"), fresh_name("a")]
    id = fleet.create(routes=names)

    routes = fleet.snapshot()["routes"]

    assert [row["route"] for row in routes if row["deployment_id"] == id] == sorted(names)
    assert routes == sorted(routes, key=lambda row: (row["deployment_id"], row["route"]))


def test_explicit_activation_is_shown_and_its_absence_is_not(fleet):
    explicit = fleet.create(lifecycle={"activation": "explicit"})
    usual = fleet.create(lifecycle={"activation": "on_demand"})

    assert fleet.row(explicit)["activation"] == "explicit"
    assert "activation" not in fleet.row(usual)


def test_a_minimal_document_is_completed(fleet):
    name = fresh_name()
    id = fleet.create(name=name)

    effective = fleet.target.ask("GET", f"/deployments/{id}/effective-config").json()["effective"]

    assert effective["schema_version"] == 1
    assert effective["kind"] == "deployment"
    assert effective["runtime_profile"] == "vllm"
    assert effective["routes"] == [name]
    assert (effective["recipe"], effective["recovery"]) == ("standard", "reconcile")
    assert effective["model"]["content_fingerprint"] == "measured"
    assert effective["model"]["revision"] == "1"


def test_a_digest_that_is_expected_and_found_is_recorded(fleet):
    first = fleet.create()
    digest = fleet.row(first)["checkpoint_digest"]["digest"]

    second = fleet.create(model={"path": "small", "content_fingerprint": digest})

    found = fleet.row(second)["checkpoint_digest"]
    assert (found["state"], found["expected"], found["digest"]) == ("recorded", digest, digest)


def test_a_digest_that_is_not_found_refuses_starts(fleet):
    wrong = "sha256:" + "0" * 64
    id = fleet.create(fleet.document() | {"model": {"path": "small", "content_fingerprint": wrong}})

    assert fleet.row(id)["checkpoint_digest"]["state"] == "mismatch"
    assert fleet.act(id, "start").code == "checkpoint_mismatch"


def test_files_that_cannot_be_measured_keep_starts_waiting(fleet):
    id = fleet.create_unmeasured(fleet.document() | {"model": "not-there"})

    row = fleet.wait(id, lambda row: "diagnostic" in row["checkpoint_digest"], what="a diagnostic")

    assert row["checkpoint_digest"]["state"] == "pending"
    assert row["checkpoint_digest"]["diagnostic"] == "invalid_root"
    assert fleet.act(id, "start").code == "checkpoint_digest_pending"


def test_canonical_is_what_the_page_prints():
    assert canonical({"b": 1, "a": [1, {"d": None, "c": "é"}]}) == (
        '{"a":[1,{"c":"é","d":null}],"b":1}'.encode()
    )
