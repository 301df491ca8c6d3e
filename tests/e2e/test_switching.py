"""Requests that set models moving: switches, wakes and starts that many wait for."""

import time

import pytest

from tests.e2e.daemon import running, simulation, wait_until
from tests.e2e.streams import Crowd, all_at_once, chat_stream, events, send_chat

pytestmark = pytest.mark.slow

BIG_MIB = 8192
"""Two of these do not fit one card."""


def kinds(daemon, kind, after=None):
    return [e for e in events(daemon, after) if e.kind == kind]


def waiting_count(daemon, id):
    load = daemon.get(f"/metrics/load?deployment={id}").json()
    return load["deployments"][0]["router"]["waiting"]


def ready(daemon, *names, mib=BIG_MIB, **document):
    """Deployments of these names; the last one is ready."""
    ids = [daemon.create(name, mib, **document) for name in names]
    daemon.do(ids[-1], "start")
    daemon.wait_state(ids[-1], "ready")
    return ids


def test_a_stream_is_never_cut_by_a_switch(tmp_path):
    slow = {"tokens_per_s": 20, "reply_tokens": 50}
    with running(tmp_path, simulate=simulation(models={"a": slow})) as daemon:
        b, a = ready(daemon, "b", "a")
        alone = daemon.chat("a").json()["choices"][0]["message"]["content"]
        with chat_stream(daemon, "a") as stream, Crowd(2) as crowd:
            stream.read(2)
            other = crowd.do(daemon.chat, "b")
            wait_until(lambda: waiting_count(daemon, b) == 1, what="b waits")
            stream.read()
            answer = other.result(30)
            served_s = time.monotonic()
        states = {d["name"]: d["observed_state"] for d in daemon.snapshot()["deployments"]}
        seen = [e.kind for e in events(daemon)]
    assert stream.is_complete
    assert not stream.is_cut
    assert stream.text == alone
    assert answer.status == 200
    assert stream.ended_s < served_s
    assert states == {"a": "parked", "b": "ready"}
    assert a
    switch = [kind for kind in seen if kind.startswith("switch_") or kind == "parked_committed"]
    assert switch == [
        "switch_planned",
        "switch_admission_closed",
        "parked_committed",
        "switch_released",
        "switch_completed",
    ]


def test_fifty_requests_wake_a_parked_model_once(tmp_path):
    with running(tmp_path, simulate=simulation(engines={"wake_s": 0.5})) as daemon:
        (a,) = ready(daemon, "a", mib=1024)
        daemon.do(a, "park")
        daemon.wait_state(a, "parked")
        launched = len(kinds(daemon, "initialize_armed"))
        replies = all_at_once(50, lambda _: daemon.chat("a", max_tokens=4))
        woken = kinds(daemon, "restored_committed")
        launched_after = len(kinds(daemon, "initialize_armed"))
    assert [r.status for r in replies] == [200] * 50
    assert len(woken) == 1
    assert launched_after == launched == 1


def test_fifty_requests_start_a_stopped_model_once(tmp_path):
    with running(tmp_path, simulate=simulation()) as daemon:
        daemon.create("a", 1024)
        replies = all_at_once(50, lambda _: daemon.chat("a", max_tokens=4))
        launched = kinds(daemon, "initialize_armed")
        engines = daemon.engines()
    assert [r.status for r in replies] == [200] * 50
    assert len(launched) == 1
    assert len(engines) == 1


def test_who_came_first_is_served_first(tmp_path):
    sets = ("host.resource_policy.queue.max_running_per_deployment=1",)
    slow = simulation(engines={"wake_s": 1.5})
    with running(tmp_path, simulate=slow, sets=sets) as daemon:
        (a,) = ready(daemon, "a", mib=1024)
        daemon.do(a, "park")
        daemon.wait_state(a, "parked")
        served = []

        def ask(index):
            assert daemon.chat("a", max_tokens=8).status == 200
            served.append(index)

        with Crowd(8) as crowd:
            for index in range(8):
                crowd.do(ask, index)
                wait_until(
                    lambda index=index: waiting_count(daemon, a) == index + 1,
                    what=f"{index} waits",
                )
            crowd.results()
    assert served == list(range(8))


