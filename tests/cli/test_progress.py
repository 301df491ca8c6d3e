"""What waiting looks like: one line on a terminal, rewritten; a line for each change elsewhere."""

import os
import pty
import subprocess
import sys

import pytest

from tests.cli.fake_management import deployment, operation, snapshot

READ_BYTES = 65536


def read_terminal(descriptor):
    """Everything until the other side is closed."""
    data = b""
    while True:
        try:
            piece = os.read(descriptor, READ_BYTES)
        except OSError:
            return data.decode()
        if not piece:
            return data.decode()
        data += piece


def run_on_terminal(bench, *words, columns="200"):
    ours, theirs = pty.openpty()
    command = [sys.executable, "-m", "capyctl.cli.main", "--state-dir", str(bench.state_root)]
    env = {**os.environ, "TERM": "xterm", "COLUMNS": columns}
    with subprocess.Popen(
        [*command, *words], stdin=theirs, stdout=theirs, stderr=theirs, env=env
    ) as process:
        os.close(theirs)
        shown = read_terminal(ours)
    os.close(ours)
    return process.returncode, shown


@pytest.fixture
def starting(management):
    management.snapshots = [
        snapshot(deployment(checkpoint_digest={"state": "pending"})),
        snapshot(deployment(checkpoint_digest={"state": "pending"})),
        snapshot(deployment()),
        snapshot(deployment("starting"), operations=[operation("running")]),
        snapshot(deployment("ready"), operations=[operation("succeeded")]),
    ]


@pytest.mark.slow
@pytest.mark.usefixtures("starting")
def test_on_a_terminal_one_line_is_rewritten(bench):
    status, shown = run_on_terminal(bench, "start", "deployment", "my-model", "--wait")

    assert status == 0
    lines = shown.replace("\r\n", "\n").split("\n")
    rewritten = lines[1].split("\r\x1b[2K")
    assert "checkpoint digest of my-model being measured (since " in rewritten[1]
    assert rewritten[2] == ""
    assert "instance 0 starting (since " in rewritten[3]
    assert rewritten[-1] == "my-model is ready"


@pytest.mark.slow
@pytest.mark.usefixtures("starting")
def test_a_line_never_wraps(bench):
    _, shown = run_on_terminal(bench, "start", "deployment", "my-model", "--wait", columns="40")

    rewritten = [part for part in shown.split("\r\x1b[2K")[1:] if "waiting" in part]
    assert rewritten
    assert all(len(part) < 40 for part in rewritten)


@pytest.mark.slow
def test_json_is_indented_on_a_terminal(bench):
    _, shown = run_on_terminal(bench, "list", "deployments", "--json")

    assert shown.startswith('{\r\n  "deployments": [\r\n')


@pytest.mark.usefixtures("starting")
def test_elsewhere_each_change_is_a_line(bench):
    ran = bench.run("start", "deployment", "my-model", "--wait")

    assert len(ran.waits) == 2
    assert "\r" not in ran.err
    assert "\x1b" not in ran.err
