"""What relaying costs, beside nginx and a bare asyncio proxy in the same run.

``python -m benchmarks.relay [--rounds 3] [--seconds 1.5] [--only NAME …]``. Loopback only. The
engine and the load generator are C, on one core; each proxy is alone on another. Rounds are
interleaved and figures are medians; CPU time is what counts, rates and p99 tell of the neighbours.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from benchmarks.relay.proxies import (
    BESIDE,
    LOAD_CORE,
    Process,
    compiled,
    free_port,
    pinned,
    start_proxies,
)

SLACK = 1.3
"""How far over a bar a noisy machine may be before ``--check`` fails."""


@dataclass(frozen=True)
class Scenario:
    name: str
    connections: int
    body_bytes: int = 500
    arrivals_per_s: float = 0
    stream_events: int = 0
    events_per_s: float = 0
    aligned: bool = False

    @property
    def per_event(self) -> bool:
        return self.stream_events > 0


SCENARIOS = (
    Scenario("small", 32),
    Scenario("one client", 1),
    Scenario("open loop, 2000/s", 64, arrivals_per_s=2000),
    Scenario("100 KB", 32, body_bytes=100 * 1024),
    Scenario("128 streams", 128, stream_events=64, events_per_s=50),
    Scenario("128 aligned", 128, stream_events=64, events_per_s=50, aligned=True),
    Scenario("512 streams", 512, stream_events=64, events_per_s=50),
)


@dataclass(frozen=True)
class Measured:
    cpu_us: float
    """The proxy's own, per request or per event."""
    core_ratio: float
    """Of one core, while the load ran."""
    per_s: float
    p50_ms: float
    p99_ms: float
    pss_mib: float
    failed: int


def measure(
    proxy: Process | None, port: int, load: Path, what: Scenario, seconds: float
) -> Measured:
    """One run of one scenario against one proxy, or straight against the engine."""
    if what.per_event:
        seconds = max(seconds, 2 * what.stream_events / what.events_per_s)
    numbers = (
        port, what.connections, seconds, what.body_bytes, what.arrivals_per_s,
        what.stream_events, what.events_per_s,
    )  # fmt: skip
    command = pinned(LOAD_CORE, [str(load), *map(str, numbers)])
    before_s = proxy.cpu_s() if proxy else 0.0
    ran = subprocess.run(command, capture_output=True, text=True, timeout=seconds + 60, check=True)
    cpu_s = (proxy.cpu_s() if proxy else 0.0) - before_s
    told = json.loads(ran.stdout)
    count = told["events"] if what.per_event else told["answered"]
    kind = "event_" if what.per_event else ""
    return Measured(
        cpu_us=cpu_s / max(count, 1) * 1e6,
        core_ratio=cpu_s / told["took_s"],
        per_s=(told["event_count"] / seconds) if what.per_event else count / told["took_s"],
        p50_ms=told[f"{kind}p50_ms"],
        p99_ms=told[f"{kind}p99_ms"],
        pss_mib=proxy.pss_mib() if proxy else 0.0,
        failed=told["failed"] + told["broken"],
    )


def middle(runs: list[Measured]) -> Measured:
    """The median of each figure; failures are summed."""
    fields = ("cpu_us", "core_ratio", "per_s", "p50_ms", "p99_ms", "pss_mib")
    medians = {name: statistics.median(getattr(run, name) for run in runs) for name in fields}
    return Measured(**medians, failed=sum(run.failed for run in runs))


Results = dict[str, dict[str, Measured]]


def run_all(chosen: list[Scenario], rounds: int, seconds: float, *, far: bool = False) -> Results:
    """Each scenario in interleaved rounds, forwards and backwards."""
    results: Results = {}
    with tempfile.TemporaryDirectory(prefix="capyctl-bench-") as name:
        folder = Path(name)
        engine_program, load = compiled(folder)
        for aligned in (False, True):
            scenarios = [s for s in chosen if s.aligned is aligned]
            if not scenarios:
                continue
            port = free_port()
            more = ["aligned"] if aligned else []
            command = pinned(LOAD_CORE, [str(engine_program), str(port), *more])
            engine = Process(command, port, folder / "engine.log")
            proxies: dict[str, Process] = {}
            try:
                engine.wait_until_it_listens()
                proxies = start_proxies(folder, port, far=far)
                for what in scenarios:
                    results[what.name] = run_rounds(proxies, port, load, what, rounds, seconds)
                    show(what, results[what.name])
            finally:
                for process in (*proxies.values(), engine):
                    process.stop()
    return results