def test_a_request_joins_the_start_of_an_operator(tmp_path):
    with running(tmp_path, simulate=simulation(engines={"load_s": 1.0})) as daemon:
        a = daemon.create("a", 1024)
        receipt = daemon.do(a, "start")
        daemon.wait_state(a, "starting")
        reply = daemon.chat("a")
        operations = [o for o in daemon.snapshot()["operations"] if o["action"] == "initialize"]
    assert reply.status == 200
    assert [o["id"] for o in operations] == [receipt["operation_id"]]
    assert operations[0]["state"] == "succeeded"


def test_an_operator_joins_the_start_of_a_request(tmp_path):
    with running(tmp_path, simulate=simulation(engines={"load_s": 1.0})) as daemon:
        a = daemon.create("a", 1024)
        with Crowd(1) as crowd:
            waiting = crowd.do(daemon.chat, "a")
            found = daemon.wait_state(a, "starting")
            receipt = daemon.do(a, "start")
            reply = waiting.result(30)
    assert reply.status == 200
    assert receipt["joined"] is True
    assert receipt["operation_id"] == found["latest_operation"]["id"]


@pytest.mark.parametrize("stays", [True, False])
def test_a_client_that_leaves_takes_only_itself_along(tmp_path, stays):
    with running(tmp_path, simulate=simulation(engines={"load_s": 1.0})) as daemon:
        a = daemon.create("a", 1024)
        leaving = send_chat(daemon, "a")
        wait_until(lambda: waiting_count(daemon, a) == 1, what="one waits")
        with Crowd(1) as crowd:
            if stays:
                waiting = crowd.do(daemon.chat, "a")
                wait_until(lambda: waiting_count(daemon, a) == 2, what="two wait")
            leaving.close()
            wait_until(lambda: waiting_count(daemon, a) == int(stays), what="it left")
            if stays:
                assert waiting.result(30).status == 200
        daemon.wait_state(a, "ready")
        launched = kinds(daemon, "initialize_armed")
        again = daemon.chat("a")
    assert len(launched) == 1
    assert again.status == 200


def test_a_failed_start_answers_all_who_wait_and_the_next_request_tries_anew(tmp_path):
    bad = {"load_s": 1.0, "faults": {"dies_while_loading": True, "first_launches": 1}}
    with running(tmp_path, simulate=simulation(models={"a": bad})) as daemon:
        a = daemon.create("a", 1024)
        replies = all_at_once(8, lambda _: daemon.chat("a"))
        failed = daemon.wait_state(a, "failed")
        again = daemon.chat("a")
        launched = kinds(daemon, "initialize_armed")
    for reply in replies:
        assert (reply.status, reply.json()["code"]) == (500, "activation_failed"), reply
        assert reply.json()["error"]["message"] == reply.json()["message"]
    assert failed["instances"][0]["last_error"].startswith("launch_failed: ")
    assert again.status == 200
    assert len(launched) == 2


def test_a_stream_that_waits_for_a_failing_start_gets_a_status(tmp_path):
    bad = {"faults": {"dies_while_loading": True, "exit_code": 7}}
    with running(tmp_path, simulate=simulation(models={"a": bad})) as daemon:
        daemon.create("a", 1024)
        with chat_stream(daemon, "a") as stream:
            answer = stream.open().answer
            body = answer.read().decode()
    assert answer.status == 500
    assert answer.headers["Content-Type"] == "application/json"
    assert "activation_failed" in body
    assert "exit code 7" in body


def test_only_an_action_starts_an_explicit_model(tmp_path):
    with running(tmp_path, simulate=simulation()) as daemon:
        a = daemon.create("a", 1024, lifecycle={"activation": "explicit"})
        refused = daemon.chat("a")
        daemon.do(a, "start")
        daemon.wait_state(a, "ready")
        served = daemon.chat("a")
        daemon.do(a, "park")
        daemon.wait_state(a, "parked")
        parked = daemon.chat("a")
        shown = daemon.deployment(a)
    assert (refused.status, refused.json()["code"]) == (409, "deployment_inactive")
    assert served.status == 200
    assert (parked.status, parked.json()["code"]) == (409, "deployment_inactive")
    assert shown["activation"] == "explicit"
    assert shown["observed_state"] == "parked"


