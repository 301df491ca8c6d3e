"""A server with 100 hosts and 1,000 deployments: what it carries, and how soon it is itself again.

``python -m benchmarks.hosts [--hosts 100] [--each 10] [--anywhere] [--folder DIR] [--check]``. The
server is a real process; all hosts are in one other process, over real TLS sockets on loopback,
and their engines are entries in a table. Nothing is pinned: on a busy machine all figures grow.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from benchmarks.hosts.rig import rig
from benchmarks.hosts.stages import STAGES, Figure, Plan

HOSTS_MAX = 400


def measured(root: Path, plan: Plan) -> Iterator[Figure]:
    """All figures, as they come."""
    with rig(root, suspend_s=plan.suspend_s, lost_s=plan.lost_s) as made:
        for stage in STAGES:
            yield from stage(made, plan)


def line(figure: Figure) -> str:
    verdict = "" if figure.most is None else "MISSED" if figure.missed else "ok"
    bar = "" if figure.most is None else f"  (at most {figure.most:g})"
    return f"{verdict:6} {figure.what}: {figure.value:.2f} {figure.unit}{bar}"


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.hosts", description=__doc__)
    parser.add_argument("--hosts", type=int, default=100)
    parser.add_argument("--each", type=int, default=10, help="deployments for each host")
    parser.add_argument("--anywhere", action="store_true", help="on any host, not on one of them")
    parser.add_argument("--idle", type=float, default=30.0, help="seconds of each idle figure")
    parser.add_argument("--folder", type=Path, help="on the disk to be measured")
    parser.add_argument("--check", action="store_true", help="fail over a bar")
    asked = parser.parse_args()
    plan = Plan(
        hosts=min(asked.hosts, HOSTS_MAX),
        each=asked.each,
        idle_s=asked.idle,
        anywhere=asked.anywhere,
    )
    missed = 0
    print(f"{plan.hosts} hosts, {plan.count} deployments, load average {os.getloadavg()[0]:.1f}")
    with tempfile.TemporaryDirectory(prefix="capyctl-bench-", dir=asked.folder) as name:
        for figure in measured(Path(name), plan):
            missed += figure.missed
            print(line(figure), flush=True)
    return 1 if missed and asked.check else 0


if __name__ == "__main__":
    sys.exit(main())
