"""`deploy model`: the document as it is written, created or replaced, and started when asked."""

import json

import pytest

from tests.cli.fake_management import (
    BEGAN_MS,
    ID,
    Says,
    deployment,
    operation,
    receipt,
    refusal,
    snapshot,
)

READY = snapshot(deployment("ready", name="m"), operations=[operation("succeeded")])


@pytest.fixture
def document(tmp_path):
    path = tmp_path / "m.yaml"
    path.write_text("name: m\nengine: vllm\nmodel: ~/models/a\nlifecycle: {warm: true}\n")
    return path


def test_a_document_is_created_with_the_home_of_the_caller(management, bench, document, tmp_path):
    management.answers = [Says(202, receipt(checkpoint_digest="pending"))]

    ran = bench.run("deploy", "model", "--file", str(document))

    (sent,) = management.changes
    assert ran.status == 0
    assert (sent.method, sent.path) == ("POST", "/management/v1/deployments")
    assert sent.key == f"{ran.request_id}-create"
    assert sent.fields == {
        "config": {
            "name": "m",
            "engine": "vllm",
            "model": f"{tmp_path}/models/a",
            "lifecycle": {"warm": True},
        },
        "activate": False,
    }
    assert ran.out.splitlines() == [
        "Deployed m",
        f"  Deployment ID      {ID}",
        "  Revision           1",
        "  Operation          01M5E0PW0GTNAZM76H039K3YFY",
        "  Checkpoint digest  pending",
    ]


@pytest.mark.parametrize(
    ("model", "sent"),
    [
        ({"path": "~/a"}, {"path": "{home}/a"}),
        ({"source": {"local": {"path": "~/a"}}}, {"source": {"local": {"path": "{home}/a"}}}),
        ({"hf": "owner/repo@" + "0" * 40}, {"hf": "owner/repo@" + "0" * 40}),
        ("a", "a"),
        ("/a", "/a"),
    ],
)
def test_only_paths_of_the_model_are_expanded(management, bench, tmp_path, model, sent):
    path = tmp_path / "m.json"
    path.write_text(json.dumps({"name": "~/n", "engine": "vllm", "model": model}))

    bench.run("deploy", "model", "--file", str(path))

    config = management.changes[0].fields["config"]
    assert config["name"] == "~/n"
    assert config["model"] == json.loads(json.dumps(sent).replace("{home}", str(tmp_path)))


def test_a_revision_replaces(management, bench, document):
    management.snapshots = [snapshot(deployment(name="m"))]

    ran = bench.run("deploy", "model", "--file", str(document), "--revision", "3")

    (sent,) = management.changes
    assert (sent.method, sent.path) == ("PUT", f"/management/v1/deployments/{ID}")
    assert sent.key == f"{ran.request_id}-revise"
    assert sent.fields["expected_revision"] == 3


def test_a_start_is_asked_for_once_the_files_are_measured(management, bench, document):
    digest = {"state": "pending"}
    measuring = snapshot(deployment(name="m", checkpoint_digest=digest))
    management.snapshots = [measuring, measuring, snapshot(deployment(name="m")), READY]

    ran = bench.run("deploy", "model", "--file", str(document), "--activate", "--wait")

    create, start = management.changes
    assert ran.status == 0
    assert ran.out.startswith("m is ready\n")
    assert start.key == f"{ran.request_id}-action"
    assert create.key == f"{ran.request_id}-create"
    assert start.fields["deadline_ms"] == BEGAN_MS + 500 + 610_000


def test_activate_alone_returns_once_the_start_is_accepted(management, bench, document):
    digest = {"state": "pending"}
    measuring = snapshot(deployment(name="m", checkpoint_digest=digest))
    management.snapshots = [measuring, measuring, snapshot(deployment(name="m"))]

    ran = bench.run("deploy", "model", "--file", str(document), "--activate")

    assert ran.status == 0
    assert len(management.changes) == 2


@pytest.mark.parametrize("more", [(), ("--wait",)])
def test_what_is_told_of_the_digest_is_how_it_is_by_then(management, bench, document, more):
    measuring = snapshot(deployment(name="m", checkpoint_digest={"state": "pending"}))
    management.snapshots = [measuring, measuring, READY]
    management.answers = [Says(202, receipt(checkpoint_digest="pending"))]

    words = ("deploy", "model", "--file", str(document), "--activate", *more, "--json")

    assert bench.run(*words).value["checkpoint_digest"] == "recorded"


