"""Figures of a whole daemon on this machine: memory, start, events, snapshots, wakes.

Run it by itself: ``python -m tests.e2e.measure [name ...]``. It prints one line per figure with
the bar beside it, and exits with 1 when one is missed.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import multiprocessing
import selectors
import socket
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from capyctl.simulated.checkpoint_writer import write_checkpoint
from tests.e2e.daemon import MIB, Daemon, running, simulation, wait_until
from tests.e2e.streams import Crowd

RSS_MIB_BAR = 120.0
START_S_BAR = 3.0
EVENT_MS_BAR = 10.0
SNAPSHOT_MS_BAR = 25.0
MANY_SNAPSHOT_MS_BAR = 150.0
RELAYED_COUNT = 300
RELAY_MOVED_MS_BAR = 5.0
WAKE_OVERHEAD_MS_BAR = 100.0
STREAMS_COUNT = 16
EVENTS_PER_S = 200.0
EVENTS_S = 10.0
WAKE_S = 0.5

Figure = tuple[str, float, float, str]
"""What, measured, the bar, the unit."""


def main(names: Sequence[str]) -> int:
    chosen = names or tuple(MEASUREMENTS)
    missed = 0
    for name in chosen:
        with tempfile.TemporaryDirectory(prefix="capyctl-measure-", dir=_place(name)) as folder:
            for what, value, bar, unit in MEASUREMENTS[name](Path(folder)):
                verdict = "ok" if value <= bar else "MISSED"
                missed += value > bar
                print(f"{verdict:6} {what}: {value:.2f} {unit} (bar {bar:g} {unit})", flush=True)
    return 1 if missed else 0


def _place(name: str) -> str | None:
    memory = Path("/dev/shm")
    return str(memory) if name == "events" and memory.is_dir() else None


def idle_memory(root: Path) -> Iterator[Figure]:
    with running(root, simulate=simulation()) as daemon:
        create_many(daemon, 100)
        yield "RSS, idle with 100 deployments", rss_mib(daemon), RSS_MIB_BAR, "MiB"


def start_with_many(root: Path) -> Iterator[Figure]:
    with running(root, simulate=simulation()) as daemon:
        create_many(daemon, 1000)
        for kind in ("orderly", "killed"):
            daemon.stop() if kind == "orderly" else daemon.kill()
            began_s = time.monotonic()
            daemon.start()
            took_s = time.monotonic() - began_s
            yield f"start with 1000 deployments after {kind} end", took_s, START_S_BAR, "s"
        yield "RSS, idle with 1000 deployments", rss_mib(daemon), 3 * RSS_MIB_BAR, "MiB"


def event_latency(root: Path) -> Iterator[Figure]:
    """From ``recorded_at_ms``, which is before the commit, to the client's read.

    The folder should be in memory: on a disk the figure has the disk's full sync in it.
    """
    with running(root, simulate=simulation()) as daemon:
        ids = create_many(daemon, 20)
        receive, send = multiprocessing.Pipe(duplex=False)
        at = (daemon.management_port, daemon.token, daemon.snapshot()["cursor"], EVENTS_S)
        follower = multiprocessing.Process(target=follow, args=(*at, send))
        follower.start()
        assert receive.poll(30.0)
        receive.recv()
        sent = replace_at_rate(daemon, ids)
        assert receive.poll(60.0)
        late_ms: list[float] = receive.recv()
        follower.join(10.0)
        yield "events sent per second", -sent / EVENTS_S, -0.9 * EVENTS_PER_S, "(negated)"
        yield "event at one of 16 streams, p50", percentile(late_ms, 50), EVENT_MS_BAR, "ms"
        yield "event at one of 16 streams, p99", percentile(late_ms, 99), EVENT_MS_BAR, "ms"
        yield "events lost", float(sent * STREAMS_COUNT - len(late_ms)), 0.0, ""


def replace_at_rate(daemon: Daemon, ids: Sequence[str]) -> int:
    """Replaces on two connections, each an event; how many were accepted."""
    began_s = time.monotonic()

    def one(worker: int) -> int:
        mine = ids[worker::2]
        done = 0
        with contextlib.closing(connection_to(daemon)) as connection:
            while (passed_s := time.monotonic() - began_s) < EVENTS_S:
                due_s = done * 2 / EVENTS_PER_S
                if passed_s < due_s:
                    time.sleep(due_s - passed_s)
                id = mine[done % len(mine)]
                revision = done // len(mine) + 1
                document = {"name": f"m{ids.index(id)}", "engine": "vllm", "model": "model"}
                body = {"config": document, "expected_revision": revision}
                key = f"r-{id}-{revision}"
                status = ask(connection, daemon, "PUT", f"/deployments/{id}", body, key)[0]
                assert status == 202, status
                done += 1
        return done

    with Crowd(2) as crowd:
        for worker in range(2):
            crowd.do(one, worker)
        return sum(crowd.results())


def follow(port: int, token: str, cursor: str, within_s: float, send: Any) -> None:
    """Read all streams in one loop, in a process of its own."""
    selector = selectors.DefaultSelector()
    rests: dict[socket.socket, bytes] = {}
    for _ in range(STREAMS_COUNT):
        stream = socket.create_connection(("127.0.0.1", port))
        stream.sendall(
            f"GET /management/v1/events?after={cursor} HTTP/1.1\r\nHost: 127.0.0.1\r\n"
            f"Authorization: Bearer {token}\r\n\r\n".encode()
        )
        selector.register(stream, selectors.EVENT_READ)
        rests[stream] = b""
    send.send("open")
    late_ms: list[float] = []
    mark = b'"recorded_at_ms":"'
    until = time.monotonic() + within_s + 3.0
    while time.monotonic() < until:
        for key, _ in selector.select(0.1):
            stream = key.fileobj
            assert isinstance(stream, socket.socket)
            data = stream.recv(65_536)
            now_ms = time.time() * 1000
            *whole, rests[stream] = (rests[stream] + data).split(b"\n\n")
            for frame in whole:
                _, found, rest = frame.partition(mark)
                if found:
                    late_ms.append(now_ms - int(rest[: rest.index(b'"')]))
    send.send(late_ms)


def snapshots(root: Path) -> Iterator[Figure]:
    """Snapshots of 100 and of 1,000 deployments of 2 instances; relaying beside the latter."""
    engines = {"first_token_s": 0.0, "tokens_per_s": 0}
    with running(root, simulate=simulation(engines=engines)) as daemon:
        for count, bar_ms in ((100, SNAPSHOT_MS_BAR), (1000, MANY_SNAPSHOT_MS_BAR)):
            create_many(daemon, count, instances=2, first=0 if count == 100 else 100)
            took_ms, size_bytes = read_snapshots(daemon)
            yield f"snapshot of {count}x2, p50", percentile(took_ms, 50), bar_ms, "ms"
            yield f"snapshot of {count}x2, p99", percentile(took_ms, 99), bar_ms, "ms"
            yield f"snapshot of {count}x2, size", size_bytes / 1024, 8192.0, "KiB"
        served = daemon.create("a", 1024)
        daemon.do(served, "start")
        daemon.wait_state(served, "ready")
        yield from relaying_beside_snapshots(daemon)


def read_snapshots(daemon: Daemon, count: int = 300) -> tuple[list[float], int]:
    """How long each of ``count`` snapshots took, in ms, and the size of the last one."""
    took_ms = []
    with contextlib.closing(connection_to(daemon)) as connection:
        for _ in range(count):
            began_s = time.monotonic()
            status, data = ask(connection, daemon, "GET", "/snapshot")
            took_ms.append((time.monotonic() - began_s) * 1000)
            assert status == 200
    return took_ms, len(data)


def relaying_beside_snapshots(daemon: Daemon) -> Iterator[Figure]:
    """Requests alone, then while a snapshot of everything is read once a second."""
    alone_ms = [chat_ms(daemon) for _ in range(RELAYED_COUNT)]
    over = threading.Event()

    def read_on() -> None:
        while not over.wait(1.0):
            read_snapshots(daemon, 1)

    reader = threading.Thread(target=read_on)
    reader.start()
    try:
        beside_ms = [chat_ms(daemon) for _ in range(RELAYED_COUNT)]
    finally:
        over.set()
        reader.join()
    bar_ms = percentile(alone_ms, 99) + RELAY_MOVED_MS_BAR
    yield "request alone, p99", percentile(alone_ms, 99), bar_ms, "ms"
    yield "request while snapshots are read, p99", percentile(beside_ms, 99), bar_ms, "ms"


def wakes(root: Path) -> Iterator[Figure]:
    """A request for a parked model, less the engine's wake and the same request when ready."""
    engines = {"wake_s": WAKE_S, "first_token_s": 0.0, "tokens_per_s": 0}
    with running(root, simulate=simulation(engines=engines)) as daemon:
        id = daemon.create("a", 1024)
        daemon.do(id, "start")
        daemon.wait_state(id, "ready")
        ready_ms = [chat_ms(daemon) for _ in range(20)]
        parked_ms = []
        for _ in range(10):
            daemon.do(id, "park")
            daemon.wait_state(id, "parked")
            parked_ms.append(chat_ms(daemon))
        beyond = statistics.median(parked_ms) - WAKE_S * 1000 - statistics.median(ready_ms)
        yield "request to a ready model, p50", percentile(ready_ms, 50), 50.0, "ms"
        yield "request to a parked model beyond its wake", beyond, WAKE_OVERHEAD_MS_BAR, "ms"


