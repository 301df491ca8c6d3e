"""Wall clocks of several machines that are hours apart, and jump: no time of another one counts."""

from __future__ import annotations

import time

import pytest

from tests.e2e.daemon import wait_until
from tests.e2e.multi.fleet import Fleet, Server, fleet
from tests.e2e.multi.seams import Seams
from tests.e2e.streams import Seen, events

pytestmark = pytest.mark.slow

HOUR_S = 3600.0
DAY_S = 24 * HOUR_S
SLACK_MS = 1000
LOAD_S = 30.0


def now_ms() -> int:
    return time.time_ns() // 1_000_000


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    root = tmp_path_factory.mktemp("clocks")
    server = Server(root, simulate="", program=Seams(root / "server-seams").server())
    with fleet(root, server=server) as made:
        made.add(
            "a", program=Seams(root / "host-seams").host(), models={"slow": {"load_s": LOAD_S}}
        )
        yield made


def host_clock(made: Fleet) -> Seams:
    return Seams(made.root / "host-seams")


def recorded_ms(seen: list[Seen]) -> list[int]:
    return [int(one.data["recorded_at_ms"]) for one in seen]


def sample_of(made: Fleet, id: str):
    rows = made.server.get("/metrics/load").json()["deployments"]
    (row,) = (row for row in rows if row["deployment_id"] == id)
    return row["instances"][0]["sample"]


@pytest.mark.parametrize("ahead_h", [5.0, -5.0])
def test_a_host_that_is_hours_off_and_jumps_serves_as_ever(made, ahead_h):
    server, host = made.server, made.hosts["a"]
    cursor, began_ms = server.snapshot()["cursor"], now_ms()
    host_clock(made).set_clock(ahead_h * HOUR_S)
    id = server.create(f"model{ahead_h:g}", weights_mib=64)
    server.wait_measured(id, 1)
    server.do(id, "start")
    server.wait_all_ready(id)
    assert server.chat(f"model{ahead_h:g}").status == 200
    (engine,) = host.engines()

    host_clock(made).set_clock(-ahead_h * HOUR_S)

    server.do(id, "park")
    server.wait_state(id, "parked")
    assert server.chat(f"model{ahead_h:g}").status == 200
    assert list(host.engines()) == [engine]
    sampled = wait_until(lambda: sample_of(made, id), what="a sample of the engine")
    assert sampled["fresh"]
    assert abs(sampled["sampled_at_ms"] - now_ms()) < 10 * SLACK_MS
    server.do(id, "stop")
    server.wait_state(id, "stopped")
    seen = events(server, cursor)
    times = recorded_ms(seen)
    assert times == sorted(times)
    assert began_ms - SLACK_MS <= times[0] <= times[-1] <= now_ms() + SLACK_MS
    assert not {"host_suspended", "host_lost"} & {one.kind for one in seen}
    host_clock(made).set_clock(0)


@pytest.mark.parametrize("jump_h", [5.0, -5.0])
@pytest.mark.parametrize("whose", ["host", pytest.param("server", marks=pytest.mark.faults)])
def test_a_start_ends_by_its_deadline(made, whose, jump_h):
    """The time that was left when it was accepted passes, whatever is set meanwhile."""
    server, host = made.server, made.hosts["a"]
    id = server.create("slow", weights_mib=64)
    server.wait_measured(id, 1)
    until_ms = now_ms() + 3000
    operation = server.do(id, "start", deadline_ms=until_ms)["operation_id"]
    wait_until(host.engines, what="its engine loads")

    clock = Seams(made.root / f"{whose}-seams")
    clock.set_clock(jump_h * HOUR_S)

    def ended():
        found = next(o for o in server.snapshot()["operations"] if o["id"] == operation)
        return found["state"] not in ("pending", "running") and found

    found = wait_until(ended, what="the start ends", within_s=LOAD_S)
    late_ms = now_ms() - until_ms
    clock.set_clock(0)
    assert found["state"] == "failed"
    assert -SLACK_MS <= late_ms <= 15 * SLACK_MS, late_ms
    wait_until(lambda: not host.engines(), what="its engine is gone")
    server.do(id, "delete")
    wait_until(lambda: server.deployment(id) is None, what="it is gone")
    assert server.hosts()["a"]["state"] == "online"


def far(root, ahead_s: float) -> Server:
    """A server whose clock is ahead as it makes its certificates."""
    seams = Seams(root / "server-seams")
    seams.set_clock(ahead_s)
    return Server(root, simulate="", program=seams.server())


def test_certificates_of_a_clock_that_is_six_days_ahead_are_good(tmp_path):
    with fleet(tmp_path, "a", server=far(tmp_path, 6 * DAY_S)) as made:
        server = made.server
        server.wait_host("a", "online")
        Seams(tmp_path / "server-seams").set_clock(0)
        id = server.create("model", weights_mib=64)
        server.wait_measured(id, 1)
        server.do(id, "start")
        server.wait_all_ready(id)

        assert server.chat("model").status == 200
        made.hosts["a"].kill()
        server.wait_host("a", "suspended")
        made.hosts["a"].start()
        server.wait_host("a", "online")
        # A host may be back before it was missed: its engine is proven before it is asked.
        wait_until(lambda: server.chat("model").status == 200, what="an answer")


def test_beyond_a_week_the_clocks_are_named_and_nothing_is_used_up(tmp_path):
    with fleet(tmp_path, server=far(tmp_path, 8 * DAY_S)) as made:
        server, host = made.server, made.new("a")
        made.init(host)
        file = made.invite(host)

        refused = made.cli(host, "join", "host", "--join-file", str(file), status=2)

        assert refused["code"] == "server_not_trusted"
        assert "not valid yet: compare the clocks of both machines" in refused["message"]
        assert server.stop() == 0
        Seams(tmp_path / "server-seams").set_clock(0)
        server.start()
        made.cli(host, "join", "host", "--join-file", str(file))
        host.start()
        server.wait_host("a", "online")