def test_a_replaced_model_that_runs_needs_no_start(management, bench, document):
    management.snapshots = [READY]
    management.answers = [Says(202, receipt(revision="4")), refusal("runtime_retained", 409)]

    ran = bench.run(
        "deploy", "model", "--file", str(document), "--revision", "3", "--activate", "--wait"
    )

    assert ran.status == 0


def test_a_repeat_creates_and_starts_with_the_same_bytes(management, bench, document):
    management.snapshots = [READY]
    words = ("deploy", "model", "--file", str(document), "--activate", "--wait")
    first = bench.run(*words)
    bench.clock.now_s += 100

    again = bench.run(*words, "--request-id", first.request_id)

    assert again.status == 0
    assert management.changes[:2] == management.changes[2:]


def test_another_document_is_another_request(management, bench, document):
    words = ("deploy", "model", "--file", str(document))
    first = bench.run(*words)
    document.write_text("name: other\nengine: vllm\nmodel: a\n")

    assert bench.run(*words, "--request-id", first.request_id).status == 2
    assert len(management.changes) == 1


@pytest.mark.parametrize("text", ["a: 1\na: 2\n", "[1]", "", "a: &x 1\nb: *x\n", "{"])
def test_a_document_that_cannot_be_read_is_refused_here(management, bench, document, text):
    document.write_text(text)

    ran = bench.run("deploy", "model", "--file", str(document))

    assert ran.status == 2
    assert ran.errors[0].startswith("error [invalid_config]: ")
    assert management.received == []


def test_a_missing_file_is_named(management, bench, tmp_path):
    ran = bench.run("deploy", "model", "--file", str(tmp_path / "none.yaml"))

    assert ran.status == 2
    assert "none.yaml" in ran.errors[0]


def test_waiting_needs_a_start(management, bench, document):
    ran = bench.run("deploy", "model", "--file", str(document), "--wait")

    assert ran.status == 2
    assert management.received == []


def test_a_field_that_the_api_refuses_is_in_the_details(management, bench, document):
    management.answers = [refusal("invalid_config", 400, details={"path": "model"})]

    ran = bench.run("deploy", "model", "--file", str(document), "--json")

    assert ran.status == 2
    assert '"details":{"path":"model"}' in ran.errors[0]


@pytest.mark.parametrize("code", ["route_conflict", "revision_conflict"])
def test_a_conflict_says_how_what_is_there_is_replaced(management, bench, document, code):
    management.snapshots = [snapshot(deployment(name="m"))]
    management.answers = [refusal(code, 409, message="No")]

    ran = bench.run("deploy", "model", "--file", str(document))

    assert ran.status == 2
    assert ran.err.splitlines()[-1] == (
        f"error [{code}]: No. m is deployed, at revision 3: `--revision 3` replaces it"
    )


def test_a_conflict_with_a_name_of_another_deployment_is_told_as_it_is(management, bench, document):
    management.snapshots = [snapshot(deployment(name="other"))]
    management.answers = [refusal("route_conflict", 409, message="No")]

    ran = bench.run("deploy", "model", "--file", str(document))

    assert ran.err.splitlines()[-1] == "error [route_conflict]: No"


@pytest.mark.parametrize(
    ("message", "more"),
    [
        ("No room; `--evict` would help", "; `capyctl start deployment m` takes --evict"),
        ("No room: give the model less memory", ""),
    ],
)
def test_a_start_without_room_says_that_the_deployment_is_there(
    management, bench, document, message, more
):
    """And speaks of --evict where the refusal does: elsewhere it would not help."""
    management.snapshots = [snapshot(deployment(name="m"))]
    management.answers = [Says(202, receipt()), refusal("capacity_blocked", 503, message=message)]

    ran = bench.run("deploy", "model", "--file", str(document), "--activate")

    assert ran.status == 4
    assert ran.errors == [f"error [capacity_blocked]: {message}. m is deployed, not started{more}"]
