"""State put back from an older backup, a server's and a host's: what runs is the truth."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.e2e.daemon import wait_until
from tests.e2e.multi.fleet import fleet

pytestmark = [pytest.mark.slow, pytest.mark.faults]


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    with fleet(tmp_path_factory.mktemp("restored"), "a") as made:
        yield made


def put_back(kept: Path, state: Path) -> None:
    shutil.rmtree(state)
    shutil.copytree(kept, state, symlinks=True)


def started(made, name: str) -> str:
    id = made.server.create(name, weights_mib=1024)
    made.server.wait_measured(id, 1)
    made.server.do(id, "start")
    made.server.wait_all_ready(id)
    return id


def engines_of(made, name: str) -> dict[int, str]:
    found = made.hosts["a"].engines()
    return {pid: argv for pid, argv in found.items() if f"/{name}" in argv}


def test_a_server_from_an_older_backup_keeps_what_it_knows_and_ends_the_rest(made, tmp_path):
    server = made.server
    known = started(made, "known")
    before = engines_of(made, "known")
    incarnation = server.snapshot()["cursor"].partition(":")[0]
    assert server.stop() == 0
    kept = tmp_path / "kept"
    shutil.copytree(server.state, kept, symlinks=True)
    server.start()
    server.wait_host("a", "online")
    later = started(made, "later")
    assert len(engines_of(made, "later")) == 1
    assert server.stop() == 0

    put_back(kept, server.state)
    server.start()

    server.wait_host("a", "online")
    server.wait_all_ready(known)
    wait_until(lambda: engines_of(made, "later") == {}, what="the engine nobody knows is gone")
    assert engines_of(made, "known") == before
    wait_until(lambda: server.chat("known").status == 200, what="an answer")
    assert server.snapshot()["cursor"].partition(":")[0] != incarnation
    assert server.deployment(later) is None
    server.do(known, "stop")
    server.wait_state(known, "stopped")


def test_a_host_from_an_older_backup_has_its_engines_proven(made, tmp_path):
    server, host = made.server, made.hosts["a"]
    server.wait_host("a", "online")
    assert host.stop() == 0
    kept = tmp_path / "kept"
    shutil.copytree(host.state, kept, symlinks=True)
    host.start()
    server.wait_host("a", "online")
    id = started(made, "since")
    before = engines_of(made, "since")
    assert host.stop() == 0

    put_back(kept, host.state)
    host.start()

    server.wait_host("a", "online")
    server.wait_all_ready(id)
    wait_until(lambda: server.chat("since").status == 200, what="an answer")
    assert engines_of(made, "since") == before
    assert len(before) == 1
    server.do(id, "stop")
    server.wait_state(id, "stopped")
    assert engines_of(made, "since") == {}
