"""`deploy model` names the commit of a Hugging Face reference itself, as the role would not."""

import json

import pytest

from tests.checkpoints.fake_hub import COMMIT, FakeHub, serving
from tests.cli.fake_management import Says, receipt

pytestmark = pytest.mark.slow


@pytest.fixture
def hub():
    with serving(FakeHub(repositories={"Own/Model": {"config.json": b"{}"}})) as made:
        yield made


def deployed(bench, tmp_path, model, *words):
    path = tmp_path / "m.json"
    path.write_text(json.dumps({"name": "m", "engine": "vllm", "model": model}))
    return bench.run("deploy", "model", "--file", str(path), *words)


@pytest.mark.parametrize(
    ("model", "sent"),
    [
        ({"hf": "Own/Model"}, {"hf": f"Own/Model@{COMMIT}"}),
        ({"hf": "Own/Model@main", "revision": "2"}, {"hf": f"Own/Model@{COMMIT}", "revision": "2"}),
        (
            {"source": {"huggingface": {"repo": "Own/Model", "files": ["*"]}}},
            {"source": {"huggingface": {"repo": "Own/Model", "files": ["*"], "revision": COMMIT}}},
        ),
        (
            {"source": {"type": "huggingface", "repo": "Own/Model", "revision": "main"}},
            {"source": {"type": "huggingface", "repo": "Own/Model", "revision": COMMIT}},
        ),
    ],
)
def test_a_reference_is_sent_with_its_commit(management, bench, tmp_path, hub, model, sent):
    management.answers = [Says(202, receipt())]

    ran = deployed(bench, tmp_path, model, "--hf-endpoint", hub.url)

    assert ran.status == 0
    assert management.changes[0].fields["config"]["model"] == sent
    assert f"Own/Model@{COMMIT}" in ran.err


@pytest.mark.parametrize(
    "model",
    [
        {"hf": f"Own/Model@{COMMIT}"},
        {"hf": "nothing"},
        {"hf": 3},
        {"source": {"huggingface": {"repo": "Own/Model", "locked_commit": "x"}}},
        {"source": {"http": {"url": "https://x/y", "sha256": "0" * 64}}},
        {"source": 3},
    ],
)
def test_what_needs_no_commit_is_sent_as_it_is(management, bench, tmp_path, hub, model):
    management.answers = [Says(202, receipt())]

    deployed(bench, tmp_path, model, "--hf-endpoint", hub.url)

    assert management.changes[0].fields["config"]["model"] == model
    assert hub.asked == []


def test_the_commit_stays_the_same_when_the_command_is_run_again(management, bench, tmp_path, hub):
    management.answers = [Says(503, {}), Says(202, receipt())]
    first = deployed(bench, tmp_path, {"hf": "Own/Model"}, "--hf-endpoint", hub.url)
    asked = len(hub.asked)

    deployed(
        bench,
        tmp_path,
        {"hf": "Own/Model"},
        "--hf-endpoint",
        hub.url,
        "--request-id",
        first.request_id,
    )

    assert asked == len(hub.asked) == 1


def test_an_endpoint_that_does_not_know_it_sends_nothing(management, bench, tmp_path, hub):
    ran = deployed(bench, tmp_path, {"hf": "Own/Absent"}, "--hf-endpoint", hub.url)

    assert ran.status == 2
    assert "error [model_source_failed]: " in ran.err
    assert "Own/Absent" in ran.err
    assert management.changes == []


def test_the_roles_endpoint_and_token_are_used(management, bench, tmp_path, hub):
    token = tmp_path / "token"
    token.touch(0o600)
    token.write_text("hf_secret")
    hub.token = "hf_secret"
    settings = {"huggingface_endpoint": hub.url, "huggingface_token_file": str(token)}
    (bench.state_root / "config").mkdir()
    (bench.state_root / "config/standalone.yaml").write_text(
        json.dumps({"schema_version": 1, "kind": "standalone", "host": {"model_sources": settings}})
    )
    management.answers = [Says(202, receipt())]

    ran = deployed(bench, tmp_path, {"hf": "Own/Model"})

    assert ran.status == 0
    assert management.changes[0].fields["config"]["model"]["hf"] == f"Own/Model@{COMMIT}"
    assert "hf_secret" not in ran.err + ran.out
