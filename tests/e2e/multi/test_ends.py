"""Processes that end without a word, one by one and together: engines are kept, and proven."""

from __future__ import annotations

import os
import signal
import time

import pytest

from tests.e2e.daemon import wait_until
from tests.e2e.multi.fleet import LOST_S, Fleet, Server, fleet

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def shared(tmp_path_factory):
    with fleet(tmp_path_factory.mktemp("ends"), "a") as made:
        server = made.server
        id = server.create("model")
        server.wait_measured(id, 1)
        server.do(id, "start")
        yield made, id


@pytest.fixture
def made(shared):
    return shared[0]


@pytest.fixture
def id(shared):
    """A model that serves on the one host. Each test leaves it so."""
    found, id = shared
    if found.server.process is None:
        found.server.start()
    if found.hosts["a"].process is None:
        found.hosts["a"].start()
    found.server.wait_all_ready(id)
    assert found.server.chat("model").status == 200
    return id


def state_of(made: Fleet, id: str) -> str:
    found = made.server.deployment(id)
    assert found is not None
    return found["instances"][0]["observed_state"]


def gone_on(made: Fleet, id: str, before: dict[int, str]) -> None:
    """The same engine serves again; none was launched beside it."""
    server, host = made.server, made.hosts["a"]
    server.wait_host("a", "online")
    server.wait_all_ready(id)
    # A host may be back before it was missed: until its ingress listens, it is not reached.
    wait_until(lambda: server.chat("model").status == 200, what="an answer")

    assert host.engines() == before


def test_a_host_that_is_killed_comes_back_to_its_engines(made, id):
    host = made.hosts["a"]
    before = host.engines()
    host.kill()
    made.server.wait_host("a", "offline")
    wait_until(lambda: state_of(made, id) == "uncertain", what="its engine is uncertain")
    assert made.server.chat("model").status == 503

    host.start()

    gone_on(made, id, before)


@pytest.mark.faults
def test_a_host_that_is_back_soon_is_not_missed(made, id):
    host = made.hosts["a"]
    before = host.engines()
    host.kill()

    host.start()

    gone_on(made, id, before)


@pytest.mark.faults
def test_a_server_that_is_killed_comes_back_to_its_hosts(made, id):
    before = made.hosts["a"].engines()
    made.server.kill()

    made.server.start()

    gone_on(made, id, before)


def test_both_are_killed(made, id):
    host = made.hosts["a"]
    before = host.engines()
    made.server.kill()
    host.kill()

    host.start()
    made.server.start()

    gone_on(made, id, before)


@pytest.mark.faults
def test_an_engine_that_ended_meanwhile_is_started_again_on_demand(made, id):
    host = made.hosts["a"]
    (before,) = host.engines()
    host.kill()
    os.killpg(before, signal.SIGKILL)
    host.start()
    made.server.wait_host("a", "online")

    answer = wait_until(
        lambda: (found := made.server.chat("model")).status == 200 and found, what="an answer"
    )

    assert answer.status == 200
    (after,) = host.engines()
    assert after != before
    assert made.server.deployment(id)["observed_state"] == "ready"


@pytest.mark.faults
def test_an_orderly_stop_of_both_leaves_the_engines(made, id):
    host = made.hosts["a"]
    before = host.engines()
    assert host.stop() == 0
    assert made.server.stop() == 0
    assert host.engines() == before

    made.server.start()
    host.start()

    gone_on(made, id, before)


@pytest.mark.parametrize("lost", [pytest.param(False, marks=pytest.mark.faults), True])
def test_a_half_open_link(made, id, lost):
    """Frozen for less than it takes to be lost, and for longer."""
    host, server = made.hosts["a"], made.server
    before = host.engines()
    host.freeze()
    server.wait_host("a", "suspended")
    assert server.chat("model").status == 503
    if lost:
        server.wait_host("a", "offline")
        wait_until(lambda: state_of(made, id) == "uncertain", what="its engine is uncertain")

    host.thaw()

    gone_on(made, id, before)


@pytest.mark.faults
def test_a_server_that_stands_still_takes_its_hosts_in_again(made, id):
    """Its own silence is theirs to it: once it goes on, each has to be heard anew."""
    host, server = made.hosts["a"], made.server
    before = host.engines()
    assert server.process is not None
    server.process.send_signal(signal.SIGSTOP)
    downs_count = sum(one["event"] == "link_down" for one in host.log())
    since_s = time.monotonic()
    wait_until(lambda: time.monotonic() - since_s > 2 * LOST_S, what="it would be lost")

    server.process.send_signal(signal.SIGCONT)

    gone_on(made, id, before)
    assert sum(one["event"] == "link_down" for one in host.log()) > downs_count


@pytest.mark.faults
def test_a_host_that_stands_still_for_forty_seconds(tmp_path):
    """By the times that are in force where no document says others."""
    server = Server(tmp_path, simulate="", suspend_s=5.0, lost_s=30.0)
    with fleet(tmp_path, "a", "b", server=server) as made:
        host = made.hosts["a"]
        ids = {}
        for name in ("ready", "parked"):
            ids[name] = server.create(name, weights_mib=1024, host="a")
            server.wait_measured(ids[name], 1)
            server.do(ids[name], "start")
            server.wait_all_ready(ids[name])
        server.do(ids["parked"], "park")
        server.wait_state(ids["parked"], "parked")
        before = host.engines()
        host.freeze()
        since_s = time.monotonic()
        server.wait_host("a", "offline", within_s=45.0)
        assert time.monotonic() - since_s > 29.0
        for one in ids.values():
            wait_until(lambda one=one: state_of(made, one) == "uncertain", what="it is uncertain")
        wait_until(lambda: time.monotonic() - since_s > 40.0, what="forty seconds")

        host.thaw()

        server.wait_host("a", "online", within_s=10.0)
        server.wait_all_ready(ids["ready"])
        wait_until(lambda: server.chat("ready").status == 200, what="an answer", within_s=10.0)
        assert state_of(made, ids["parked"]) == "parked"
        assert server.chat("parked").status == 200
        assert host.engines() == before
        assert server.hosts()["a"]["state"] == "online"
        ended = [one for one in host.log() if one["level"] == "error"]
        assert ended == []
