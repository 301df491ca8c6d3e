"""A server serves models that run on its hosts: the page's script, placing, draining."""

from __future__ import annotations

import pytest

from capyctl.simulated.checkpoint_writer import write_checkpoint
from tests.e2e.daemon import wait_until
from tests.e2e.multi.fleet import fleet
from tests.e2e.page import default_ports, differs, run_script, script_on_a_server

pytestmark = pytest.mark.slow


def test_the_pages_script_runs_on_the_server(tmp_path):
    script = script_on_a_server(tmp_path)
    write_checkpoint(tmp_path / "models" / "Qwen3-4B", weights_bytes=8 << 30)
    with default_ports() as stranger:
        if stranger is not None:
            pytest.skip(stranger)
        with fleet(tmp_path, "gpu-box", plain=True) as made:
            status, lines = run_script(script, tmp_path)
            left = made.hosts["gpu-box"].engines()
            deployments = made.server.snapshot()["deployments"]

    assert status == 0, lines
    assert differs(lines) is None, lines
    assert left == {}
    assert deployments == []


def test_instances_spread_over_hosts_and_a_drain_moves_them(tmp_path):
    with fleet(tmp_path, "a", "b", "c") as made:
        server = made.server
        id = server.create("model", instances=2)
        server.wait_measured(id, 3)
        server.do(id, "start")
        server.wait_all_ready(id)
        first = server.hosts_of(id)

        answers = [server.chat("model").status for _ in range(6)]

        assert len(set(first)) == 2
        assert answers == [200] * 6
        drained = first[0]
        receipt = made.on_server("drain", "host", drained, "--wait")
        assert receipt["stops"] == "done"
        assert made.hosts[drained].engines() == {}
        server.wait_all_ready(id)
        wait_until(lambda: drained not in server.hosts_of(id), what="it left the drained host")
        assert server.chat("model").status == 200
        listed = {one["name"]: one for one in made.on_server("list", "hosts")["hosts"]}
        assert not listed[drained]["eligible"]
        assert listed[drained]["drained"]
        made.on_server("undrain", "host", drained)
        assert server.hosts()[drained]["eligible"]


LARGE_MIB = 8192
"""Of weights: two such models do not fit on a card, with what comes with them."""


def test_a_start_in_line_goes_to_a_host_that_was_measured_later(tmp_path):
    with fleet(tmp_path, "a", "b") as made:
        server = made.server
        full = server.create("full", LARGE_MIB, host="a")
        server.wait_measured(full, 1)
        server.do(full, "start")
        server.wait_all_ready(full)
        made.hosts["b"].kill()
        server.wait_host("b", "offline")
        id = server.create("model", LARGE_MIB)
        server.wait_measured(id, 1)
        server.do(id, "preinitialize")
        wait_until(lambda: shown(server, id) == "queued", what="its only host is full")

        made.hosts["b"].start()

        wait_until(lambda: shown(server, id) == "parked", what="it was started where room is")


def shown(server, id: str) -> str:
    return server.deployment(id)["observed_state"]


ENGINE = """#!/bin/sh
echo "version: 0.6.0 (build 1, commit abc)" >&2
"""


@pytest.fixture(scope="module")
def one(tmp_path_factory):
    with fleet(tmp_path_factory.mktemp("one"), "a") as made:
        yield made


def test_an_engine_that_is_added_on_a_host_is_there_on_the_server(one, tmp_path):
    server, host = one.server, one.hosts["a"]
    program = tmp_path / "llama" / "llama-server"
    program.parent.mkdir()
    program.write_text(ENGINE)
    program.chmod(0o755)

    added = one.cli(host, "engine", "add", str(program), "--name", "mine")

    def published() -> bool:
        return "mine" in [one["name"] for one in server.hosts()["a"]["profiles"]]

    assert added["published"] == "published"
    wait_until(published, what="the server knows it")
    rows = one.on_server("list", "engines")["engines"]
    assert {"host": "a", "profile": "mine"}.items() <= next(
        row for row in rows if row["profile"] == "mine"
    ).items()
    one.cli(host, "engine", "remove", "mine")
    wait_until(lambda: not published(), what="the server knows it no more")


def test_every_model_of_a_host_that_says_so_is_explicit(one):
    server, host = one.server, one.hosts["a"]
    assert host.stop() == 0
    server.wait_host("a", "suspended")
    host.sets = ("lifecycle.activation=explicit", "resource_policy.labels.zone=x")
    host.start()
    server.wait_host("a", "online")
    id = server.create("model", placement={"selector": {"zone": "x"}})
    server.wait_measured(id, 1)

    answer = server.chat("model")

    assert answer.status == 409
    assert answer.json()["code"] == "deployment_inactive"
    assert server.deployment(id)["activation"] == "explicit"
