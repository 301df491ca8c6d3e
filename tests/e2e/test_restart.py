"""A daemon that is killed, stopped or started twice: nothing accepted is lost, no engine either."""

import contextlib
import hashlib
import os
import random
import signal
import sqlite3
import time

import pytest

from tests.e2e.daemon import Daemon, running, simulation, wait_until
from tests.e2e.streams import chat_stream, events
from tests.e2e.truth import check_truth, settle, wait_gone
from tests.e2e.workload import Model, Workload, check_accepted, replay

pytestmark = pytest.mark.slow

MIB_OF = {"small": 1024, "large": 8192, "other": 8192}


def models(daemon):
    found = []
    for name, mib in MIB_OF.items():
        document = {"name": name, "engine": "vllm", "model": name}
        found.append(Model(daemon.create(name, mib), document))
    return found


def killed_under_load(root, *, kills, seed):
    """Kill the daemon ``kills`` times at random moments of a workload; all is checked each time."""
    rng = random.Random(seed)
    simulate = simulation(engines={"load_s": 0.1, "park_s": 0.05, "wake_s": 0.05})
    with running(root, simulate=simulate) as daemon:
        playing = models(daemon)
        sent = []
        for round in range(kills):
            work = Workload(daemon, playing, seed=seed * 1000 + round)
            work.start()
            time.sleep(rng.uniform(0.05, 1.5))  # the moment is what is tested
            daemon.kill()
            work.stop()
            daemon.start()
            for one in work.sent:
                if one.reply is None:
                    one.reply = replay(daemon, one)
            sent += work.sent
            check_accepted(daemon, sent[-60:])
            settle(daemon)
            check_truth(daemon)
        stop_all(daemon, playing)
        check_accepted(daemon, sent)


def stop_all(daemon, playing):
    for model in playing:
        daemon.do(model.id, "stop")
    for model in playing:
        daemon.wait_state(model.id, "stopped")
    snapshot = settle(daemon)
    assert daemon.engines() == []
    still = [o for o in snapshot["operations"] if o["state"] in ("pending", "running")]
    assert still == []
    check_truth(daemon)


def test_killed_at_twenty_moments(tmp_path):
    killed_under_load(tmp_path, kills=20, seed=1)


@pytest.mark.faults
@pytest.mark.parametrize("seed", range(2, 12))
def test_killed_at_two_hundred_moments(tmp_path, seed):
    killed_under_load(tmp_path, kills=20, seed=seed)


# -- orderly ends ----------------------------------------------------------------------------


def ready(daemon, name, mib=1024, **document):
    id = daemon.create(name, mib, **document)
    daemon.do(id, "start")
    daemon.wait_state(id, "ready")
    return id


def pids(daemon):
    return sorted(one.pid for one in daemon.engines())


def armed(daemon):
    return [e for e in events(daemon) if e.kind in ("initialize_armed", "restore_armed")]


def test_an_orderly_stop_lets_streams_finish_and_engines_run(tmp_path):
    slow = {"tokens_per_s": 20, "reply_tokens": 40}
    with running(tmp_path, simulate=simulation(models={"slow": slow})) as daemon:
        ready(daemon, "slow")
        parked = ready(daemon, "parked")
        daemon.do(parked, "park")
        daemon.wait_state(parked, "parked")
        before, armed_before = pids(daemon), armed(daemon)
        with chat_stream(daemon, "slow") as stream:
            stream.read(3)
            daemon.process.send_signal(signal.SIGTERM)
            refused = wait_until(lambda: refusal_of(daemon), what="a request is refused")
            stream.read()
            status = daemon.process.wait(60)
        daemon.process = None
        left = pids(daemon)
        daemon.start()
        settle(daemon)
        states = {d["name"]: d["observed_state"] for d in daemon.snapshot()["deployments"]}
        armed_after = armed(daemon)
        chat = daemon.chat("slow", max_tokens=2)
        check_truth(daemon)
        after = pids(daemon)
        woken = daemon.chat("parked", max_tokens=2)
    assert stream.is_complete
    assert status == 0
    assert refused.json()["code"] == "shutting_down"
    assert refused.headers["Retry-After"] == "5"
    assert before == left == after
    assert len(before) == 2
    assert armed_before == armed_after
    assert states == {"slow": "ready", "parked": "parked"}
    assert (chat.status, woken.status) == (200, 200)


def refusal_of(daemon):
    reply = daemon.chat("slow", max_tokens=1)
    return reply.status == 503 and reply


def test_what_outlasts_the_drain_is_cut_so_that_it_shows(tmp_path):
    slow = {"tokens_per_s": 10, "reply_tokens": 600}
    sets = ("shutdown.drain_timeout=1s",)
    with running(tmp_path, simulate=simulation(models={"slow": slow}), sets=sets) as daemon:
        ready(daemon, "slow")
        before = pids(daemon)
        with chat_stream(daemon, "slow") as stream:
            stream.read(3)
            daemon.process.send_signal(signal.SIGTERM)
            stream.read()
            status = daemon.process.wait(60)
        daemon.process = None
        left = pids(daemon)
    assert status == 0
    assert stream.is_cut
    assert not stream.is_complete
    assert '"shutting_down"' in stream.lines[-1]
    assert before == left


