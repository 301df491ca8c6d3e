"""The walk-through of several machines, followed to the letter."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from tests.e2e.daemon import processes_of, wait_until
from tests.e2e.page import default_ports
from tests.tidy.tree import ROOT

pytestmark = [pytest.mark.slow, pytest.mark.faults]

GUIDE = ROOT / "docs/guide/several-machines.md"
SECTION = re.compile(r"## Try it on one machine\n(.*?)\n## ", re.DOTALL)
BLOCK = re.compile(r"```console\n(.*?)```", re.DOTALL)


def commands(text: str) -> list[tuple[str, list[str]]]:
    """Each command of the walk-through, with what is shown below it."""
    section = SECTION.search(text)
    assert section is not None
    found: list[tuple[str, list[str]]] = []
    for block in BLOCK.findall(section[1]):
        for line in block.replace("\\\n", " ").splitlines():
            if line.startswith("$ "):
                found.append((line[2:], []))
            else:
                found[-1][1].append(line)
    return found


@pytest.fixture
def shell(tmp_path):
    """Runs commands where ``/tmp/fleet`` is a folder of the test; ends what is left."""
    bin = tmp_path / "bin"
    bin.mkdir()
    program = bin / "capyctl"
    program.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -m capyctl.cli.main "$@"\n')
    program.chmod(0o755)
    folder = tmp_path / "fleet"
    env = {
        "HOME": str(tmp_path),
        "PATH": f"{bin}:{os.environ['PATH']}",
        "PYTHONPATH": str(ROOT),
    }
    roles: list[subprocess.Popen[bytes]] = []
    setting: list[str] = []

    def run(command: str) -> str:
        text = command.replace("/tmp/fleet", str(folder))
        if " start server " in text or " start host " in text:
            with (tmp_path / f"role-{len(roles)}.log").open("wb") as log:
                roles.append(
                    subprocess.Popen(["sh", "-c", f"exec {text}"], env=env, stdout=log, stderr=log)
                )
            wait_until(lambda: _is_ready(tmp_path / f"role-{len(roles) - 1}.log"), what=text)
            return ""
        if text.startswith("KEY="):
            setting.append(text)
            return ""
        whole = "\n".join([*setting, text])
        done = subprocess.run(
            ["sh", "-c", whole], env=env, capture_output=True, text=True, timeout=120, check=False
        )
        assert done.returncode == 0, (text, done.stdout, done.stderr)
        return done.stdout

    try:
        yield run
    finally:
        for role in roles:
            role.kill()
            role.wait(10)
        for left in processes_of(str(folder)):
            os.kill(left.pid, 9)


def _is_ready(log: Path) -> bool:
    lines = [json.loads(line) for line in log.read_text().splitlines() if line.startswith("{")]
    return any(line["event"] in ("ready", "start_refused") for line in lines)


def test_the_walk_through_can_be_followed_to_the_letter(shell):
    with default_ports() as stranger:
        if stranger is not None:
            pytest.skip(stranger)
        for command, shown in commands(GUIDE.read_text()):
            printed = shell(command)
            if shown:
                wait_until(
                    lambda c=command, s=shown: shell(c).splitlines() == s, what=f"{command} shows"
                )
            if command.startswith("curl"):
                assert "choices" in json.loads(printed)


def test_the_commands_are_found():
    found = [command for command, _ in commands(GUIDE.read_text())]

    assert found[0] == "mkdir -m 700 /tmp/fleet"
    assert sum("start host" in one for one in found) == 2
    assert found[-1].startswith("capyctl delete deployment")
