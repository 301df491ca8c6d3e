"""Starts that the state directory does not allow: refused in one line that says what is wrong."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys

import pytest

from capyctl.daemon.serve import run_standalone
from tests.e2e.daemon import free_port

FOLDERS = ("identity", "run", "observation", "simulated", "config", "runtime")
FILES = (
    "lock",
    "srv.lock",
    "srv.sqlite3",
    "srv.sqlite3-wal",
    "control.sock",
    "identity/credentials",
    "identity/launch-secret",
    "run/role",
    "run/management-address",
    "config/standalone.yaml",
)


def refusal(root, capsys):
    """Status and message of a start on ``root``, which must be refused in one line."""
    flags = {
        "--state-dir": str(root),
        "--models-root": str(root),
        "--listen": f"127.0.0.1:{free_port()}",
        "--management-listen": "127.0.0.1:0",
    }
    status = run_standalone(flags, (), "gpus=0", "json")
    lines = [json.loads(line) for line in capsys.readouterr().err.splitlines()]
    assert [line["event"] for line in lines] == ["start_refused"], lines
    return status, lines[0]["fields"]["message"]


@pytest.fixture
def root(tmp_path):
    root = tmp_path / "state"
    root.mkdir(mode=0o700)
    return root


@pytest.mark.slow
@pytest.mark.parametrize("name", FOLDERS)
def test_a_file_in_the_place_of_a_folder_is_named(root, capsys, name):
    (root / name).write_text("x")

    status, message = refusal(root, capsys)

    assert status != 0
    assert str(root / name) in message
    assert "move it away" in message


@pytest.mark.slow
@pytest.mark.parametrize("name", FILES)
def test_a_folder_in_the_place_of_a_file_is_named(root, capsys, name):
    (root / name).mkdir(mode=0o700, parents=True)

    status, message = refusal(root, capsys)

    assert status != 0
    assert str(root / name) in message
    assert "move it away" in message or name == "config/standalone.yaml"


def test_a_state_directory_that_is_a_file_is_named(root, capsys):
    root.rmdir()
    root.write_text("x")

    status, message = refusal(root, capsys)

    assert status != 0
    assert str(root) in message


READ_ONLY = 'mount --bind "$1" "$1" && mount -o remount,ro,bind "$1" && shift && exec "$@"'
PROGRAM = """
import json, sys
from capyctl.daemon.serve import run_standalone
sys.exit(run_standalone(json.loads(sys.argv[1]), (), "gpus=0", "json"))
"""


@pytest.mark.slow
@pytest.mark.parametrize("used", [False, True])
def test_a_state_directory_that_cannot_be_written_is_named(root, used):
    apart = [shutil.which("unshare") or "unshare", "-rm"]
    if subprocess.run([*apart, "mount", "--bind", root, root], capture_output=True).returncode:
        pytest.skip("no mounts of one's own here")
    if used:
        (root / "config").mkdir(mode=0o700)
        (root / "config" / "standalone.yaml").write_text("schema_version: 1\nkind: standalone\n")
    flags = {
        "--state-dir": str(root),
        "--models-root": str(root),
        "--listen": f"127.0.0.1:{free_port()}",
    }

    start = [sys.executable, "-c", PROGRAM]
    done = subprocess.run(
        [*apart, "sh", "-c", READ_ONLY, "sh", root, *start, json.dumps(flags)],
        capture_output=True,
        text=True,
        timeout=60,
    )

    (line,) = done.stderr.splitlines()
    message = json.loads(line)["fields"]["message"]
    assert done.returncode == 13
    assert message.startswith(f"{root}/")
    assert "Read-only file system" in message
    assert f"writable for user {os.geteuid()}" in message
    assert "--state-dir" in message
