"""The script that the management page prints runs unchanged against a daemon of defaults."""

import hashlib

import pytest

from capyctl.simulated.checkpoint_writer import write_checkpoint
from tests.e2e.daemon import running
from tests.e2e.page import SCRIPT, SCRIPT_SHA256, default_ports, differs, run_script

pytestmark = pytest.mark.slow


def test_the_script_is_the_page_s():
    assert hashlib.sha256(SCRIPT.read_bytes()).hexdigest() == SCRIPT_SHA256


def test_the_script_runs_unchanged(tmp_path):
    write_checkpoint(tmp_path / "models" / "Qwen3-4B", weights_bytes=8 << 30)
    with default_ports() as stranger:
        if stranger is not None:
            pytest.skip(stranger)
        with running(tmp_path, plain=True, simulate="") as daemon:
            status, lines = run_script(SCRIPT, tmp_path)
            left = daemon.engines()
            deployments = daemon.snapshot()["deployments"]
    assert status == 0, lines
    assert differs(lines) is None, lines
    assert left == []
    assert deployments == []


@pytest.mark.parametrize(
    "bad",
    [
        ["created x, revision 1"],
        ["retrying: checkpoint_digest_pending"],
        ["created 01M5E15VFG077EJ6W8Y4C601GC, revision 1", "stopped"],
    ],
)
def test_other_lines_are_noticed(bad):
    assert differs(bad) is not None
