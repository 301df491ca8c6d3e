"""Memory: bytes decide, others' bytes too, and every refusal has its figures."""

import os
import time
from pathlib import Path

import pytest

from capyctl.gpus.memory import read_ram
from capyctl.simulated.usage import read_draws
from tests.cases.scenes import ready, seen
from tests.e2e.daemon import running, simulation, wait_until
from tests.e2e.truth import check_truth, recorded

pytestmark = pytest.mark.slow

GIB = 1 << 30
LOOK_S = 1.5
"""Memory is looked at once a second, and a look from before a release does not count."""


def test_a_request_for_what_fits_nowhere_is_refused_with_figures(tmp_path):
    with running(tmp_path, simulate=simulation()) as daemon:
        a = daemon.create("a", 30 * 1024)
        reply = daemon.chat("a")
        shown = daemon.deployment(a)
        unknown = daemon.chat("nobody")
    assert (reply.status, reply.json()["code"]) == (429, "insufficient_resources")
    assert reply.headers["Retry-After"] == "1"
    message = reply.json()["message"]
    assert "gpu0" in message
    assert message.count("GiB") >= 2, message
    assert shown["observed_state"] == "stopped"
    assert unknown.status == 404


def test_a_model_that_wants_its_card_alone_shares_it_with_parked_ones_only(tmp_path):
    """Both would fit by their bytes."""
    alone = {"devices": [{"sharing": "exclusive"}]}
    with running(tmp_path, simulate=simulation()) as daemon:
        ready(daemon, "shared")
        own = ready_by_request(daemon, "own", **alone)
        states = {d["name"]: d["observed_state"] for d in daemon.snapshot()["deployments"]}
        again = daemon.chat("shared", max_tokens=1)
        daemon.wait_state(own, "parked")
        check_truth(daemon)
    assert states == {"shared": "parked", "own": "ready"}
    assert again.status == 200


def ready_by_request(daemon, name, **document):
    id = daemon.create(name, 1024, **document)
    assert daemon.chat(name, max_tokens=1).status == 200
    return id


def test_what_others_hold_on_the_card_is_not_given_out(tmp_path):
    """Ten of 24 GiB are somebody else's: what fits the empty card has to wait, with figures."""
    document = simulation(gpus=[{"memory": "24GiB", "used": "10GiB"}])
    with running(tmp_path, simulate=document) as daemon:
        big = daemon.create("big", 10 * 1024)
        daemon.create("small", 1024)
        message = wait_until(lambda: figures(daemon, big), what="the start is refused")
        served = daemon.chat("small", max_tokens=1)
        check_truth(daemon)
    assert "gpu0" in message
    assert served.status == 200


def test_count_is_no_measure_three_large_models_share_a_card_by_bytes(tmp_path):
    with running(tmp_path, simulate=simulation(memory="48GiB")) as daemon:
        ready(daemon, "a", mib=13 * 1024)
        ready(daemon, "b", mib=13 * 1024)
        daemon.create("c", 13 * 1024)
        reply = daemon.chat("c", max_tokens=1)
        states = {d["name"]: d["observed_state"] for d in daemon.snapshot()["deployments"]}
        switches = seen(daemon, "switch_completed")
        check_truth(daemon)
    assert reply.status == 200
    assert sorted(states.values()) == ["parked", "ready", "ready"]
    assert states["c"] == "ready"
    assert len(switches) == 1


def test_what_an_engine_takes_beyond_its_charge_keeps_the_next_one_waiting(tmp_path):
    """No charge explains it, so it counts as others' until it is gone; then the start goes on."""
    greedy = {"a": {"extra": "9GiB"}}
    with running(tmp_path, simulate=simulation(models=greedy)) as daemon:
        (a,) = ready(daemon, "a", mib=1024)
        draws = read_draws(Path(daemon.state) / "simulated")
        assert sum(d.bytes for d in draws if d.gpu is not None) > 10 * GIB
        b = daemon.create("b", 8 * 1024, lifecycle={"activation": "explicit"})
        wait_until(lambda: figures(daemon, b), what="the start of b is refused")
        daemon.do(a, "stop")
        daemon.wait_state(a, "stopped")
        daemon.do(b, "start")
        daemon.wait_state(b, "ready")
        held = sum(one.charges.get("gpu0", 0) for one in recorded(daemon.state))
    assert held <= 24 * GIB


def figures(daemon, id):
    """Why a start is refused, once that has figures; an accepted one is taken back."""
    reply = daemon.act(id, "start")
    if reply.status == 202:
        daemon.do(id, "stop")
        daemon.wait_state(id, "stopped")
        time.sleep(LOOK_S)
        return None
    message = reply.json()["error"]["message"]
    return message if "GiB" in message else None


def test_figures_of_the_machine_are_not_invented():
    """Read from the kernel here; the limits above us are in tests/gpus/test_memory.py."""
    ram = read_ram()
    pages = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    assert 0 < ram.total_bytes <= pages
    assert 0 <= ram.available_bytes <= ram.total_bytes
