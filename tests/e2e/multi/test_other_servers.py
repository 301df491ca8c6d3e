"""A host at a server that is not its own: refused in words on both sides, seldom, and undone."""

from __future__ import annotations

import json
import time

import pytest

from tests.e2e.daemon import wait_until
from tests.e2e.multi.cable import Cable, cable
from tests.e2e.multi.fleet import Fleet, Host, Server, fleet

pytestmark = pytest.mark.slow

WATCHED_S = 6.0
DIALS_MAX = 8
"""In that time: pauses double from a quarter of a second to five, half of them by chance."""


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
        dials_count = watch(wire)
        unwell = ours.cli(host, "doctor", "host", status=2)
        assert host.stop() == 0
    told = said(host.log(), "link_down")
    refused = said(server_log(theirs), "link_connection_refused")

    assert 2 <= dials_count <= DIALS_MAX
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
