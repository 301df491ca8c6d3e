"""A host at a server that is not its own: refused in words on both sides, seldom, and undone."""

from __future__ import annotations

import json
import shutil
import time
from pathlib import Path

import pytest

from tests.e2e.daemon import wait_until
from tests.e2e.multi.cable import Cable, cable
from tests.e2e.multi.fleet import Fleet, Host, Server, fleet

pytestmark = pytest.mark.slow

WATCHED_S = 6.0
DIALS_MAX = 8
"""In that time: pauses double from a quarter of a second to five, half of them by chance."""
AT_ONCE_MAX = 2
"""Descriptors of what is under way while they are counted."""


@pytest.fixture(scope="module")
def ours(tmp_path_factory):
    with fleet(tmp_path_factory.mktemp("ours"), "a") as made:
        yield made


@pytest.fixture(scope="module")
def theirs(tmp_path_factory):
    root = tmp_path_factory.mktemp("theirs")
    with fleet(root, server=Server(root, simulate="", address="127.0.1.2")) as made:
        yield made


def dialled(host: Host, address: str | None = None) -> str:
    """The control address in its identity; another one from now on, if it is said."""
    path = host.state / "identity" / "host.json"
    fields = json.loads(path.read_text())
    found: str = fields["control_address"]
    if address is not None:
        path.write_text(json.dumps({**fields, "control_address": address}))
    return found


def said(log: list[dict], event: str) -> list[str]:
    return [one["fields"]["why"] for one in log if one["event"] == event]


def server_log(made: Fleet) -> list[dict]:
    lines = made.server.log_path.read_text().splitlines()
    return [json.loads(line) for line in lines if line.startswith("{")]


def open_count(role: Host | Server) -> int:
    """Descriptors of its process."""
    assert role.process is not None
    return len(list(Path(f"/proc/{role.process.pid}/fd").iterdir()))


def watch(wire: Cable) -> int:
    """How often it was dialled in a while."""
    began, until_s = wire.taken_count, time.monotonic() + WATCHED_S
    wait_until(lambda: time.monotonic() > until_s, what="a while")
    return wire.taken_count - began


def test_a_host_at_another_server_is_refused_in_words_by_both(ours, theirs):
    host, server = ours.hosts["a"], ours.server
    id = server.create("model", weights_mib=64)
    server.wait_measured(id, 1)
    server.do(id, "start")
    server.wait_all_ready(id)
    before = host.engines()
    assert host.stop() == 0
    with cable((theirs.server.address, theirs.server.control)) as wire:
        own = dialled(host, f"https://127.0.0.1:{wire.port}")
        host.start()
        wait_until(lambda: wire.taken_count > 1, what="it has dialled")
        before_fds = open_count(host), open_count(theirs.server)
        dials_count = watch(wire)
        after_fds = open_count(host), open_count(theirs.server)
        unwell = ours.cli(host, "doctor", "host", status=2)
        assert host.stop() == 0
    told = said(host.log(), "link_down")
    refused = said(server_log(theirs), "link_connection_refused")

    assert 1 <= dials_count <= DIALS_MAX
    for before_count, after_count in zip(before_fds, after_fds, strict=True):
        assert after_count <= before_count + AT_ONCE_MAX
    assert len(told) == 1, "each reason once"
    assert "from another authority" in told[0]
    assert "join" in told[0], "what to do"
    assert unwell["message"].endswith(": server")
    assert len(refused) == 1, refused
    assert "it belongs to another server" in refused[0]
    assert theirs.server.hosts() == {}
    assert host.engines() == before
    dialled(host, own)
    host.start()
    server.wait_host("a", "online")
    server.wait_all_ready(id)
    assert host.engines() == before


@pytest.mark.faults
def test_a_host_of_a_server_that_was_set_up_anew_joins_again_as_it_is_told(tmp_path):
    """What ran for the former one is ended: nobody knows of it any more."""
    with fleet(tmp_path, "a") as made:
        server, host = made.server, made.hosts["a"]
        id = server.create("model", weights_mib=64)
        server.wait_measured(id, 1)
        server.do(id, "start")
        server.wait_all_ready(id)
        former = host.engines()
        assert len(former) == 1
        assert server.stop() == 0
        shutil.rmtree(server.state)
        server.start()
        told = wait_until(
            lambda: [one for one in said(host.log(), "link_down") if "another authority" in one],
            what="it is told whom it dials",
        )
        assert "move this machine's `identity` folder away and join again" in told[0]
        assert host.engines() == former
        assert host.stop() == 0

        (host.state / "identity").rename(host.state / "identity-of-before")
        made.join(host)
        host.start()

        server.wait_host("a", "online")
        wait_until(lambda: host.engines() == {}, what="the former engine is gone")
        id = server.create("model", weights_mib=64)
        server.wait_measured(id, 1)
        server.do(id, "start")
        server.wait_all_ready(id)
        assert server.chat("model").status == 200
