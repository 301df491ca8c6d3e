"""What is measured of a server with many hosts, one stage after the other on one rig."""

from __future__ import annotations

import contextlib
import statistics
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path

import attrs

from benchmarks.hosts.rig import Rig
from benchmarks.relay.proxies import compiled
from tests.e2e.daemon import wait_until
from tests.e2e.streams import Seen, events

LOAD_CLIENTS_COUNT = 32
"""As many as a deployment runs at a time."""


@attrs.frozen(kw_only=True)
class Figure:
    """One line of the outcome."""

    what: str
    value: float
    unit: str
    most: float | None = None
    """The bar: not more than this."""

    @property
    def missed(self) -> bool:
        return self.most is not None and self.value > self.most


@attrs.frozen(kw_only=True)
class Plan:
    """How much of it. The bars are those of 100 hosts and 1,000 deployments on two cores."""

    hosts: int = 100
    each: int = 10
    idle_s: float = 30.0
    settle_s: float = 2.0
    """Left out before each idle figure."""
    reads: int = 200
    """Of each kind."""
    starts: int = 50
    """One after the other."""
    load_s: float = 5.0
    """Of each load; 0: none. It needs a C compiler."""
    suspend_s: float = 5.0
    lost_s: float = 30.0
    anywhere: bool = False
    """Every deployment may run on every host."""

    @property
    def count(self) -> int:
        return self.hosts * self.each


def percentile(values: Sequence[float], percent: int) -> float:
    return statistics.quantiles(values, n=100, method="inclusive")[percent - 1]


def spread(what: str, values_ms: Sequence[float], most: float | None = None) -> Iterator[Figure]:
    yield Figure(what=f"{what}, p50", value=percentile(values_ms, 50), unit="ms")
    yield Figure(what=f"{what}, p99", value=percentile(values_ms, 99), unit="ms", most=most)


def joining(rig: Rig, plan: Plan) -> Iterator[Figure]:
    each_s = rig.join(plan.hosts)
    yield Figure(what="invite and join, each", value=each_s * 1000, unit="ms")
    cpu_s = rig.cpu_s()
    together_s = rig.fleet.do("dial", rig.names)
    yield Figure(what="all dial at once: until all are linked", value=together_s, unit="s")
    each_ms = (rig.cpu_s() - cpu_s) / plan.hosts * 1000
    yield Figure(what="CPU of a dial", value=each_ms, unit="ms")
    yield from idle(rig, plan, "hosts alone")


def idle(rig: Rig, plan: Plan, of: str, most_percent: float | None = None) -> Iterator[Figure]:
    time.sleep(plan.settle_s)
    percent = rig.core_ratio(plan.idle_s) * 100
    yield Figure(what=f"idle, {of}", value=percent, unit="% of a core", most=most_percent)
    yield Figure(what=f"memory, {of}", value=rig.rss_mib(), unit="MiB")


def creating(rig: Rig, plan: Plan) -> Iterator[Figure]:
    cpu_s = rig.cpu_s()
    took_s = rig.create(plan.each, anywhere=plan.anywhere)
    yield Figure(what="create all, until all are measured", value=took_s, unit="s")
    each_ms = (rig.cpu_s() - cpu_s) / plan.count * 1000
    yield Figure(what="CPU of a deployment's creation", value=each_ms, unit="ms")
    yield from idle(rig, plan, "all stopped")


def starting(rig: Rig, plan: Plan) -> Iterator[Figure]:
    """Everything is started at once, by two clients."""
    names, cursor, cpu_s = list(rig.models), rig.cursor(), rig.cpu_s()
    began_s = time.monotonic()
    rig.start_all(names)
    accepted_s = time.monotonic() - began_s
    ready_s = rig.wait_states("ready", names) - began_s
    cpu_s = rig.cpu_s() - cpu_s
    yield Figure(what="start all: accepted", value=accepted_s, unit="s")
    yield Figure(what="start all: until all are ready", value=ready_s, unit="s")
    yield Figure(what="CPU of a start", value=cpu_s / plan.count * 1000, unit="ms")
    told = events(rig.server, cursor)
    placed = [at_ms(one) for one in told if one.kind == "initialize_armed"]
    rate = len(placed) / max(1.0, max(placed) - min(placed)) * 1000
    yield Figure(what="start all: placed", value=rate, unit="a second")
    yield from idle(rig, plan, "all ready", 25.0)


def reading(rig: Rig, plan: Plan) -> Iterator[Figure]:
    """What operators ask, while the hosts' heartbeats come in."""
    size = len(rig.client.ask("GET", "/snapshot")[1])
    yield Figure(what="snapshot, size", value=size / 1024, unit="KiB")
    yield from spread("snapshot", rig.took_ms("/snapshot", plan.reads), 150.0)
    yield from spread("list of hosts", rig.took_ms("/hosts", plan.reads))
    host = f"/hosts/{rig.names[-1]}"
    yield from spread("one host", rig.took_ms(host, plan.reads))
    id = next(iter(rig.models.values()))
    log = f"/deployments/{id}/engine-log"
    yield from spread("engine log: to a host and back", rig.took_ms(log, plan.reads))


def requesting(rig: Rig, plan: Plan) -> Iterator[Figure]:
    """One client, one model after the other; then again, over the connections of before."""
    names = list(rig.models)
    yield from spread("request, a first to each model", rig.chats_ms(names))
    yield from spread("request, again to each model", rig.chats_ms(names))


