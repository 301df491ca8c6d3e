import json
import stat
import subprocess
import sys
import threading

import pytest

from capyctl.config.engine_documents import YamlEngineDocuments
from capyctl.contracts.engine_documents import Invalid
from capyctl.engines.engines_file import engines_file_path
from capyctl.engines.registration import RegistrationRefused, add_engine
from tests.engines_unit import registered
from tests.engines_unit.installed import (
    TELLS_VERSION,
    llama_server,
    python_environment,
    with_sleep_allocator,
)
from tests.engines_unit.registered import edit_engines_file, list_engines, read_engines_file


@pytest.fixture
def document(tmp_path):
    return tmp_path / "config" / "engines.yaml"


@pytest.fixture
def llama(tmp_path):
    return llama_server(tmp_path / "llama", TELLS_VERSION)


def add(path, document, **options):
    return registered.add_engine(path, document, **options)


def refused(code, path, document, **options):
    before = document.read_bytes() if document.exists() else None
    with pytest.raises(RegistrationRefused) as caught:
        add(path, document, **options)
    assert caught.value.code == code
    assert (document.read_bytes() if document.exists() else None) == before
    return caught.value.message


def test_a_llama_server_is_added_listed_and_removed(llama, document):
    added = add(llama, document)
    assert (added.profile, added.engine, added.version) == ("llamacpp", "llamacpp", "0.6.0")
    assert (added.deep_park, added.custom, added.revision) == (False, True, 1)
    assert added.fingerprint.digest.startswith("sha256:")
    assert stat.S_IMODE(document.stat().st_mode) == 0o600
    assert document.read_text().splitlines() == [
        "# capyctl-document-revision: 1",
        "schema_version: 1",
        "kind: engines",
        "runtime_profiles:",
        "  llamacpp:",
        "    engine: llamacpp",
        "    revision: 1",
        f"    executable: {llama}",
        "    build_fingerprint: 0.6.0+abc1234",
        "    security:",
        "      deep_park: disabled",
    ]
    (listed,) = list_engines(document)
    assert (listed.profile, listed.version, listed.deep_park) == ("llamacpp", "0.6.0", False)
    removed = registered.remove_engine("llamacpp", document)
    assert (removed.removed, removed.revision) == ("llamacpp", 2)
    assert list_engines(document) == ()


def test_a_vllm_with_everything_stated_reads_back(tmp_path, document):
    root = with_sleep_allocator(python_environment(tmp_path / "env", vllm="0.30.0"))
    added = add(
        root,
        document,
        name="fast",
        drift="refuse",
        args=["--seed", "7"],
        approved_options=["--compilation-config"],
        approved_paths=["/plugins"],
        env={"VLLM_LOGGING_LEVEL": "INFO"},
        approved_env=["VLLM_USE_*"],
    )
    assert (added.deep_park, added.deep_park_probe, added.custom) == (True, "supported", False)
    held = read_engines_file(document)
    assert held.profiles["fast"].installation_drift == "refuse"
    profile = held.profiles["fast"].to_profile("fast")
    assert profile.installation_drift == "refuse"
    assert profile.executable == (str(root / "bin" / "vllm"),)
    assert (profile.version, profile.args) == ("0.30.0", ("--seed", "7"))
    assert profile.approved_env == ("VLLM_USE_*",)
    assert profile.env == {"VLLM_LOGGING_LEVEL": "INFO"}


def test_a_probe_without_parking_is_written_down(tmp_path, document):
    root = python_environment(tmp_path / "env", vllm="0.30.0")
    assert not add(root, document).deep_park
    assert add(root, document, name="forced", deep_park="enabled").deep_park
    held = read_engines_file(document).profiles
    assert (held["vllm"].deep_park, held["forced"].deep_park) == (False, True)


