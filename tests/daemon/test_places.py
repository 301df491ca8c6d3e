"""Folders and programs that the settings name and that cannot be used: said at the start."""

import contextlib
import json
import os

import attrs
import pytest

from capyctl.config.problems import InvalidDocument
from capyctl.config.settings import load_standalone
from capyctl.daemon.places import check_places
from capyctl.daemon.serve import run_standalone
from tests.e2e.daemon import free_port

NOBODY = 65534


@attrs.define
class Log:
    told: list = attrs.field(factory=list)

    def __call__(self, event, **fields):
        self.told.append((event, fields["message"]))


def looked(tmp_path, *, simulated=True, role="standalone", env=None, **flags):
    """What is said of a start with these flags, as (event, message)."""
    root = tmp_path / "state"
    root.mkdir(mode=0o700, exist_ok=True)
    stated = {"--models-root": str(tmp_path)}
    stated |= {f"--{name.replace('_', '-')}": str(value) for name, value in flags.items()}
    home = {"HOME": str(tmp_path / "home"), **(env or {})}
    settings = load_standalone(root, config_path=None, flags=stated, env=home)
    log = Log()
    check_places(settings, role, simulated=simulated, log=log)
    return log.told


def test_nothing_is_said_of_what_is_as_it_should_be(tmp_path):
    assert looked(tmp_path) == []


@pytest.mark.parametrize("name", ["none", "none/at/all"])
def test_a_models_directory_that_is_missing_is_made_and_told(tmp_path, name):
    root = tmp_path / name

    told = looked(tmp_path, models_root=root)
    again = looked(tmp_path, models_root=root)

    assert told == [
        (
            "models_root_made",
            f"host.model_store.path: {root} was not there, and is made: empty",
        )
    ]
    assert root.is_dir()
    assert again == []


@pytest.mark.parametrize("path", ["/proc/none", "file/none", "loop", "loop/none", "dangling"])
def test_a_models_directory_that_cannot_be_used_is_warned_of(tmp_path, path):
    (tmp_path / "file").touch()
    (tmp_path / "loop").symlink_to("loop")
    (tmp_path / "dangling").symlink_to("/proc/nowhere")
    root = os.path.join(tmp_path, path)

    ((event, message),) = looked(tmp_path, models_root=root)

    assert event == "models_root_unusable"
    assert message.startswith(f"host.model_store.path: {root} cannot be used (")
    assert "--models-root" in message


@contextlib.contextmanager
def closed_to_us(folder):
    """Yields the user. Root may read everything, so it is somebody else meanwhile."""
    if os.geteuid() != 0:
        folder.chmod(0)
        try:
            yield os.geteuid()
        finally:
            folder.chmod(0o700)
        return
    os.chown(folder, NOBODY - 1, NOBODY - 1)
    os.seteuid(NOBODY)
    try:
        yield NOBODY
    finally:
        os.seteuid(0)


def test_a_models_directory_that_is_closed_to_this_user_is_warned_of(tmp_path):
    root = tmp_path / "theirs"
    root.mkdir(mode=0o700)
    settings = load_standalone(
        tmp_path / "state",
        config_path=None,
        flags={"--models-root": str(root)},
        env={"HOME": str(tmp_path)},
    )
    log = Log()

    with closed_to_us(root) as user:
        check_places(settings, "standalone", simulated=True, log=log)

    ((event, message),) = log.told
    assert event == "models_root_unusable"
    assert "(Permission denied)" in message
    assert f"user {user}" in message


@pytest.mark.parametrize(
    ("flag", "setting"),
    [
        ("models_root", "model_store.path"),
        ("model_sources_path", "model_sources.path"),
    ],
)
@pytest.mark.parametrize(("role", "block"), [("standalone", "host."), ("host", "")])
def test_a_file_in_the_place_of_a_folder_is_refused(tmp_path, flag, setting, role, block):
    file = tmp_path / "file"
    file.touch()

    with pytest.raises(InvalidDocument) as refused:
        looked(tmp_path, role=role, **{flag: file})

    assert refused.value.problem.path == f"{block}{setting}"
    assert f"{file} is a file" in str(refused.value)


@pytest.mark.parametrize("flag", ["vllm_bin", "sglang_bin", "tensorfold_bin", "llamacpp_bin"])
@pytest.mark.parametrize("program", ["none", "file", "."])
def test_a_program_that_cannot_be_run_is_warned_of(tmp_path, flag, program):
    (tmp_path / "file").touch(mode=0o600)
    path = os.path.normpath(tmp_path / program)

    ((event, message),) = looked(tmp_path, simulated=False, **{flag: path})

    assert event == "engine_unusable"
    assert message.startswith(f"{path} is not there or cannot be run")


def test_programs_do_not_matter_where_engines_are_simulated(tmp_path):
    assert looked(tmp_path, vllm_bin="/none") == []


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ("--port 1", "args: --port is set by capyctl itself"),
        ("--host 0.0.0.0", "args: --host is set by capyctl itself"),
    ],
)
def test_an_argument_that_is_capyctls_own_is_warned_of(tmp_path, words, told):
    ((event, message),) = looked(
        tmp_path, simulated=False, llamacpp_bin="/bin/sh", engine_args=words
    )

    assert event == "engine_unusable"
    assert message.startswith(told)


def test_a_variable_that_is_capyctls_own_is_warned_of(tmp_path):
    engines = tmp_path / "home/.config/capyctl/engines.yaml"
    engines.parent.mkdir(parents=True)
    engines.write_text(
        "schema_version: 1\nkind: engines\nruntime_profiles:\n"
        "  mine: {engine: llamacpp, executable: /bin/sh, env: {PATH: /x}}\n"
    )

    ((event, message),) = looked(tmp_path, simulated=False)

    assert event == "engine_unusable"
    assert "engine_env_reserved:PATH" in message


def test_a_toolkit_that_is_missing_is_warned_of(tmp_path):
    ((event, message),) = looked(
        tmp_path, simulated=False, llamacpp_bin="/bin/sh", cuda_home="/none"
    )

    assert (event, message) == (
        "engine_unusable",
        "cuda_home: /none is not a folder: name the CUDA toolkit",
    )


def test_a_token_file_that_is_missing_is_warned_of(tmp_path):
    name = "CAPYCTL_SET__HOST__MODEL_SOURCES__HUGGINGFACE_TOKEN_FILE"

    ((event, message),) = looked(tmp_path, env={name: "/none"})

    assert event == "token_file_unusable"
    assert "/none is not there" in message


def test_a_start_is_refused_before_it_serves(tmp_path, capsys):
    file = tmp_path / "file"
    file.touch()
    flags = {
        "--state-dir": str(tmp_path / "state"),
        "--models-root": str(file),
        "--listen": f"127.0.0.1:{free_port()}",
        "--management-listen": "127.0.0.1:0",
    }

    status = run_standalone(flags, (), "gpus=0", "json")

    (line,) = capsys.readouterr().err.splitlines()
    fields = json.loads(line)["fields"]
    assert status == 2
    assert fields["code"] == "invalid_config"
    assert "host.model_store.path" in fields["message"]