MEASUREMENTS: dict[str, Callable[[Path], Iterator[Figure]]] = {
    "memory": idle_memory,
    "start": start_with_many,
    "events": event_latency,
    "snapshots": snapshots,
    "wakes": wakes,
}


# -- steps they share ------------------------------------------------------------------------


def create_many(daemon: Daemon, count: int, first: int = 0, **document: Any) -> list[str]:
    """Deployments ``m<first>`` … up to ``count`` of one checkpoint, all measured."""
    if first == 0:
        write_checkpoint(daemon.models / "model", weights_bytes=1024 * MIB)
    ids = []
    with contextlib.closing(connection_to(daemon)) as connection:
        for number in range(first, count):
            config = {"name": f"m{number}", "engine": "vllm", "model": "model", **document}
            body = {"config": config, "activate": False}
            status, data = ask(connection, daemon, "POST", "/deployments", body, f"c{number}")
            assert status == 202, data
            ids.append(json.loads(data)["deployment_id"])
    wait_until(
        lambda: all(
            d["checkpoint_digest"]["state"] == "recorded" for d in daemon.snapshot()["deployments"]
        ),
        what="all are measured",
        within_s=120.0,
    )
    return ids


def connection_to(daemon: Daemon) -> http.client.HTTPConnection:
    return http.client.HTTPConnection("127.0.0.1", daemon.management_port, timeout=30.0)


def ask(
    connection: http.client.HTTPConnection,
    daemon: Daemon,
    method: str,
    path: str,
    body: Any = None,
    key: str = "",
) -> tuple[int, bytes]:
    headers = {"Authorization": f"Bearer {daemon.token}"}
    data = None
    if body is not None:
        headers |= {"Content-Type": "application/json", "Idempotency-Key": key}
        data = json.dumps(body).encode()
    connection.request(method, "/management/v1" + path, data, headers)
    answer = connection.getresponse()
    return answer.status, answer.read()


def chat_ms(daemon: Daemon) -> float:
    began_s = time.monotonic()
    reply = daemon.chat("a", max_tokens=1)
    assert reply.status == 200, reply
    return (time.monotonic() - began_s) * 1000


def rss_mib(daemon: Daemon) -> float:
    assert daemon.process is not None
    status = Path(f"/proc/{daemon.process.pid}/status").read_text()
    line = next(line for line in status.splitlines() if line.startswith("VmRSS"))
    return int(line.split()[1]) / 1024


def percentile(values: Sequence[float], percent: int) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, len(ordered) * percent // 100)]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
