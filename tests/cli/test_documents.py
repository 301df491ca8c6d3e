"""validate config, config show and simulate checkpoint: no role is asked."""

import json
import stat

import pytest

from tests.cli.fake_management import Bench


@pytest.fixture
def offline(tmp_path):
    return Bench(tmp_path / "state")


def test_a_valid_document_is_completed(offline, tmp_path):
    path = tmp_path / "m.yaml"
    path.write_text("name: m\nengine: vllm\nmodel: a\nlifecycle: {warm: true}\n")

    ran = offline.run("validate", "config", "--file", str(path))

    assert ran.status == 0
    assert "  warm: true" in ran.out.splitlines()
    assert ran.out.startswith("This is a valid deployment document.\n")
    assert "runtime_profile: vllm" in ran.out
    assert "Not checked without a host:" in ran.out


def test_a_valid_document_in_json(offline, tmp_path):
    path = tmp_path / "r.yaml"
    path.write_text("schema_version: 1\nkind: standalone\n")
    words = ("--set", "server.listeners.inference.bind=127.0.0.1:1", "--json")

    value = offline.run("validate", "config", "--file", str(path), *words).value

    assert (value["valid"], value["kind"]) == (True, "standalone")
    assert value["document"]["server"]["listeners"]["inference"]["bind"] == "127.0.0.1:1"


def test_an_invalid_document_names_its_field(offline, tmp_path):
    path = tmp_path / "m.yaml"
    path.write_text("name: m\nengine: vllm\nmodel: a\nnmae: x\n")

    ran = offline.run("validate", "config", "--file", str(path), "--json")

    assert ran.status == 2
    assert json.loads(ran.err)["details"] == {"path": "nmae"}


def test_settings_are_shown_with_their_source(offline):
    offline.environ["CAPYCTL_INFERENCE_ADDR"] = "127.0.0.1:5"
    words = ("config", "show", "--set", "host.model_store.path=/m")

    ran = offline.run(*words)

    head, columns, *rows = ran.out.splitlines()
    by_path = {row.split()[0]: row.split()[1:] for row in rows}
    assert head == f"role standalone, document {offline.state_root}/config/standalone.yaml"
    assert columns.split() == ["SETTING", "VALUE", "SOURCE"]
    assert list(by_path) == sorted(by_path)
    assert by_path["host.model_store.path"] == ["/m", "set"]
    assert by_path["server.listeners.inference.bind"] == ["127.0.0.1:5", "env"]
    assert by_path["server.listeners.management.bind"] == ["127.0.0.1:7443", "default"]
    assert by_path["host.local_engine.trust_remote_code"] == ["false", "default"]
    assert set(offline.run(*words, "--json").value) == {"role", "document", "settings"}


@pytest.fixture
def written(offline):
    config = offline.state_root / "config"
    config.mkdir(parents=True)
    (config / "host.yaml").write_text(
        "schema_version: 1\nkind: host\nname: a\n"
        "model_sources: {huggingface_token_file: /keys/hf}\n"
        "local_engine: {vllm: /opt/vllm, args: [--api-key, abc123]}\n"
        "runtime_profiles:\n  mine:\n    engine: vllm\n    executable: /opt/vllm\n"
        "    build_fingerprint: x\n    env: {HF_TOKEN: abc123}\n"
    )
    return offline


def test_the_settings_that_are_stated_are_inspected(written):
    stated = written.run("inspect", "config", "--role", "host", "--json").value
    words = ("inspect", "config", "--effective", "--role", "host", "--json")
    effective = written.run(*words).value

    assert {row["source"] for row in stated["settings"]} == {"yaml"}
    assert len(effective["settings"]) > len(stated["settings"])
    assert effective == written.run("config", "show", "--role", "host", "--json").value


@pytest.mark.parametrize("words", [("inspect", "config", "--effective"), ("config", "show")])
def test_no_secret_is_shown(written, words):
    ran = written.run(*words, "--role", "host", "--json")

    assert ran.status == 0
    assert "abc123" not in ran.out
    values = {row["path"]: row["value"] for row in ran.value["settings"]}
    assert values["model_sources.huggingface_token_file"] == "[redacted]"
    assert values["local_engine.vllm"] == "/opt/vllm"


def test_nothing_is_written(offline):
    offline.run("config", "show")

    assert not (offline.state_root / "config").exists()


def test_an_unknown_setting_is_refused_with_the_nearest(offline):
    ran = offline.run("config", "show", "--set", "host.model_store.pth=/m")

    assert ran.status == 2
    assert "host.model_store.path" in ran.errors[0]


@pytest.mark.parametrize(
    ("format", "name"), [("safetensors", "model.safetensors"), ("gguf", "model.gguf")]
)
def test_a_checkpoint_of_any_size_takes_no_room(offline, tmp_path, format, name):
    folder = tmp_path / "model"
    words = ("simulate", "checkpoint", str(folder), "--weights", "12GiB", "--format", format)

    ran = offline.run(*words, "--json")

    facts = (folder / name).stat()
    assert ran.status == 0
    assert ran.value["weights_bytes"] == 12 << 30
    assert facts.st_size >= 12 << 30
    assert facts.st_blocks * 512 < 1 << 20
    assert stat.S_ISREG(facts.st_mode)


@pytest.mark.parametrize("weights", ["12", "12GB", "1B", "9999TiB"])
def test_a_size_that_cannot_be_is_refused(offline, tmp_path, weights):
    ran = offline.run("simulate", "checkpoint", str(tmp_path / "m"), "--weights", weights)

    assert ran.status == 2
    assert "--weights" in ran.errors[0]


def test_a_folder_with_something_in_it_is_left_alone(offline, tmp_path):
    ran = offline.run("simulate", "checkpoint", str(tmp_path), "--weights", "1GiB")

    assert ran.status == 2
    assert "not empty" in ran.errors[0]
