"""A daemon that is killed, stopped or started twice: nothing accepted is lost, no engine either."""

import random
import signal
import sqlite3
import time

import pytest

from tests.e2e.daemon import Daemon, running, simulation, wait_until
from tests.e2e.streams import chat_stream, events
from tests.e2e.truth import check_truth, settle
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