def loading(rig: Rig, plan: Plan) -> Iterator[Figure]:
    """Short requests to one model, by clients that never wait, on connections that stay."""
    if plan.load_s <= 0:
        return
    with tempfile.TemporaryDirectory() as name:
        _, program = compiled(Path(name))
        for clients in (1, LOAD_CLIENTS_COUNT):
            cpu_s, began_s = rig.cpu_s(), time.monotonic()
            told = rig.load(program, clients, plan.load_s)
            core_ratio = (rig.cpu_s() - cpu_s) / (time.monotonic() - began_s)
            assert told["failed"] == told["broken"] == 0, told
            each_us = (rig.cpu_s() - cpu_s) / told["answered"] * 1e6
            of = f"requests, {clients} at a time"
            rate = told["answered"] / told["took_s"]
            yield Figure(what=of, value=rate, unit="a second")
            yield Figure(what=f"{of}: p50", value=told["p50_ms"], unit="ms")
            yield Figure(what=f"{of}: p99", value=told["p99_ms"], unit="ms")
            yield Figure(what=f"{of}: CPU of each", value=each_us, unit="us")
            yield Figure(what=f"{of}: the server", value=core_ratio * 100, unit="% of a core")


def preparing(rig: Rig, plan: Plan) -> Iterator[Figure]:
    """From a start's request to the host's call, one at a time."""
    names = list(rig.models)[:: max(1, plan.count // plan.starts)]
    for name in names:
        rig.act(name, "stop")
    rig.wait_states("stopped", names)
    took_ms = []
    for name in names:
        sent_s = rig.act(name, "start")
        asked = partial(rig.prepared_at, name, sent_s)
        prepared_s = wait_until(asked, what=f"{name} is prepared")
        took_ms.append((prepared_s - sent_s) * 1000)
    rig.wait_states("ready", names)
    yield from spread("start: its request to the host's prepare", took_ms, 100.0)


def losing(rig: Rig, plan: Plan) -> Iterator[Figure]:
    """One host is silent until its instances are uncertain, and comes back."""
    host = next(name for name in rig.names if rig.models_on(name))
    mine = rig.models_on(host)
    others = [name for name in rig.models if name not in mine]
    cursor = rig.cursor()
    left_ms, left_s = time.time() * 1000, rig.fleet.do("leave", [host])
    with requests_beside(rig, others) as failed:
        lost_s = rig.wait_states("uncertain", mine, plan.lost_s + 60.0) - left_s
        back_s = time.monotonic()
        rig.fleet.do("dial", [host])
        ready_s = rig.wait_states("ready", mine) - back_s
    told = {one.kind: at_ms(one) - left_ms for one in events(rig.server, cursor)}
    suspended_s = told["host_suspended"] / 1000
    yield Figure(what="a host is lost: until suspended", value=suspended_s, unit="s")
    yield Figure(what="a host is lost: until uncertain", value=lost_s, unit="s")
    yield Figure(what="a host is back: until all are ready", value=ready_s, unit="s")
    count = float(len(failed))
    yield Figure(what="requests to other hosts that failed", value=count, unit="", most=0.0)


def restarting(rig: Rig, plan: Plan) -> Iterator[Figure]:
    """The server is killed and started, with all hosts there and all engines running."""
    names, kept = list(rig.models), rig.fleet.do("engines")
    began_s = time.monotonic()
    answers_s = rig.restarted()
    linked_s = rig.fleet.do("linked", rig.names) - began_s
    ready_s = rig.wait_states("ready", names) - began_s
    cpu_s = rig.cpu_s()
    rig.chats_ms(names)
    served_s = time.monotonic() - began_s
    assert rig.fleet.do("engines") == kept, "engines came or went"
    yield Figure(what="server killed: until it answers", value=answers_s, unit="s")
    yield Figure(what="server killed: until all hosts are linked", value=linked_s, unit="s")
    yield Figure(what="server killed: until all are ready", value=ready_s, unit="s", most=30.0)
    yield Figure(what="server killed: each has answered", value=served_s, unit="s")
    yield Figure(what="CPU of the server's start, until all are ready", value=cpu_s, unit="s")
    yield from idle(rig, plan, "all ready again", 25.0)


STAGES: tuple[Callable[[Rig, Plan], Iterator[Figure]], ...] = (
    joining,
    creating,
    starting,
    reading,
    requesting,
    loading,
    preparing,
    losing,
    restarting,
)


def at_ms(event: Seen) -> float:
    return float(event.data["recorded_at_ms"])


@contextlib.contextmanager
def requests_beside(rig: Rig, names: Sequence[str]) -> Iterator[list[str]]:
    """Requests to these models, about ten a second, for the length of the block; what failed."""
    failed: list[str] = []
    over = threading.Event()

    def ask() -> None:
        while not over.is_set():
            for name in names[:: max(1, len(names) // 10)]:
                try:
                    rig.chats_ms([name])
                except (OSError, AssertionError) as problem:
                    failed.append(f"{name}: {problem}")
                if over.wait(0.1):
                    return

    asking = threading.Thread(target=ask)
    asking.start()
    try:
        yield failed
    finally:
        over.set()
        asking.join()
