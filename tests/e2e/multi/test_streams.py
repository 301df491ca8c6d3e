"""Answers that are on their way while a machine is cut off, lost, stopped or killed."""

from __future__ import annotations

import json

import pytest

from tests.e2e.daemon import wait_until
from tests.e2e.multi.cable import cable
from tests.e2e.multi.fleet import Fleet, Host, Server, fleet
from tests.e2e.streams import chat_stream

pytestmark = pytest.mark.slow

TOKENS = 125
SLOW = {"tokens_per_s": 25.0, "reply_tokens": TOKENS}
"""Five seconds of words: longer than it takes until a host is lost, and back."""
NAMES = ("a", "b")


@pytest.fixture(scope="module")
def shared(tmp_path_factory):
    """Two hosts with a slow model each; host a's link goes through a cable."""
    root = tmp_path_factory.mktemp("streams")
    server = Server(root, simulate="", suspend_s=1.0, lost_s=2.0)
    with fleet(root, server=server) as made, cable((server.address, server.control)) as wire:
        for name in NAMES:
            made.prepare(made.new(name, models=dict.fromkeys(NAMES, SLOW)))
        dials(made.hosts["a"], wire.port)
        ids = {}
        for name, host in made.hosts.items():
            host.start()
            server.wait_host(name, "online")
            ids[name] = server.create(name, weights_mib=64, host=name)
            server.wait_measured(ids[name], 1)
            server.do(ids[name], "start")
            server.wait_all_ready(ids[name])
        yield made, wire, ids


def dials(host: Host, port: int) -> None:
    """Have its link go to another port of this machine."""
    path = host.state / "identity" / "host.json"
    fields = {**json.loads(path.read_text()), "control_address": f"https://127.0.0.1:{port}"}
    path.write_text(json.dumps(fields))


@pytest.fixture
def made(shared):
    made, _, ids = shared
    for name, host in made.hosts.items():
        if host.process is None:
            host.start()
        made.server.wait_host(name, "online")
        made.server.wait_all_ready(ids[name])
        wait_until(lambda name=name: made.server.chat(name, max_tokens=1).status == 200, what=name)
    return made


@pytest.fixture
def wire(shared):
    return shared[1]


@pytest.fixture
def ids(shared):
    return shared[2]


def state_of(made: Fleet, id: str) -> str:
    found = made.server.deployment(id)
    assert found is not None
    return found["instances"][0]["observed_state"]


def in_flight(made: Fleet, id: str) -> int:
    rows = made.server.get("/metrics/load").json()["deployments"]
    return next(row["router"]["in_flight"] for row in rows if row["deployment_id"] == id)


@pytest.mark.faults
def test_a_stream_goes_on_while_its_hosts_link_is_cut(made, wire, ids):
    """Lost, for all that the server knows; the answer comes over another connection."""
    server = made.server
    with chat_stream(server, "a") as stream:
        stream.read(3)
        wire.pull_out()
        server.wait_host("a", "offline")
        wait_until(lambda: state_of(made, ids["a"]) == "uncertain", what="its engine is uncertain")
        beside, there = server.chat("b", max_tokens=1), server.chat("a", max_tokens=1)
        stream.read()
    wire.put_in()

    assert stream.is_complete
    assert (beside.status, there.status) == (200, 503)
    server.wait_host("a", "online")
    server.wait_all_ready(ids["a"])
    assert in_flight(made, ids["a"]) == 0


def test_a_stream_goes_on_while_its_host_is_lost_and_comes_back(made, wire, ids):
    server, host = made.server, made.hosts["a"]
    before = host.engines()
    with chat_stream(server, "a") as stream:
        stream.read(3)
        wire.pull_out()
        server.wait_host("a", "offline")
        wire.put_in()
        server.wait_host("a", "online")
        server.wait_all_ready(ids["a"])
        answer = server.chat("a", max_tokens=1)
        in_progress = in_flight(made, ids["a"])
        stream.read()

    assert answer.status == 200
    assert in_progress == 1
    assert stream.is_complete
    assert host.engines() == before
    wait_until(lambda: in_flight(made, ids["a"]) == 0, what="its slot is free")


@pytest.mark.faults
def test_a_stream_of_a_host_that_stands_still_waits_for_it(made, ids):
    server, host = made.server, made.hosts["b"]
    with chat_stream(server, "b") as stream:
        stream.read(3)
        host.freeze()
        server.wait_host("b", "offline")
        beside = server.chat("a", max_tokens=1)
        host.thaw()
        stream.read()

    assert beside.status == 200
    assert stream.is_complete
    server.wait_host("b", "online")


@pytest.mark.parametrize("killed", ["a", pytest.param("b", marks=pytest.mark.faults)])
def test_a_stream_ends_with_its_host_and_with_no_other(made, ids, killed):
    server = made.server
    other = "b" if killed == "a" else "a"
    before = made.hosts[killed].engines()
    with chat_stream(server, killed) as lost, chat_stream(server, other) as kept:
        lost.read(3)
        kept.read(3)
        made.hosts[killed].kill()
        lost.read()
        assert server.chat(other, max_tokens=1).status == 200
        server.wait_host(killed, "offline")
        assert server.chat(other, max_tokens=1).status == 200
        kept.read()

    assert kept.is_complete
    assert lost.is_cut
    assert not lost.is_complete
    assert json.loads(lost.lines[-1])["code"] == "engine_error"
    made.hosts[killed].start()
    server.wait_host(killed, "online")
    server.wait_all_ready(ids[killed])
    assert made.hosts[killed].engines() == before
    assert server.chat(killed, max_tokens=1).status == 200
    wait_until(lambda: in_flight(made, ids[killed]) == 0, what="its slot is free", within_s=10.0)
