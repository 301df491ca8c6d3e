"""The store under load: durable changes a second, and how soon subscribers see a commit.

``python -m benchmarks.store [--seconds 2] [--folder DIR]``; the folder decides which disk is
measured. Loopback and network are not touched.
"""

from __future__ import annotations

import argparse
import itertools
import statistics
import tempfile
import time
from pathlib import Path

import trio
import trio.testing
from ulid import ULID

from capyctl.contracts.store import Change, Committed
from capyctl.domain.events import NewEvent, Receipt
from capyctl.domain.ids import DeploymentId, OperationId
from capyctl.domain.operations import Operation, OperationKind, OperationState
from capyctl.store.sqlite_store import SqliteStore, open_store
from capyctl.telemetry.hub import Hub, Subscription

CALLERS = (1, 32, 256)
SUBSCRIBERS_COUNT = 16
EVENTS_PER_S = 200


class RandomIds:
    def ulid(self) -> str:
        return str(ULID())


def wall_ms() -> int:
    return time.time_ns() // 1_000_000


def change(number: int, deployment: DeploymentId, operation: OperationId) -> Change:
    """As an accepted action makes it: an operation, its receipt, its event."""
    return Change(
        puts=(
            Operation(
                id=operation,
                deployment=deployment,
                instance=0,
                kind=OperationKind.INITIALIZE,
                state=OperationState.RUNNING if number % 2 else OperationState.SUCCEEDED,
                accepted_at_ms=number,
            ),
        ),
        receipt=Receipt(
            scope=f"actions:{deployment}",
            key=operation,
            fingerprint="0" * 64,
            response='{"operation_id":"' + operation + '"}',
        ),
        events=(
            NewEvent(
                kind="initialize_accepted",
                deployment=deployment,
                operation=operation,
                payload={"transition": "accepted", "instance": 0, "session_epoch": "1"},
            ),
        ),
    )


async def changes_per_s(folder: Path, callers_count: int, run_s: float) -> tuple[float, float]:
    """Durable changes a second, and the 99th percentile of one commit in milliseconds."""
    took_s: list[float] = []
    numbers = itertools.count()

    async def caller(store: SqliteStore, stop_at_s: float) -> None:
        deployment = DeploymentId(str(ULID()))
        while time.perf_counter() < stop_at_s:
            one = change(next(numbers), deployment, OperationId(str(ULID())))
            began_s = time.perf_counter()
            await store.commit(one)
            took_s.append(time.perf_counter() - began_s)

    path = folder / f"callers-{callers_count}" / "srv.sqlite3"
    path.parent.mkdir(mode=0o700)
    async with open_store(path, clock_wall_ms=wall_ms, ids=RandomIds()) as store:
        began_s = time.perf_counter()
        async with trio.open_nursery() as nursery:
            for _ in range(callers_count):
                nursery.start_soon(caller, store, began_s + run_s)
        whole_s = time.perf_counter() - began_s
    return len(took_s) / whole_s, percentile(took_s, 99) * 1000


async def latency_ms(folder: Path, run_s: float) -> dict[str, list[float]]:
    """Per event and subscriber: from the call of commit, and from its durability."""
    from_call: list[float] = []
    from_durable: list[float] = []
    called_at_s: dict[int, float] = {}
    durable_at_s: dict[int, float] = {}

    def durable(batch: tuple[Committed, ...]) -> None:
        for committed in batch:
            for event in committed.events:
                durable_at_s[event.seq] = time.perf_counter()

    async def follow(subscription: Subscription) -> None:
        while True:
            for event in await subscription.next_page():
                now_s = time.perf_counter()
                from_call.append(now_s - called_at_s[event.seq])
                from_durable.append(now_s - durable_at_s[event.seq])

    async def commit(store: SqliteStore, number: int, deployment: DeploymentId) -> None:
        called_at_s[number + 1] = time.perf_counter()
        await store.commit(change(number, deployment, OperationId(str(ULID()))))

    path = folder / "latency" / "srv.sqlite3"
    path.parent.mkdir(mode=0o700)
    async with open_store(path, clock_wall_ms=wall_ms, ids=RandomIds()) as store:
        store.listen(durable)
        hub = Hub(store, last_seq=0)
        deployment = DeploymentId(str(ULID()))
        async with trio.open_nursery() as nursery:
            for _ in range(SUBSCRIBERS_COUNT):
                nursery.start_soon(follow, hub.subscribe(0))
            began_s = trio.current_time()
            async with trio.open_nursery() as writers:
                for number in range(int(run_s * EVENTS_PER_S)):
                    await trio.sleep_until(began_s + number / EVENTS_PER_S)
                    await trio.lowlevel.checkpoint()
                    writers.start_soon(commit, store, number, deployment)
            await trio.testing.wait_all_tasks_blocked()
            nursery.cancel_scope.cancel()
    return {"commit call": from_call, "durable": from_durable}


def percentile(values: list[float], percent: int) -> float:
    return statistics.quantiles(values, n=100, method="inclusive")[percent - 1]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=2.0, help="of each measurement")
    parser.add_argument("--folder", type=Path, help="on the disk to be measured")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=arguments.folder) as name:
        for callers_count in CALLERS:
            rate, slow_ms = trio.run(changes_per_s, Path(name), callers_count, arguments.seconds)
            print(f"{callers_count:4} callers: {rate:8.0f} durable changes/s, p99 {slow_ms:.1f} ms")
        for start, values_s in trio.run(latency_ms, Path(name), arguments.seconds).items():
            middle, slow = (percentile(values_s, percent) * 1000 for percent in (50, 99))
            print(
                f"{start} to subscriber ({SUBSCRIBERS_COUNT} of them, {EVENTS_PER_S} events/s):"
                f" p50 {middle:.2f} ms, p99 {slow:.2f} ms"
            )


if __name__ == "__main__":
    main()
