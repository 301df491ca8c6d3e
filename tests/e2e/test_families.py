"""Every family behind a real daemon: deployed, parked or stopped, found again, its keys unseen."""

import pytest

from capyctl.cli.control_socket import ask_role
from capyctl.domain.units import GIB
from tests.e2e.daemon import running, simulation, wait_until

pytestmark = pytest.mark.slow


def log_of(root):
    (path,) = root.rglob("logs/*/*.log")
    return path.read_text()


@pytest.mark.parametrize("residency", ["host_backed", "deep"])
@pytest.mark.parametrize("engine", ["vllm", "sglang"])
def test_a_parked_engine_wakes_for_a_request_even_after_a_restart_of_the_daemon(
    tmp_path, engine, residency
):
    with running(tmp_path, simulate=simulation()) as daemon:
        a = daemon.create("a", 1024, engine=engine, residency=residency)
        daemon.do(a, "start")
        daemon.wait_state(a, "ready")
        before = daemon.chat("a").json()["choices"]
        launched = daemon.engines()
        for restarts in (False, True):
            daemon.do(a, "park")
            daemon.wait_state(a, "parked")
            if restarts:
                daemon.kill()
                daemon.start()
            assert daemon.chat("a").json()["choices"] == before
        left = daemon.engines()
    assert [one.pid for one in left] == [one.pid for one in launched]


@pytest.mark.faults
@pytest.mark.parametrize("engine", ["vllm", "sglang"])
def test_a_park_that_frees_nothing_is_no_park(tmp_path, engine):
    faulty = simulation(engines={"faults": {"park_frees_nothing": True}})
    with running(tmp_path, simulate=faulty) as daemon:
        a = daemon.create("a", 1024, engine=engine, residency="deep")
        daemon.do(a, "start")
        daemon.wait_state(a, "ready")
        before = daemon.chat("a").json()["choices"]
        receipt = daemon.do(a, "park")

        def ended():
            operations = daemon.snapshot()["operations"]
            (found,) = (o for o in operations if o["id"] == receipt["operation_id"])
            return found["state"] not in ("pending", "running") and found

        park = wait_until(ended, what="the park is over", within_s=60)
        served = daemon.chat("a").json()["choices"]
    assert park["state"] == "failed"
    assert served == before


def test_sglang_prints_its_keys_and_its_log_does_not_hold_them(tmp_path):
    with running(tmp_path, simulate=simulation()) as daemon:
        a = daemon.create("a", 1024, engine="sglang")
        daemon.do(a, "start")
        daemon.wait_state(a, "ready")
        (line,) = [one for one in log_of(tmp_path).splitlines() if "server_args=" in one]
    assert "'api_key': '<redacted>', 'admin_api_key': '<redacted>'" in line


def test_what_sglang_runs_at_once_is_what_it_says_itself(tmp_path):
    with running(tmp_path, simulate=simulation()) as daemon:
        a = daemon.create("a", 1024, engine="sglang")
        daemon.do(a, "start")
        daemon.wait_state(a, "ready")

        def told():
            load = daemon.get(f"/metrics/load?deployment={a}").json()["deployments"][0]
            (one,) = load["instances"]
            return one["sample"] is not None and one["max_running"]

        assert wait_until(told, what="a sample") == {"count": 256, "source": "engine"}


@pytest.mark.parametrize("engine", ["vllm", "sglang", "llamacpp"])
def test_an_embedding_model_is_started_by_its_own_routes_and_by_no_others(tmp_path, engine):
    with running(tmp_path, simulate=simulation()) as daemon:
        a = daemon.create("a", 1024, engine=engine, engine_config={"task": "embed"})
        chat = daemon.chat("a")
        starts = len(daemon.engines())
        answer = daemon.post("/v1/embeddings", {"model": "a", "input": "hello"})
        daemon.wait_state(a, "ready")

    assert (chat.status, chat.json()["code"]) == (404, "unsupported_route")
    assert starts == 0
    assert answer.status == 200
    assert len(answer.json()["data"][0]["embedding"]) == 64


def test_a_speculative_sglang_parks_though_it_keeps_its_weights(tmp_path):
    """Weights of 4 GiB beside a cache of 2: far less than half of it comes free."""
    speculative = {
        "accept_extra_args": True,
        "extra_args": ["--speculative-algorithm", "EAGLE"],
        "memory": {"kv_cache": "2GiB"},
    }
    with running(tmp_path, simulate=simulation()) as daemon:
        a = daemon.create("a", 4096, engine="sglang", engine_config=speculative)
        daemon.do(a, "start")
        daemon.wait_state(a, "ready")
        before = daemon.chat("a").json()["choices"]
        daemon.do(a, "park")
        daemon.wait_state(a, "parked")

        def measured():
            found = daemon.deployment(a)
            return found["parked"]["provenance"] == "measured" and found

        parked = wait_until(measured, what="what it keeps is measured")
        assert daemon.chat("a").json()["choices"] == before
    assert int(parked["parked"]["charges"]["gpu0"]) >= 5 << 30
    assert parked["context"] == {"length": 2 * GIB // 131_072}
    assert parked["parsers"]["tool_call_parser"] == {"name": None, "source": "unknown_family"}


def test_tensorfold_is_stopped_and_started(tmp_path):
    with running(tmp_path, simulate=simulation()) as daemon:
        a = daemon.create(
            "a",
            1024,
            engine="tensorfold",
            residency="restart_only",
            engine_config={"context_length": 2048},
            resources={"gpu": "4GiB", "ram": "2GiB"},
        )
        assert daemon.chat("a").status == 200
        daemon.do(a, "stop")
        daemon.wait_state(a, "stopped")
        assert daemon.chat("a").status == 409
        daemon.do(a, "start")
        daemon.wait_state(a, "ready")
        assert daemon.chat("a").status == 200


def test_nothing_new_starts_on_a_profile_that_is_being_removed_even_after_a_crash(tmp_path):
    with running(tmp_path, simulate=simulation()) as daemon:
        runs, rests = daemon.create("runs", 1024), daemon.create("rests", 1024)
        daemon.do(runs, "start")
        daemon.wait_state(runs, "ready")
        users = ask_role(daemon.state, {"action": "retire", "name": "vllm"})["deployments"]
        daemon.kill()
        daemon.start()
        daemon.wait_state(runs, "ready")
        served = daemon.chat("runs").status
        daemon.do(rests, "start")
        failed = daemon.wait_state(rests, "failed")
        body = {"config": {"name": "new", "engine": "vllm", "model": "runs"}, "activate": False}
        refused = daemon.request("POST", "/deployments", body, key="n")
        ask_role(daemon.state, {"action": "keep", "name": "vllm"})
        again = daemon.chat("rests").status
    assert users == ["runs"]
    assert served == 200
    assert failed["instances"][0]["last_error"].startswith("profile_retiring: ")
    assert (refused.status, refused.json()["error"]["code"]) == (409, "profile_not_published")
    assert again == 200
