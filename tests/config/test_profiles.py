from __future__ import annotations

import pytest

from capyctl.config.problems import InvalidDocument
from capyctl.config.profiles import parse_engines, read_engines, skipped_engines

FULL = {
    "engine": "vllm",
    "revision": 4,
    "executable": "/v/bin/vllm",
    "build_fingerprint": "0.30.0",
    "args": ["--seed", "1"],
    "env": {"A": "b"},
    "cuda_home": "/usr/local/cuda",
    "log_policy": {"max_file_bytes": "1MiB", "retained_files": 2},
    "security": {
        "deep_park": "disabled",
        "trust_remote_code": True,
        "extra_args": "denied",
        "approved_options": ["--speculative-config"],
        "approved_paths": ["/drafts"],
        "approved_env": ["VLLM_*"],
        "installation_drift": "refuse",
    },
}


def document(**profiles):
    return {"schema_version": 1, "kind": "engines", "runtime_profiles": profiles}


def test_every_field_of_a_profile():
    (found,) = parse_engines(document(mine=FULL))

    assert found.name == "mine"
    assert (found.family, found.revision, found.version) == ("vllm", 4, "0.30.0")
    assert found.executable == ("/v/bin/vllm",)
    assert found.args == ("--seed", "1")
    assert found.env == {"A": "b"}
    assert found.cuda_home == "/usr/local/cuda"
    assert not found.deep_park
    assert found.trust_remote_code
    assert not found.extra_args_allowed
    assert found.approved_options == ("--speculative-config",)
    assert found.approved_paths == ("/drafts",)
    assert found.approved_env == ("VLLM_*",)


@pytest.mark.parametrize(
    ("engine", "parks"),
    [("vllm", True), ("sglang", True), ("llamacpp", False), ("tensorfold", False)],
)
def test_only_some_engines_park(engine, parks):
    (found,) = parse_engines(document(mine={"engine": engine, "executable": "/x"}))

    assert found.deep_park is parks


@pytest.mark.parametrize(
    ("profiles", "path"),
    [
        ({"local-x": FULL}, "runtime_profiles"),
        ({"mine": {**FULL, "launch_settings": {}}}, "runtime_profiles"),
        ({"mine": {**FULL, "executable": "vllm"}}, "runtime_profiles.mine.executable"),
        ({"mine": {**FULL, "engine": "No Name"}}, "runtime_profiles.mine.engine"),
        (
            {"mine": {**FULL, "security": {"deep_park_source": "default"}}},
            "runtime_profiles.mine.security.deep_park_source",
        ),
        ({"mine": {"engine": "vllm"}}, "runtime_profiles.mine.executable"),
    ],
)
def test_profiles_are_closed(profiles, path):
    with pytest.raises(InvalidDocument) as refused:
        parse_engines(document(**profiles))

    assert refused.value.problem.path == path


def test_an_engine_of_a_later_release_is_passed_over(tmp_path):
    path = tmp_path / "engines.yaml"
    path.write_text(
        "schema_version: 1\nkind: engines\nruntime_profiles:\n"
        "  mine: {engine: llamacpp, executable: /l, build_fingerprint: 0.6.0+d812350}\n"
        "  new: {engine: tomorrow, executable: /t}\n"
    )

    (found,) = read_engines(path)

    assert (found.name, found.version) == ("mine", "0.6.0")
    assert skipped_engines(path) == ("new",)


def test_no_file_is_no_profile(tmp_path):
    assert read_engines(tmp_path / "engines.yaml") == ()


def test_a_file_has_32_kib_at_most(tmp_path):
    path = tmp_path / "engines.yaml"
    path.write_text("# " + "x" * 32768 + "\nkind: engines\nschema_version: 1\n")

    with pytest.raises(InvalidDocument, match="32768 bytes"):
        read_engines(path)
