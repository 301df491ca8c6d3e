"""Controllers and clients at work while server, hosts and engines are killed: all is accounted for.

Each round ends with what has to be true of machines at rest, read from outside: the processes of
each host, the memory they draw, the server's database, its events.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import time
from typing import Any

import pytest

from capyctl.simulated.usage import read_draws
from tests.e2e.daemon import wait_until
from tests.e2e.multi.fleet import Fleet, Host, fleet
from tests.e2e.streams import events
from tests.e2e.truth import BUGS, Recorded, check_chain, check_log, check_sequence, recorded, settle
from tests.e2e.workload import Model, Workload, check_accepted, replay

pytestmark = [pytest.mark.slow, pytest.mark.faults]

MIB_OF = {"small": 1024, "large": 8192, "other": 8192}
HOSTS = ("a", "b")
ROUNDS = 10
GONE_S_MAX = 6.0
"""Longer than it takes until a host is lost."""
WAIT = "30s"
STOP_S_MAX = 60.0
ENGINES = {"load_s": 0.1, "park_s": 0.05, "wake_s": 0.05}


class Impatient(Workload):
    """Its requests wait for a model in line no longer than a round has time for."""

    def _replaced(self, model: Model, rng: random.Random) -> dict[str, Any]:
        return {**model.document, "instances": rng.choice((1, 2))}


def models(made: Fleet) -> list[Model]:
    found = []
    for name, mib in MIB_OF.items():
        document = {"name": name, "engine": "vllm", "model": name, "request_deadline": WAIT}
        count = 2 if name == "small" else 1
        id = made.server.create(name, mib, instances=count, request_deadline=WAIT)
        found.append(Model(id, document))
    for model in found:
        made.server.wait_measured(model.id, len(HOSTS))
    return found


# -- faults --------------------------------------------------------------------------------------


def pause(rng: random.Random, longest_s: float) -> None:
    """A moment by chance, which is what is tested: nothing is waited for."""
    time.sleep(rng.uniform(0.0, longest_s))


def server_dies(made: Fleet, rng: random.Random) -> None:
    made.server.kill()


def host_dies(made: Fleet, rng: random.Random) -> None:
    host = made.hosts[rng.choice(HOSTS)]
    host.kill()
    pause(rng, GONE_S_MAX)
    host.start()


def all_die(made: Fleet, rng: random.Random) -> None:
    for host in made.hosts.values():
        host.kill()
    made.server.kill()
    for host in made.hosts.values():
        host.start()


def engine_dies(made: Fleet, rng: random.Random) -> None:
    engines = [pid for host in made.hosts.values() for pid in host.engines()]
    if engines:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(rng.choice(engines), signal.SIGKILL)


def host_dies_with_an_engine(made: Fleet, rng: random.Random) -> None:
    host = made.hosts[rng.choice(HOSTS)]
    host.kill()
    engines = list(host.engines())
    if engines:
        os.killpg(rng.choice(engines), signal.SIGKILL)
    host.start()


def host_stands_still(made: Fleet, rng: random.Random) -> None:
    host = made.hosts[rng.choice(HOSTS)]
    host.freeze()
    pause(rng, GONE_S_MAX)
    host.thaw()


def server_stands_still(made: Fleet, rng: random.Random) -> None:
    assert made.server.process is not None
    made.server.process.send_signal(signal.SIGSTOP)
    pause(rng, GONE_S_MAX)
    made.server.process.send_signal(signal.SIGCONT)


def drained_host_dies(made: Fleet, rng: random.Random) -> None:
    """What it has is on its way to the other one, or to its end."""
    host = made.hosts[rng.choice(HOSTS)]
    made.on_server("drain", "host", host.name)
    pause(rng, 1.0)
    host.kill()
    pause(rng, GONE_S_MAX)
    host.start()
    made.server.wait_host(host.name, "online")
    pause(rng, 1.0)
    made.on_server("undrain", "host", host.name)


def drained_host_s_server_dies(made: Fleet, rng: random.Random) -> None:
    host = made.hosts[rng.choice(HOSTS)]
    made.on_server("drain", "host", host.name)
    pause(rng, 1.0)
    made.server.kill()
    made.server.start()
    made.server.wait_host(host.name, "online")
    made.on_server("drain", "host", host.name, "--wait")
    assert host.engines() == {}
    made.on_server("undrain", "host", host.name)


FAULTS = (
    server_dies,
    host_dies,
    all_die,
    engine_dies,
    host_dies_with_an_engine,
    host_stands_still,
    server_stands_still,
    drained_host_dies,
    drained_host_s_server_dies,
)


# -- what has to be true -------------------------------------------------------------------------


def check_truth(made: Fleet) -> None:
    check_log(made.server)
    for host in made.hosts.values():
        bad = [one for one in host.log() if one["level"] == "error" or one["event"] in BUGS]
        assert not bad, bad[:3]
    stored = recorded(made.server.state)
    check_engines(made, stored)
    for host in made.hosts.values():
        check_memory(host, stored)
    seen = events(made.server)
    check_sequence(seen)
    check_chain(made.server, seen)


def check_engines(made: Fleet, stored: list[Recorded]) -> None:
    """Each engine of a host belongs to one recorded instance, and the other way round."""
    expected = {one.pid: one for one in stored if one.pid is not None}
    assert len(expected) == sum(one.pid is not None for one in stored), "a process is shared"
    living = {pid: argv for host in made.hosts.values() for pid, argv in host.engines().items()}
    assert set(living) == set(expected), (living, stored)
    for one in stored:
        empty = one.state in ("stopped", "failed", "queued")
        assert (one.pid is None) == empty, f"{one}"
        assert bool(one.charges) != empty, f"{one}"


def check_memory(host: Host, stored: list[Recorded]) -> None:
    """No engine draws more than it is charged, and no card gives more than it has."""
    folder = host.state / "simulated"
    document = json.loads((folder / "document.json").read_text())
    by_leader = {one.pid: one for one in stored if one.pid is not None}
    drawn: dict[str, int] = {}
    for draw in read_draws(folder):
        with contextlib.suppress(ProcessLookupError):
            one = by_leader.get(os.getpgid(draw.pid))
            assert one is not None, f"{draw} draws for no recorded instance"
            domain = draw.gpu or "system"
            drawn[domain] = drawn.get(domain, 0) + draw.bytes
            assert draw.bytes <= one.charges.get(domain, 0), f"{draw} of {one}"
    for index, gpu in enumerate(document["gpus"]):
        assert drawn.get(f"gpu{index}", 0) <= gpu["memory"]


@pytest.mark.parametrize("seed", range(4))
def test_nothing_is_lost_and_nothing_is_left(tmp_path, seed):
    rng = random.Random(seed)
    with fleet(tmp_path, *HOSTS, engines=ENGINES) as made:
        server = made.server
        playing, sent = models(made), []
        for round in range(ROUNDS):
            work = Impatient(server, playing, seed=seed * 1000 + round)
            work.start()
            pause(rng, 1.5)
            fault = rng.choice(FAULTS)
            print(f"-- round {round}: {fault.__name__}")
            fault(made, rng)
            work.stop(STOP_S_MAX)
            if server.process is None:
                server.start()
            for host in made.hosts.values():
                server.wait_host(host.name, "online")
            for one in work.sent:
                if one.reply is None:
                    one.reply = replay(server, one)
            sent += work.sent
            check_accepted(server, sent[-60:])
            settle(server)
            check_truth(made)
        for model in playing:
            server.do(model.id, "stop")
        for model in playing:
            server.wait_state(model.id, "stopped")
        snapshot = settle(server)
        wait_until(lambda: not any(h.engines() for h in made.hosts.values()), what="none is left")
        assert not [o for o in snapshot["operations"] if o["state"] in ("pending", "running")]
        check_truth(made)
