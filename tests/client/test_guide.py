"""The controllers of the guide, as they are printed, against a real simulated daemon."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import subprocess
import sys

import pytest

from capyctl.simulated.checkpoint_writer import write_checkpoint
from tests.e2e.daemon import running, simulation, wait_until
from tests.tidy.tree import ROOT

PAGE = ROOT / "docs/guide/controllers.md"
PYTHON_LINES_MAX = 60


def printed(language):
    """The one block of the page in this language."""
    (block,) = re.findall(
        rf"^```{language}\n(.*?)^```$", PAGE.read_text(), re.MULTILINE | re.DOTALL
    )
    return block


def test_the_controller_in_python_is_short():
    lines = [line for line in printed("python").splitlines() if line.strip()]

    assert len(lines) <= PYTHON_LINES_MAX


def test_the_file_that_it_prints_is_json():
    assert set(json.loads(printed("json"))) == {"my-model", "other"}


@contextlib.contextmanager
def controller(language, folder, daemon):
    """The printed controller over ``wanted.json``, as a process."""
    name = {"python": "controller.py", "sh": "controller.sh"}[language]
    (folder / name).write_text(printed(language))
    program = sys.executable if language == "python" else "sh"
    with (folder / "said").open("wb") as said:
        process = subprocess.Popen(
            [program, str(folder / name), str(folder / "wanted.json")],
            env={**os.environ, "CAPYCTL_STATE_DIR": str(daemon.state), "PYTHONPATH": str(ROOT)},
            stdout=said,
            stderr=said,
        )
    try:
        yield
        assert process.poll() is None, (folder / "said").read_text()
    finally:
        process.kill()
        process.wait(10)


@pytest.mark.slow
@pytest.mark.parametrize("language", ["python", "sh"])
def test_a_controller_reaches_what_is_wanted(tmp_path, language):
    if language == "sh" and (shutil.which("curl") is None or shutil.which("jq") is None):
        pytest.skip("needs curl and jq")
    wanted = json.loads(printed("json"))

    def want(file):
        (tmp_path / "next").write_text(json.dumps(file))
        (tmp_path / "next").replace(tmp_path / "wanted.json")

    def states():
        rows = daemon.snapshot()["deployments"]
        return {row["name"]: row["observed_state"] for row in rows}

    def wait_for(expected):
        wait_until(lambda: states() == expected, what=f"{expected}, seen {states()}")

    want(wanted)
    with running(tmp_path, simulate=simulation()) as daemon:
        for name in ("Qwen3-4B", "Qwen3-8B"):
            write_checkpoint(daemon.models / name, weights_bytes=64 << 20)
        with controller(language, tmp_path, daemon):
            wait_for({"my-model": "ready", "other": "stopped"})
            want({**wanted, "my-model": {**wanted["my-model"], "running": False}})
            wait_for({"my-model": "stopped", "other": "stopped"})
            want({"other": {**wanted["other"], "running": True}})
            wait_for({"other": "ready"})
            want({})
            wait_for({})
        operations = [row["action"] for row in daemon.snapshot()["operations"]]
    said = (tmp_path / "said").read_text()
    assert "refused" not in said.replace("checkpoint_digest_pending", "")
    assert operations.count("managed_configuration_create") == 2
    assert operations.count("initialize") == 2
    assert operations.count("delete") == 2