def run_rounds(
    proxies: dict[str, Process],
    engine_port: int,
    load: Path,
    what: Scenario,
    rounds: int,
    seconds: float,
) -> dict[str, Measured]:
    order: list[str] = ["direct", *(name for name in proxies if name != BESIDE)]
    runs: dict[str, list[Measured]] = {name: [] for name in order}
    for number in range(rounds):
        for name in order if number % 2 == 0 else reversed(order):
            proxy = proxies.get(name)
            port = proxy.port if proxy else engine_port
            runs[name].append(measure(proxy, port, load, what, seconds))
    return {name: middle(measured) for name, measured in runs.items()}


def show(what: Scenario, measured: dict[str, Measured]) -> None:
    unit = "event" if what.per_event else "request"
    print(f"\n{what.name}: CPU per {unit}, load average {os.getloadavg()[0]:.1f}")
    print(
        f"  {'':10} {'CPU us':>8} {'core':>6} {'per s':>9} {'p50 ms':>8} {'p99 ms':>8} {'MiB':>6}"
    )
    for name, m in measured.items():
        print(
            f"  {name:10} {m.cpu_us:8.1f} {m.core_ratio:6.0%} {m.per_s:9.0f} {m.p50_ms:8.3f} "
            f"{m.p99_ms:8.3f} {m.pss_mib:6.1f}" + (f"  {m.failed} failed" if m.failed else "")
        )
    sys.stdout.flush()


@dataclass(frozen=True)
class Bar:
    what: str
    value: float
    bound: float
    at_least: bool

    @property
    def holds(self) -> bool:
        return self.value >= self.bound if self.at_least else self.value <= self.bound

    @property
    def nearly_holds(self) -> bool:
        if self.at_least:
            return self.value * SLACK >= self.bound
        return self.value <= self.bound * SLACK


def bars(results: Results) -> list[Bar]:
    """The goals, as far as their scenarios were run; nginx must be among the proxies."""
    found = []
    for scenario, bound in (("small", 0.22), ("100 KB", 0.30)):
        measured = results.get(scenario, {})
        if "nginx" in measured:
            share = measured["nginx"].cpu_us / measured["capyctl"].cpu_us
            found.append(Bar(f"{scenario}: requests per core against nginx", share, bound, True))
    if (one := results.get("one client")) is not None:
        added_ms = one["capyctl"].p50_ms - one["direct"].p50_ms
        found.append(Bar("one client: added p50, ms", added_ms, 0.35, False))
    for scenario, bound_ms in (("128 streams", 2.0), ("128 aligned", 6.0)):
        if (many := results.get(scenario)) is not None:
            found.append(Bar(f"{scenario}: p99 delay, ms", many["capyctl"].p99_ms, bound_ms, False))
    if (many := results.get("128 streams")) is not None:
        cpu_ms = many["capyctl"].cpu_us
        found.append(Bar("128 streams: CPU ms per 1,000 events", cpu_ms, 48, False))
    if (most := results.get("512 streams")) is not None:
        rate = most["capyctl"].per_s / most["direct"].per_s
        found.append(Bar("512 streams: rate against direct", rate, 0.97, True))
        found.append(Bar("512 streams: share of a core", most["capyctl"].core_ratio, 0.90, False))
        found.append(Bar("512 streams: memory, MiB", most["capyctl"].pss_mib, 80, False))
    return found


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.relay", description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=1.5)
    parser.add_argument("--only", nargs="*", choices=[s.name for s in SCENARIOS])
    parser.add_argument("--far", action="store_true", help="also through a host's ingress")
    parser.add_argument("--check", action="store_true", help="fail when a bar is missed by 30 %%")
    asked = parser.parse_args()
    chosen = [s for s in SCENARIOS if not asked.only or s.name in asked.only]
    rounds, seconds = min(asked.rounds, 20), min(asked.seconds, 30.0)
    found = bars(run_all(chosen, rounds, seconds, far=asked.far))
    print("\ngoals")
    for bar in found:
        sign = ">=" if bar.at_least else "<="
        verdict = "ok" if bar.holds else "MISSED"
        print(f"  {verdict:6} {bar.what}: {bar.value:.3g} ({sign} {bar.bound:g})")
    if asked.check and not all(bar.nearly_holds for bar in found):
        return 1
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
