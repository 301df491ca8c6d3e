"""``python -m capyctl.simulation --seeds N [--start S] [--hosts H]``: prints seeds that fail."""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter

from capyctl.simulation.checks import Violation
from capyctl.simulation.coverage import EdgeName, all_edges
from capyctl.simulation.run import Simulation

FAILURES_MAX = 20


def main() -> int:
    """1 when a seed failed; stops after 20 of them."""
    parser = argparse.ArgumentParser(prog="python -m capyctl.simulation", description=__doc__)
    parser.add_argument("--seeds", type=int, default=100, help="how many worlds")
    parser.add_argument("--start", type=int, default=0, help="the first seed")
    parser.add_argument("--hosts", type=int, default=1, help="how many; more than one over a link")
    parser.add_argument("--trace", action="store_true", help="print what happened in each world")
    asked = parser.parse_args()
    failed: list[int] = []
    reached: Counter[EdgeName] = Counter()
    served_count = 0
    began_s = time.monotonic()
    for seed in range(asked.start, asked.start + asked.seeds):
        world = Simulation(seed) if asked.hosts == 1 else _fleet(seed, asked.hosts)
        try:
            outcome = world.run()
            served_count += outcome.served_count
        except Violation as problem:
            failed.append(seed)
            print(problem, flush=True)
        reached.update(world.reached)
        if asked.trace:
            print("\n".join(world.checks.trace))
        if len(failed) >= FAILURES_MAX:
            break
    took_s = time.monotonic() - began_s
    missed = sorted(all_edges() - set(reached))
    print(f"{asked.seeds} worlds in {took_s:.1f} s, {served_count} requests served")
    print(f"edges not reached ({len(missed)} of {len(all_edges())}):", missed)
    print("failed seeds:", failed or "none")
    return 1 if failed else 0


def _fleet(seed: int, hosts_count: int) -> Simulation:
    # The link takes a while to load.
    from capyctl.simulation.fleet_run import FleetSimulation

    return FleetSimulation(seed, hosts_count=hosts_count)


if __name__ == "__main__":
    sys.exit(main())
