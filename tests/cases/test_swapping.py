"""Queues, swaps and idle timers: nobody is lost, nothing moves that nobody asked for."""

import contextlib
import threading
import time

import pytest

from tests.cases.scenes import BIG_MIB, Clients, kill_engines, ready, seen
from tests.e2e.daemon import running, simulation, wait_until
from tests.e2e.streams import chat_stream, send_chat

pytestmark = pytest.mark.slow

IDLE = "server.lifecycle_defaults.ready_idle_timeout="


def states(daemon):
    return {d["name"]: d["observed_state"] for d in daemon.snapshot()["deployments"]}


def test_a_request_that_meets_the_end_of_an_idle_model_is_served(tmp_path):
    """At every moment around the idle stop: before it, during it, after it."""
    engines = {"load_s": 0.1}
    sets = (IDLE + "400ms",)
    with running(tmp_path, simulate=simulation(engines=engines), sets=sets) as daemon:
        ready(daemon, "a", residency="restart_only")
        clients = Clients()
        for round_s in (0.30, 0.36, 0.40, 0.44, 0.50):
            assert daemon.chat("a", max_tokens=1).status == 200
            clients.begin_at([round_s], lambda: daemon.chat("a", max_tokens=1))
            clients.statuses()
        statuses = clients.statuses()
        stops = seen(daemon, "ordinary_cleanup_armed")
    assert statuses == [200] * 5
    assert stops, "the idle timer never took part"


def test_looking_on_does_not_keep_a_model_awake(tmp_path):
    with running(tmp_path, simulate=simulation(), sets=(IDLE + "500ms",)) as daemon:
        ready(daemon, "a")
        until_s = time.monotonic() + 10
        while states(daemon)["a"] != "parked":
            for path in ("/v1/models", "/health", "/metrics", "/upstream/a/app.css"):
                daemon.ask("GET", path)
            assert time.monotonic() < until_s, "pollers keep it awake"
        # Twice the idle time: a second timer would show by now.
        time.sleep(1.0)
        parks = seen(daemon, "parked_committed")
        begun = seen(daemon, "restore_accepted")
    assert len(parks) == 1
    assert begun == []


def test_a_model_that_was_adopted_idle_is_parked_in_its_turn(tmp_path):
    with running(tmp_path, simulate=simulation(), sets=(IDLE + "2s",)) as daemon:
        ready(daemon, "a")
        daemon.kill()
        daemon.start()
        wait_until(lambda: states(daemon)["a"] == "parked", what="the adopted engine is parked")
        launched = seen(daemon, "initialize_armed")
    assert len(launched) == 1


def test_a_crash_leaves_no_idle_timer_behind(tmp_path):
    with running(tmp_path, simulate=simulation(), sets=(IDLE + "1s",)) as daemon:
        (a,) = ready(daemon, "a")
        kill_engines(daemon)
        daemon.wait_state(a, "failed")
        time.sleep(1.5)
        still = daemon.deployment(a)["observed_state"]
        parks = seen(daemon, "park_accepted", "ordinary_cleanup_accepted")
    assert still == "failed"
    assert parks == []


def test_steady_traffic_does_not_keep_another_model_waiting(tmp_path):
    """A model that is asked without a pause still gives way after the window and the drain."""
    sets = ("host.resource_policy.queue.admission_window=500ms",)
    with running(tmp_path, simulate=simulation(), sets=sets) as daemon:
        ready(daemon, "b", "a", mib=BIG_MIB)
        over = threading.Event()
        lost = []

        def hammer():
            while not over.is_set():
                reply = daemon.chat("a", max_tokens=4)
                if reply.status != 200:
                    lost.append(reply)

        workers = [threading.Thread(target=hammer, daemon=True) for _ in range(2)]
        for worker in workers:
            worker.start()
        began_s = time.monotonic()
        reply = daemon.chat("b", max_tokens=4)
        took_s = time.monotonic() - began_s
        over.set()
        for worker in workers:
            worker.join(30)
    assert reply.status == 200
    assert took_s < 20.0
    assert lost == []


def test_options_of_a_request_never_load_a_model_again(tmp_path):
    with running(tmp_path, simulate=simulation()) as daemon:
        ready(daemon, "a")
        answers = [
            daemon.chat("a", max_tokens=1, num_ctx=1024 << (n % 2), max_context=2048).status
            for n in range(20)
        ]
        launched = seen(daemon, "initialize_armed")
    assert answers == [200] * 20
    assert len(launched) == 1


def test_a_model_that_crashes_on_start_is_not_tried_for_nobody(tmp_path):
    bad = {"load_s": 0.4, "faults": {"dies_while_loading": True}}
    with running(tmp_path, simulate=simulation(models={"a": bad})) as daemon:
        a = daemon.create("a", 1024)
        with contextlib.closing(send_chat(daemon, "a")):
            daemon.wait_state(a, "starting")
        failed = daemon.wait_state(a, "failed")
        time.sleep(1.0)
        launched = seen(daemon, "initialize_armed")
        processes = daemon.engines()
    assert len(launched) == 1
    assert processes == []
    assert failed["instances"][0]["last_error"].startswith("launch_failed: ")


def test_a_request_that_hangs_holds_up_neither_a_stop_nor_another_model(tmp_path):
    faults = {"faults": {"stall_at_token": 20}}
    document = simulation(models={"a": faults}, gpus=2)
    sets = ("server.switching.drain_timeout=1s",)
    with running(tmp_path, simulate=document, sets=sets) as daemon:
        (a,) = ready(daemon, "a")
        daemon.create("b", 1024)
        with chat_stream(daemon, "a") as stream:
            stream.read(2)
            daemon.do(a, "stop")
            served = daemon.chat("b", max_tokens=1)
            daemon.wait_state(a, "stopped")
            stream.read()
        left = [one for one in daemon.engines() if "/a" in one.argv]
    assert served.status == 200
    assert left == []
    assert not stream.is_complete
