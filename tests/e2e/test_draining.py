"""A standalone machine that is drained: what runs is stopped, and nothing starts before its end."""

import json

import pytest

from tests.e2e.daemon import running, wait_until
from tests.e2e.multi.fleet import run_command

pytestmark = pytest.mark.slow


def code_of(reply):
    return reply.status, json.loads(reply.body)["error"]["code"]


def own(daemon):
    (host,) = daemon.get("/hosts").json()["hosts"]
    return host


def test_a_drained_machine_runs_nothing_until_it_is_undrained(tmp_path):
    with running(tmp_path) as daemon:
        id = daemon.create("m", 1024)
        daemon.do(id, "start")
        daemon.wait_state(id, "ready")

        used = {one["name"]: one["deployments"] for one in own(daemon)["profiles"]}
        assert (used["vllm"], used["sglang"]) == (["m"], [])

        receipt = run_command(daemon.state, "drain", "standalone", "--wait")

        assert (receipt["stops"], receipt["instances"]) == ("done", 0)
        assert daemon.engines() == []
        assert own(daemon)["drained"]
        assert not own(daemon)["eligible"]
        assert "capyctl undrain standalone" in own(daemon)["ineligible_reason"]
        assert daemon.chat("m").status == 503
        other = daemon.create("other", 1024)
        wait_until(
            lambda: code_of(daemon.act(other, "start")) == (503, "host_ineligible"),
            what="a start is refused, once the files are measured",
        )

        daemon.kill()
        daemon.start()

        assert own(daemon)["draining"], "a drain outlives a restart"
        assert code_of(daemon.act(other, "start")) == (503, "host_ineligible")
        assert daemon.engines() == []

        run_command(daemon.state, "undrain", "standalone")

        assert own(daemon)["eligible"]
        daemon.do(other, "start")
        daemon.wait_state(other, "ready")
        assert daemon.chat("m").status == 200


def test_a_standalone_machine_is_not_revoked(tmp_path):
    with running(tmp_path) as daemon:
        name = own(daemon)["name"]
        refused = run_command(daemon.state, "revoke", "host", name, status=5)

    assert refused["code"] == "unsupported_capability"