def test_refusals_write_nothing(llama, tmp_path, document):
    refused("engine_not_found", tmp_path / "nowhere", document)
    refused("engine_unsupported", tmp_path, document)
    sglang = python_environment(tmp_path / "sg", sglang="0.5.20", vllm="0.30.0")
    refused("engine_unsupported", sglang, document)
    silent = llama_server(tmp_path / "silent", "exit 0")
    refused("engine_version_failed", silent, document)
    refused("capability_missing", llama, document, deep_park="enabled")
    refused("invalid_config", llama, document, args=["--port", "1"])
    refused("invalid_config", llama, document, env={"LLAMA_CACHE": "/x"})
    refused("invalid_config", llama, document, approved_env=["*"])
    refused("invalid_config", llama, document, name="A name")
    refused("profile_exists", llama, document, name="local-llamacpp")
    refused("profile_exists", llama, document, taken={"llamacpp"})
    add(llama, document)
    assert "--name" in refused("profile_exists", llama, document)
    with pytest.raises(RegistrationRefused) as caught:
        registered.remove_engine("other", document)
    assert caught.value.code == "not_found"
    assert read_engines_file(document).revision == 1


def test_a_machine_wide_llama_configuration_is_in_the_way(llama, document, tmp_path):
    config = tmp_path / "config.ini"
    config.write_text("")
    with pytest.raises(RegistrationRefused, match=str(config)) as caught:
        add_engine(
            llama,
            engines_file=document,
            documents=YamlEngineDocuments(),
            system_config=config,
        )
    assert caught.value.code == "engine_unsupported"


def test_a_profile_that_comes_again_has_a_new_revision(llama, document):
    add(llama, document)
    registered.remove_engine("llamacpp", document)
    add(llama, document)
    assert read_engines_file(document).profiles["llamacpp"].revision == 3


def test_the_mode_of_an_older_file_is_kept_and_no_draft_is_left(llama, document):
    add(llama, document)
    document.chmod(0o640)
    add(llama, document, name="second")
    assert stat.S_IMODE(document.stat().st_mode) == 0o640
    assert [one.name for one in document.parent.iterdir()] == ["engines.yaml"]


def test_a_refusal_leaves_nothing_where_there_was_nothing(llama, document):
    refused("invalid_config", llama, document, args=["--port", "1"])
    with pytest.raises(RegistrationRefused):
        registered.remove_engine("other", document)
    with pytest.raises(Invalid):
        edit_engines_file(document, refuse)

    assert not document.parent.exists()


def test_a_refusal_leaves_only_what_was_there(llama, document):
    add(llama, document)
    refused("profile_exists", llama, document)
    with pytest.raises(RegistrationRefused):
        registered.remove_engine("other", document)
    with pytest.raises(Invalid):
        edit_engines_file(document, refuse)

    assert [one.name for one in document.parent.iterdir()] == ["engines.yaml"]


def refuse(held):
    raise Invalid("runtime_profiles", "is not wanted")


def test_a_change_that_fails_leaves_the_file_alone(llama, document):
    add(llama, document)
    before = document.read_bytes()

    def fail(held):
        raise RuntimeError

    with pytest.raises(RuntimeError):
        edit_engines_file(document, fail)
    assert document.read_bytes() == before


def test_writers_take_turns(llama, document):
    names = [f"p{n}" for n in range(6)]
    writers = [
        threading.Thread(target=add, args=(llama, document), kwargs={"name": n}) for n in names
    ]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    held = read_engines_file(document)
    assert (held.revision, sorted(held.profiles)) == (6, names)


GOOD = """# capyctl-document-revision: 4
schema_version: 1
kind: engines
runtime_profiles:
  a:
    engine: vllm
    executable: /opt/vllm/bin/vllm
"""


