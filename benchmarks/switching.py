"""What a switch costs beside what the engines take: two simulated models, one card, turn by turn.

``python -m benchmarks.switching [--switches 100] [--folder DIR] [--check]``. Each request streams
from the model that is parked. Its time to the first byte, less the admission window (1 ms here)
and what one engine alone takes for the same calls (park, wake, canary, first byte), is what
capyctl adds. Nothing is pinned: on a busy machine all figures grow. The folder decides which disk
is measured: eight times in each switch something must be durable before the next thing happens.
"""

from __future__ import annotations

import argparse
import contextlib
import http.client
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from capyctl.simulated.checkpoint_writer import write_checkpoint
from tests.e2e.daemon import MIB, Daemon, free_port, running, simulation, wait_until
from tests.e2e.streams import events, send_chat

MODEL_MIB = 8192
"""Two do not fit one card of 24 GiB."""
PARK_S = WAKE_S = 0.05
WINDOW_S = 0.001
ADDED_P95_S_MAX = 0.030
BEHAVIOUR = {"park_s": PARK_S, "wake_s": WAKE_S, "first_token_s": 0.0, "tokens_per_s": 0}
CALLS = (
    ("GET", "/is_sleeping"),
    ("GET", "/metrics"),
    ("POST", "/sleep?level=1&mode=wait"),
    ("GET", "/is_sleeping"),
    ("GET", "/is_sleeping"),
    ("POST", "/wake_up?tags=weights"),
    ("GET", "/is_sleeping"),
    ("POST", "/wake_up?tags=kv_cache"),
    ("GET", "/is_sleeping"),
    ("POST", "/reset_prefix_cache"),
)
"""What the adapter asks of a vLLM that is parked and woken; its canary follows."""


def first_byte_s(open_stream: Callable[[], http.client.HTTPConnection]) -> float:
    """Seconds from the request to the first byte of the answer's body; reads the rest."""
    began_s = time.perf_counter()
    connection = open_stream()
    with contextlib.closing(connection):
        answer = connection.getresponse()
        first = answer.read(1)
        took_s = time.perf_counter() - began_s
        rest = answer.read()
        assert answer.status == 200, rest
        assert first
    return took_s


def switches_s(daemon: Daemon, count: int) -> list[float]:
    """Seconds to the first byte of each of ``count`` requests, taking turns."""
    names = ("a", "b")
    for name in names:
        daemon.create(name, MODEL_MIB, residency="host_backed")
        assert daemon.chat(name, max_tokens=1).status == 200
    took_s = []
    for turn in range(count + 4):
        name = names[turn % 2]
        took_s.append(
            first_byte_s(lambda name=name: send_chat(daemon, name, stream=True, max_tokens=1))
        )
    done = [e for e in events(daemon) if e.kind == "restored_committed"]
    assert len(done) >= count, f"{len(done)} wakes in {count} turns: they did not take turns"
    return took_s[4:]


@contextlib.contextmanager
def lone_engine(folder: Path) -> Iterator[int]:
    """The port of a simulated vLLM that nobody manages."""
    model = folder / "alone"
    write_checkpoint(model, weights_bytes=MODEL_MIB * MIB, format="safetensors")
    port = free_port()
    program = [sys.executable, "-m", "capyctl.simulated.engine_program", "vllm", "serve"]
    options = ["--port", str(port), "--host", "127.0.0.1", "--enable-sleep-mode"]
    behaviour = {"gpus": 1, "engines": {**BEHAVIOUR, "load_s": 0.05}}
    env = {**os.environ, "VLLM_SERVER_DEV_MODE": "1", "CAPYCTL_SIMULATED": json.dumps(behaviour)}
    named = ["--served-model-name", "alone"]
    engine = subprocess.Popen(
        [*program, str(model), *options, *named],
        env=env,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        wait_until(lambda: answers(port), what="the lone engine answers")
        yield port
    finally:
        engine.terminate()
        try:
            engine.wait(10)
        except subprocess.TimeoutExpired:
            engine.kill()
            engine.wait()


def answers(port: int) -> bool:
    with contextlib.suppress(OSError):
        return call(port, "GET", "/health") == 200
    return False


def call(port: int, method: str, path: str, body: Any = None) -> int:
    """One call on a connection of its own, as the adapters make them."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30.0)
    with contextlib.closing(connection):
        data = None if body is None else json.dumps(body).encode()
        connection.request(method, path, data, {"Content-Type": "application/json"})
        answer = connection.getresponse()
        answer.read()
        return answer.status


def own_s(port: int, count: int) -> list[float]:
    """Seconds an engine alone takes from being told to park to a first byte after its wake."""
    chat = {"model": "alone", "messages": [{"role": "user", "content": "Hello"}], "max_tokens": 8}

    def stream() -> http.client.HTTPConnection:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30.0)
        body = json.dumps({**chat, "max_tokens": 1, "stream": True}).encode()
        headers = {"Content-Type": "application/json"}
        connection.request("POST", "/v1/chat/completions", body, headers)
        return connection

    took_s = []
    for _ in range(count):
        began_s = time.perf_counter()
        for method, path in CALLS:
            assert call(port, method, path) == 200, path
        assert call(port, "POST", "/v1/chat/completions", chat) == 200
        first_byte_s(stream)
        took_s.append(time.perf_counter() - began_s)
    return took_s


def syncs_s(folder: Path, count: int = 200) -> list[float]:
    """Seconds that the disk alone takes to make one page durable."""
    took_s = []
    with (folder / "page").open("wb", buffering=0) as file:
        for _ in range(count):
            began_s = time.perf_counter()
            file.write(bytes(4096))
            os.fdatasync(file.fileno())
            took_s.append(time.perf_counter() - began_s)
    return took_s


def percentile(values: list[float], percent: int) -> float:
    return statistics.quantiles(values, n=100, method="inclusive")[percent - 1]


def told(what: str, values_s: list[float]) -> str:
    middle, slow = (percentile(values_s, percent) * 1000 for percent in (50, 95))
    return f"{what:38} p50 {middle:7.1f} ms   p95 {slow:7.1f} ms"


def measure(folder: Path, count: int) -> list[float]:
    """Print what was measured; seconds added to each switch."""
    sets = (f"host.resource_policy.queue.admission_window={WINDOW_S * 1000:.0f}ms",)
    with lone_engine(folder) as port:
        own_s(port, 3)
        own = own_s(port, max(20, count // 4))
    with running(folder / "root", simulate=simulation(engines=BEHAVIOUR), sets=sets) as daemon:
        whole = switches_s(daemon, count)
    added = [took_s - WINDOW_S - percentile(own, 50) for took_s in whole]
    print(f"{count} switches")
    print(told("the disk alone, one durable page", syncs_s(folder)))
    print(told("an engine alone: park, wake, first byte", own))
    print(told("request to first byte, switching", whole))
    print(told("added by capyctl", added))
    return added


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--switches", type=int, default=100)
    parser.add_argument("--folder", type=Path, help="on the disk to be measured")
    parser.add_argument("--check", action="store_true", help="fail over the bar")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=arguments.folder) as name:
        added = measure(Path(name), arguments.switches)
    slow_s = percentile(added, 95)
    if arguments.check and slow_s > ADDED_P95_S_MAX:
        sys.exit(f"p95 {slow_s * 1000:.1f} ms is over {ADDED_P95_S_MAX * 1000:.0f} ms")


if __name__ == "__main__":
    main()
