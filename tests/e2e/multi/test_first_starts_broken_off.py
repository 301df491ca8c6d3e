"""`kill -9` at each step of a first start: the next one trips over nothing of it."""

from __future__ import annotations

import signal
from functools import partial
from pathlib import Path

import pytest

from tests.e2e.daemon import wait_until
from tests.e2e.forking import Started
from tests.e2e.multi.fleet import HOST_PROGRAM, SERVER_PROGRAM, Fleet, Host, Server, fleet

pytestmark = [pytest.mark.slow, pytest.mark.faults]

STEPPED = """
from tests.e2e.multi.seams import die_at_step
die_at_step(%d)
"""
STEPS_MAX = 80


def has_ended(process: Started | None) -> bool:
    assert process is not None
    return process.poll() is not None


def ended_or_there(process: Started, path: Path) -> bool:
    return has_ended(process) or path.exists()


def ended_or_online(made: Fleet, host: Host) -> bool:
    found = made.server.hosts().get(host.name)
    return has_ended(host.process) or (found is not None and found["state"] == "online")


def dying(program: str, step: int) -> str:
    return STEPPED % step + program


def test_a_server_that_is_killed_at_any_step_of_its_first_start_starts(tmp_path):
    step = 0
    while step < STEPS_MAX:
        root = tmp_path / str(step)
        server = Server(root, simulate="")
        root.mkdir()
        try:
            server.program = dying(SERVER_PROGRAM, step)
            server.process = process = server.spawn()
            address = server.state / "run" / "management-address"
            wait_until(partial(ended_or_there, process, address), what="killed, or started")
            if not has_ended(process):
                break
            assert process.wait(1) == -signal.SIGKILL, server.log_path.read_text()[-2000:]
            credentials = server.state / "identity" / "server-credentials.json"
            before = credentials.read_text() if credentials.exists() else None

            server.program = SERVER_PROGRAM
            server.start()

            assert before in (None, credentials.read_text())
            assert not list((server.state / "identity").glob("*.new"))
        finally:
            server.end_everything()
        step += 1
    assert 10 < step < STEPS_MAX


def test_a_host_that_is_killed_at_any_step_of_its_first_start_starts(tmp_path):
    with fleet(tmp_path) as made:
        step = 0
        while step < STEPS_MAX:
            made.hosts.clear()
            host = made.new(f"h{step}")
            made.prepare(host)
            host.program = dying(HOST_PROGRAM, step)
            host.start()
            wait_until(partial(ended_or_online, made, host), what="killed, or online")
            if not has_ended(host.process):
                host.kill()
                break
            assert host.wait_ended() == -signal.SIGKILL
            host.program = HOST_PROGRAM

            host.start()

            made.server.wait_host(host.name, "online")
            assert not list((host.state / "identity").glob("*.new"))
            host.kill()
            step += 1
    assert 5 < step < STEPS_MAX
