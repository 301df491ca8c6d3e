"""What the Hub says of a repository, through its own library; pins; its refusals in our words."""

from __future__ import annotations

import pytest

from capyctl.checkpoints.downloads_stream import Rules
from capyctl.checkpoints.hub import file_url, list_files, pin
from capyctl.contracts.checkpoints import Unfetchable
from tests.checkpoints.fake_hub import COMMIT, FakeHub, git_sha1, serving, sha256

pytestmark = pytest.mark.slow

FILES = {
    "config.json": b"{}",
    "model.safetensors": b"w" * 5000,
    "gguf/q4/a b.gguf": b"g" * 2000,
    "README.md": b"",
}


@pytest.fixture
def hub():
    with serving(FakeHub(repositories={"Own/Model": FILES})) as made:
        yield made


def listed(hub, *patterns, **changes):
    found = list_files("Own/Model", COMMIT, patterns, endpoint=hub.url, **changes)
    return {file.name: file for file in found}


def failure(function, *args, **changes) -> Unfetchable:
    with pytest.raises(Unfetchable) as failed:
        function(*args, **changes)
    return failed.value


def test_every_file_has_its_size_and_hash(hub):
    found = listed(hub)

    assert found.keys() == FILES.keys()
    assert {name: file.size_bytes for name, file in found.items()} == {
        name: len(data) for name, data in FILES.items()
    }
    assert found["model.safetensors"].sha256 == sha256(FILES["model.safetensors"])
    assert found["config.json"].git_sha1 == git_sha1(b"{}")
    assert found["config.json"].sha256 is None


@pytest.mark.parametrize(
    ("patterns", "names"),
    [
        (("*.json",), {"config.json"}),
        (("*.gguf", "README.md"), {"gguf/q4/a b.gguf", "README.md"}),
        (("gguf/",), {"gguf/q4/a b.gguf"}),
    ],
)
def test_patterns_choose_files(hub, patterns, names):
    assert listed(hub, *patterns).keys() == names


def test_patterns_that_match_nothing_are_an_error(hub):
    failed = failure(listed, hub, "*.onnx")

    assert (failed.reason, failed.terminal) == ("not_found", True)
    assert "files" in failed.detail


@pytest.mark.parametrize("reference", ["Own/Model", "Own/Model@main"])
def test_a_reference_is_pinned(hub, reference):
    assert pin(reference, endpoint=hub.url + "/") == f"Own/Model@{COMMIT}"


def test_a_pinned_reference_asks_nobody(hub):
    assert pin(f"Own/Model@{COMMIT}", endpoint=hub.url) == f"Own/Model@{COMMIT}"
    assert hub.asked == []


def test_a_token_is_sent_and_only_when_there_is_one(hub, monkeypatch):
    monkeypatch.setenv("HF_TOKEN", "hf_of_the_environment")
    listed(hub)
    hub.token = "hf_secret"
    listed(hub, token="hf_secret")

    sent = [asked.headers.get("authorization") for asked in hub.asked]
    assert sent == [None, "Bearer hf_secret"]


@pytest.mark.parametrize(
    ("repository", "revision", "reason"),
    [("Own/Absent", "main", "not_found"), ("Own/Model", "absent", "not_found")],
)
def test_what_the_hub_does_not_have_is_said(hub, repository, revision, reason):
    failed = failure(pin, f"{repository}@{revision}", endpoint=hub.url)

    assert (failed.reason, failed.terminal) == (reason, True)


@pytest.mark.parametrize(
    ("status", "code", "reason", "terminal"),
    [
        (401, "RepoNotFound", "unauthorized", True),
        (403, "GatedRepo", "unauthorized", True),
        (403, None, "unauthorized", True),
        (500, None, "unreachable", False),
        (429, None, "unreachable", False),
    ],
)
def test_refusals_in_our_words(hub, status, code, reason, terminal):
    hub.fail("/revision/main", times=9, status=status, error_code=code)

    failed = failure(pin, "Own/Model", endpoint=hub.url, token="hf_secret")

    assert (failed.reason, failed.terminal) == (reason, terminal)
    assert "hf_secret" not in failed.detail


def test_nobody_listening_is_unreachable(hub):
    hub.port = 9  # discard; nobody serves it

    assert failure(pin, "Own/Model", endpoint=hub.url).reason == "unreachable"


def test_a_redirect_to_a_foreign_host_is_denied(hub):
    hub.fail("/revision/main", location=hub.foreign_url + "/api/models/Own/Model/revision/main")
    rules = Rules(plain_loopback=True, allowed_hosts=("127.0.0.1",))

    failed = failure(pin, "Own/Model", endpoint=hub.url, rules=rules)

    assert failed.reason == "denied"
    assert len(hub.asked) == 1


def test_an_endpoint_without_hashes_is_refused(hub, monkeypatch):
    monkeypatch.setattr(
        "tests.checkpoints.fake_hub._sibling", lambda name, data: {"rfilename": name}
    )

    failed = failure(listed, hub)

    assert "cannot be verified" in failed.detail


def test_a_name_that_leads_out_is_refused(hub):
    hub.repositories["Own/Model"] = {"../x": b""}

    assert failure(listed, hub).reason == "denied"


def test_names_are_quoted_in_addresses():
    url = file_url("https://hub.example/", "Own/Model", COMMIT, "a b/c?d.bin")

    assert url == f"https://hub.example/Own/Model/resolve/{COMMIT}/a%20b/c%3Fd.bin"