@pytest.mark.parametrize(
    ("old", "new", "path"),
    [
        ("kind: engines", "kind: host", "kind"),
        ("schema_version: 1", "schema_version: 2", "schema_version"),
        ("schema_version: 1", "schema_version: true", "schema_version"),
        ("kind: engines", "kind: engines\nextra: 1", "extra"),
        ("    engine: vllm\n", "", "runtime_profiles.a.engine"),
        ("/opt/vllm/bin/vllm", "vllm", "runtime_profiles.a.executable"),
        ("engine: vllm", "engine: vllm\n    colour: red", "runtime_profiles.a.colour"),
        (
            "engine: vllm",
            "engine: vllm\n    launch_settings: {}",
            "runtime_profiles",
        ),
        ("engine: vllm", "engine: vllm\n    env: {A: 1}", "runtime_profiles.a.env.A"),
        ("engine: vllm", "engine: vllm\n    args: [--port, '1']", "runtime_profiles.a"),
        (
            "engine: vllm",
            "engine: vllm\n    security: {deep_park_source: default}",
            "runtime_profiles.a.security.deep_park_source",
        ),
        (
            "engine: vllm",
            "engine: vllm\n    security: {deep_park: maybe}",
            "runtime_profiles.a.security.deep_park",
        ),
        (
            "engine: vllm",
            "engine: vllm\n    log_policy: {max_file_bytes: 16}",
            "runtime_profiles.a.log_policy.max_file_bytes",
        ),
        ("  a:", "  A b:", "runtime_profiles"),
        ("  a:", "  local-a:", "runtime_profiles"),
        ("/opt/vllm/bin/vllm", "[vllm]", "runtime_profiles.a.executable"),
    ],
)
def test_documents_are_closed(tmp_path, old, new, path):
    document = tmp_path / "engines.yaml"
    assert old in GOOD
    document.write_text(GOOD.replace(old, new))
    with pytest.raises(Invalid) as caught:
        read_engines_file(document)
    assert caught.value.path == path


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (GOOD + "kind: engines\n", "^kind: "),
        (GOOD + "    engine: vllm\n", r"^runtime_profiles\.a\.engine: "),
        (GOOD.replace("vllm\n", "&x vllm\n", 1) + "    cuda_home: *x\n", "aliases"),
        ("- a", "a map of settings"),
        ("a: [", "line"),
        ("x" * 40_000, "over 32768 bytes"),
        ("a: " + "[" * 70 + "]" * 70, "nested"),
    ],
)
def test_yaml_that_is_refused(tmp_path, text, told):
    document = tmp_path / "engines.yaml"
    document.write_text(text)
    with pytest.raises(Invalid, match=told):
        read_engines_file(document)


def test_a_missing_document_is_an_empty_one(tmp_path):
    held = read_engines_file(tmp_path / "engines.yaml")
    assert (held.revision, held.profiles) == (0, {})
    (tmp_path / "good.yaml").write_text(GOOD)
    assert read_engines_file(tmp_path / "good.yaml").revision == 4


def test_a_program_with_leading_arguments_reads_back(tmp_path):
    document = tmp_path / "engines.yaml"
    document.write_text(GOOD.replace("/opt/vllm/bin/vllm", "[/usr/bin/python3, -I, /x/engine.py]"))

    held = edit_engines_file(document, lambda found: found.profiles)

    assert read_engines_file(document).profiles == held.profiles
    assert held.profiles["a"].executable == ("/usr/bin/python3", "-I", "/x/engine.py")


def test_where_the_document_lies():
    home = {"HOME": "/home/u"}
    assert str(engines_file_path(None, home)) == "/home/u/.config/capyctl/engines.yaml"
    assert (
        str(engines_file_path(None, {**home, "XDG_CONFIG_HOME": "/x"})) == "/x/capyctl/engines.yaml"
    )
    assert str(engines_file_path("/etc/capyctl/host.yaml", home)) == "/etc/capyctl/engines.yaml"


@pytest.mark.slow
def test_the_command_does_not_load_trio_for_this():
    code = (
        "import capyctl.engines.registration, json, sys; print(json.dumps('trio' in sys.modules))"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True, timeout=60)
    assert json.loads(ran.stdout) is False