def test_a_second_signal_waits_for_nothing(tmp_path):
    slow = {"tokens_per_s": 10, "reply_tokens": 600}
    with running(tmp_path, simulate=simulation(models={"slow": slow})) as daemon:
        ready(daemon, "slow")
        with chat_stream(daemon, "slow") as stream:
            stream.read(3)
            daemon.process.send_signal(signal.SIGTERM)
            wait_until(lambda: refusal_of(daemon), what="the stop has begun")
            began_s = time.monotonic()
            daemon.process.send_signal(signal.SIGTERM)
            status = daemon.process.wait(60)
            took_s = time.monotonic() - began_s
        daemon.process = None
    assert status == 0
    assert took_s < 25.0


def test_a_killed_daemon_adopts_its_engines_and_launches_none(tmp_path):
    with running(tmp_path, simulate=simulation()) as daemon:
        id = ready(daemon, "a")
        before, armed_before = pids(daemon), armed(daemon)
        cursor = daemon.snapshot()["cursor"]
        daemon.kill()
        daemon.start()
        daemon.wait_state(id, "ready")
        after, armed_after = pids(daemon), armed(daemon)
        kinds = [e.kind for e in events(daemon, cursor)]
        reply = daemon.chat("a", max_tokens=2)
        check_truth(daemon)
    assert before == after
    assert armed_before == armed_after
    assert reply.status == 200
    assert kinds == ["coordinator_session_started", "reconcile_started", "reconciled_committed"]


def test_a_start_under_way_goes_on_with_the_same_process(tmp_path):
    with running(tmp_path, simulate=simulation(engines={"load_s": 5.0})) as daemon:
        id = daemon.create("a", 1024)
        receipt = daemon.do(id, "start")
        wait_until(lambda: len(daemon.engines()) == 1, what="an engine loads")
        before = pids(daemon)
        daemon.kill()
        daemon.start()
        daemon.wait_state(id, "ready")
        after = pids(daemon)
        settle(daemon)
        operation = next(
            o for o in daemon.snapshot()["operations"] if o["id"] == receipt["operation_id"]
        )
        check_truth(daemon)
    assert before == after
    assert operation["state"] == "succeeded"


def test_an_engine_that_died_meanwhile_is_failed_and_starts_again(tmp_path):
    with running(tmp_path, simulate=simulation()) as daemon:
        id = ready(daemon, "a")
        (before,) = pids(daemon)
        daemon.kill()
        os.killpg(before, signal.SIGKILL)
        wait_gone([before])
        daemon.start()
        found = daemon.wait_state(id, "failed")
        reply = daemon.chat("a", max_tokens=2)
        settle(daemon)
        check_truth(daemon)
        after = pids(daemon)
    assert found["instances"][0]["last_error"]
    assert reply.status == 200
    assert len(after) == 1
    assert after != [before]


def test_a_stop_that_was_accepted_goes_on_after_a_kill(tmp_path):
    stubborn = {"faults": {"ignores_sigterm": True}}
    with running(tmp_path, simulate=simulation(models={"a": stubborn})) as daemon:
        id = ready(daemon, "a")
        receipt = daemon.do(id, "stop")
        daemon.wait_state(id, "stopping")
        daemon.kill()
        daemon.start()
        daemon.wait_state(id, "stopped")
        operation = next(
            o for o in daemon.snapshot()["operations"] if o["id"] == receipt["operation_id"]
        )
        refused = daemon.chat("a")
        check_truth(daemon)
    assert operation["state"] == "succeeded"
    assert refused.json()["code"] == "deployment_stopped"


# -- a root is used by one daemon, and by none that is older ---------------------------------


def test_a_second_daemon_on_the_same_root_is_refused(tmp_path):
    with running(tmp_path, simulate=simulation()) as daemon:
        ready(daemon, "a")
        second = Daemon(tmp_path, simulate=daemon.simulate)
        status = second.spawn().wait(60)
        reply = daemon.chat("a", max_tokens=2)
        told = daemon.log_path.read_text()
    assert status == 2
    assert "another capyctl runs" in told
    assert reply.status == 200


def test_a_database_of_a_newer_release_is_left_alone(tmp_path):
    with running(tmp_path, simulate=simulation()) as daemon:
        daemon.create("a", 1024)
        daemon.stop()
        database = daemon.state / "srv.sqlite3"
        with contextlib.closing(sqlite3.connect(database)) as connection:
            connection.execute("PRAGMA user_version = 99")
        before = (hashlib.sha256(database.read_bytes()).digest(), sorted(os.listdir(daemon.state)))
        status = daemon.spawn().wait(60)
        after = (hashlib.sha256(database.read_bytes()).digest(), sorted(os.listdir(daemon.state)))
        told = daemon.log_path.read_text().splitlines()[-1]
    assert status == 5
    assert "newer" in told
    assert before == after
