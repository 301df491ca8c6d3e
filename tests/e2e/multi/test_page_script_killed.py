"""The page's script on a server of three hosts, one of which is killed: it comes to its end."""

from __future__ import annotations

import contextlib
import os
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from capyctl.simulated.checkpoint_writer import write_checkpoint
from tests.e2e.daemon import wait_until
from tests.e2e.multi.fleet import Fleet, fleet
from tests.e2e.page import default_ports, differs, script_on_a_server

pytestmark = pytest.mark.slow

SCRIPT_S_MAX = 60.0
LOAD_S = 3.0
NAMES = ("a", "b", "c")
CREATED, ACCEPTED, READY, STOPPED = "created", "start accepted", '{"name"', "stopped"


@pytest.fixture(scope="module")
def shared(tmp_path_factory):
    root = tmp_path_factory.mktemp("script")
    write_checkpoint(root / "models" / "Qwen3-4B", weights_bytes=8 << 30)
    with default_ports() as stranger:
        if stranger is not None:
            # The page states its ports, and the script runs unchanged.
            pytest.skip(stranger)
        with fleet(root, *NAMES, plain=True, engines={"load_s": LOAD_S}) as made:
            yield made, script_on_a_server(root)


@pytest.fixture
def made(shared):
    made = shared[0]
    for name, host in made.hosts.items():
        if host.process is None:
            host.start()
        made.server.wait_host(name, "online")
    return made


@contextlib.contextmanager
def running(script: Path, home: Path) -> Iterator[tuple[subprocess.Popen[str], Iterator[str]]]:
    """The script, and its lines as they come, those of stderr among them."""
    process = subprocess.Popen(
        ["sh", str(script)],
        env={"HOME": str(home), "PATH": os.environ["PATH"]},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    ending = threading.Timer(SCRIPT_S_MAX, process.kill)
    ending.start()
    try:
        assert process.stdout is not None
        with process.stdout:
            yield process, (line.strip() for line in process.stdout)
    finally:
        ending.cancel()
        process.kill()
        process.wait(10)


def holder(made: Fleet) -> str:
    """The host that the model is on."""
    (one,) = made.server.snapshot()["deployments"]
    found: str = wait_until(lambda: made.server.hosts_of(one["id"])[0], what="it has a host")
    return found


def state_of(made: Fleet) -> str:
    (one,) = made.server.snapshot()["deployments"]
    found: str = one["instances"][0]["observed_state"]
    return found


def bystander(made: Fleet) -> str:
    taken = holder(made)
    return next(name for name in NAMES if name != taken)


@pytest.mark.parametrize("after", [ACCEPTED, pytest.param(READY, marks=pytest.mark.faults)])
def test_another_host_is_killed(made, shared, after):
    lines = []
    with running(shared[1], made.root) as (process, coming):
        for line in coming:
            lines.append(line)
            if line.startswith(after):
                made.hosts[bystander(made)].kill()
        status = process.wait(10)

    assert status == 0, lines
    assert differs(lines) is None, lines
    assert made.server.snapshot()["deployments"] == []


@pytest.mark.faults
@pytest.mark.parametrize("after", [CREATED, ACCEPTED, READY])
def test_the_host_of_the_model_is_killed_and_comes_back(made, shared, after):
    """Until it is back nothing is decided about its engine: a start, or a stop, waits for it."""
    lines, server = [], made.server
    with running(shared[1], made.root) as (process, coming):
        for line in coming:
            lines.append(line)
            if line.startswith(after):
                host = made.hosts["a" if after == CREATED else holder(made)]
                if after != CREATED:
                    wait_until(host.engines, what="its engine is there")
                host.kill()
                server.wait_host(host.name, "offline")
                if after != CREATED:  # Before that the start may have gone to any of them.
                    wait_until(lambda: state_of(made) in ("uncertain", "stopping"), what="it waits")
                host.start()
        status = process.wait(10)

    assert status == 0, lines
    assert differs(lines) is None, lines
    assert server.snapshot()["deployments"] == []
    assert not any(host.engines() for host in made.hosts.values())
