"""How a wait ends when the model does not come: what is said, and who serves on."""

from __future__ import annotations

import os
import signal

import pytest

from tests.cases.scenes import BIG_MIB, ready
from tests.e2e.daemon import running, simulation
from tests.e2e.streams import chat_stream, events
from tests.e2e.truth import check_truth, settle

pytestmark = pytest.mark.slow


def told(reply):
    return reply.status, reply.json()["code"]


def test_a_switch_whose_drain_takes_too_long_fails_and_its_victim_serves_on(tmp_path):
    slow = {"tokens_per_s": 10, "reply_tokens": 60}
    sets = ("server.switching.drain_timeout=1s", "host.resource_policy.queue.admission_window=1s")
    with running(tmp_path, simulate=simulation(models={"a": slow}), sets=sets) as daemon:
        _, a = ready(daemon, "b", "a", mib=BIG_MIB)
        (engine,) = daemon.engines()
        with chat_stream(daemon, "a") as stream:
            stream.read(2)
            failed = daemon.chat("b", max_tokens=1)
            beside = daemon.chat("a", max_tokens=1)
            stream.read()
        found = daemon.wait_state(a, "ready")
        after = [one.pid for one in daemon.engines()]
        switches = [
            e.data["payload"]["detail"] for e in events(daemon) if e.kind == "switch_failed"
        ]
        settle(daemon)
        check_truth(daemon)
    message = failed.json()["message"]
    assert told(failed) == (503, "unavailable")
    assert failed.json()["retryable"] is True
    assert message == (
        "`b` could not be switched to: a did not give way: 1 request still ran when the drain "
        "of 1 s ended; answers are never cut"
    )
    assert [detail in message for detail in switches] == [True]
    assert beside.status == 200
    assert stream.is_complete
    assert after == [engine.pid]
    assert found["instances"][0]["operator_stopped"] is False


@pytest.mark.parametrize("whose", ["deployment", "machine"])
def test_an_explicit_model_whose_engine_ended_is_not_started_by_a_request(tmp_path, whose):
    sets = ("host.lifecycle.activation=explicit",) if whose == "machine" else ()
    document = {"lifecycle": {"activation": "explicit"}} if whose == "deployment" else {}
    with running(tmp_path, simulate=simulation(), sets=sets) as daemon:
        (a,) = ready(daemon, "a", **document)
        (engine,) = daemon.engines()
        os.killpg(engine.group, signal.SIGKILL)
        daemon.wait_state(a, "failed")
        refused = daemon.chat("a", max_tokens=1)
        settle(daemon)
        left = daemon.engines()
        shown = daemon.deployment(a)
        daemon.do(a, "start")
        daemon.wait_state(a, "ready")
        served = daemon.chat("a", max_tokens=1)
    assert told(refused) == (409, "deployment_inactive")
    assert left == []
    assert (shown["activation"], shown["observed_state"]) == ("explicit", "failed")
    assert served.status == 200


def test_without_waiting_an_explicit_model_is_still_inactive(tmp_path):
    sets = ("host.resource_policy.queue.max_pending_per_deployment=0",)
    explicit = {"lifecycle": {"activation": "explicit"}}
    with running(tmp_path, simulate=simulation(), sets=sets) as daemon:
        a = daemon.create("a", 1024, **explicit)
        refused = daemon.chat("a")
        settle(daemon)
        shown = daemon.deployment(a)
    assert told(refused) == (409, "deployment_inactive")
    assert shown["observed_state"] == "stopped"