def test_an_operator_s_stop_holds_until_a_start(tmp_path):
    with running(tmp_path, simulate=simulation()) as daemon:
        (a,) = ready(daemon, "a", mib=1024)
        daemon.do(a, "stop")
        at_once = daemon.chat("a")
        daemon.wait_state(a, "stopped")
        after = daemon.chat("a")
        daemon.do(a, "start")
        daemon.wait_state(a, "ready")
        again = daemon.chat("a")
    for reply in (at_once, after):
        assert (reply.status, reply.json()["code"]) == (409, "deployment_stopped")
    assert again.status == 200


def test_a_stop_during_a_start_answers_those_who_wait(tmp_path):
    with running(tmp_path, simulate=simulation(engines={"load_s": 20.0})) as daemon:
        a = daemon.create("a", 1024)
        with Crowd(3) as crowd:
            for _ in range(3):
                crowd.do(daemon.chat, "a")
            daemon.wait_state(a, "starting")
            wait_until(lambda: waiting_count(daemon, a) == 3, what="three wait")
            wait_until(daemon.engines, what="an engine loads")
            daemon.do(a, "stop")
            replies = crowd.results()
        daemon.wait_state(a, "stopped")
        left = daemon.engines()
        states = [e.data["payload"].get("to") for e in events(daemon)]
    assert [r.json()["code"] for r in replies] == ["deployment_stopped"] * 3
    assert left == []
    assert "ready" not in states


def test_nobody_may_wait_but_the_model_begins_to_load(tmp_path):
    sets = ("host.resource_policy.queue.max_pending_per_deployment=0",)
    with running(tmp_path, simulate=simulation(), sets=sets) as daemon:
        a = daemon.create("a", 1024)
        refused = daemon.chat("a")
        daemon.wait_state(a, "ready")
        served = daemon.chat("a")
    assert (refused.status, refused.json()["code"]) == (429, "queue_full")
    assert refused.headers["Retry-After"] == "1"
    assert refused.json()["retryable"] is True
    assert served.status == 200


def test_a_model_that_is_ready_waits_for_no_other(tmp_path):
    slow = {"load_s": 20.0}
    with running(tmp_path, simulate=simulation(models={"c": slow})) as daemon:
        c, _ = ready(daemon, "c", "a", mib=1024)
        daemon.do(c, "start")
        daemon.wait_state(c, "starting")
        began_s = time.monotonic()
        reply = daemon.chat("a", max_tokens=1)
        took_s = time.monotonic() - began_s
        still = daemon.deployment(c)["observed_state"]
    assert reply.status == 200
    assert took_s < 15.0
    assert still == "starting"


def test_taking_turns_at_once_is_few_switches(tmp_path):
    with running(tmp_path, simulate=simulation()) as daemon:
        ready(daemon, "b", "a")
        replies = all_at_once(12, lambda n: daemon.chat("ab"[n % 2], max_tokens=2))
        switches = kinds(daemon, "switch_completed")
    assert [r.status for r in replies] == [200] * 12
    assert len(switches) <= 2


def test_two_models_under_fire_never_lose_a_request(tmp_path):
    with running(tmp_path, simulate=simulation(engines={"tokens_per_s": 0})) as daemon:
        ready(daemon, "b", "a")

        def ask(worker):
            return [daemon.chat("ab"[(worker + n) % 2], max_tokens=2).status for n in range(6)]

        statuses = all_at_once(6, ask)
        switches = kinds(daemon, "switch_completed")
        failed = kinds(daemon, "switch_failed")
    assert statuses == [[200] * 6] * 6
    assert len(switches) >= 2
    assert failed == []


def test_looking_on_starts_nothing(tmp_path):
    with running(tmp_path, simulate=simulation()) as daemon:
        a = daemon.create("a", 1024)
        for path in ("/v1/models", "/health", "/metrics", "/upstream/a/app.css"):
            daemon.ask("GET", path)
        unknown = daemon.chat("b")
        state = daemon.deployment(a)["observed_state"]
        begun = kinds(daemon, "initialize_accepted")
    assert unknown.status == 404
    assert state == "stopped"
    assert begun == []
