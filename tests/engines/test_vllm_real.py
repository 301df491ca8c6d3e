"""The vLLM family, and the host around it, against a real vLLM on the CPU.

The CPU build runs the whole sleep protocol and frees no memory, so the meter is a fake. Each test
starts an engine of its own, which takes half a minute or more; so each asks for a lot.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

import attrs
import pytest
import trio

from capyctl.contracts.engines import Control, EngineBroken, LaunchKeys, ParkRefused, Rendered
from capyctl.contracts.host import EndOutcome
from capyctl.control.host import LocalHost
from capyctl.domain.devices import MemorySample, ProcessFigures
from capyctl.domain.ids import DomainName
from capyctl.domain.launches import LaunchOrder, LaunchRecord
from capyctl.domain.specs import Residency
from capyctl.domain.units import GIB, MIB
from capyctl.engines.http import Unreachable, request
from capyctl.engines.installations import check_version, deep_park_probe, locate
from capyctl.engines.preparation import prepare_launch
from capyctl.engines.readiness import Caller
from capyctl.engines.runtime_dir import ensure_runtime
from capyctl.engines.surroundings import Surroundings
from capyctl.engines.vllm import Vllm
from capyctl.launch.addresses import PortLeases
from capyctl.launch.processes import LocalProcesses
from tests.engines_unit.fake_server import Asked, FakeServer, Told
from tests.engines_unit.scenes import order, surroundings

pytestmark = [
    pytest.mark.engines,
    pytest.mark.slow,
    pytest.mark.skipif(
        "CAPYCTL_TEST_VLLM_WHY_NOT" in os.environ,
        reason=os.environ.get("CAPYCTL_TEST_VLLM_WHY_NOT", ""),
    ),
]

READY_WITHIN_S = 600.0
TEST_WITHIN_S = 900.0
HANGS_FOR_S = 2.0
PLAIN = "/v1/completions"
ASK = {"model": "m", "prompt": "x", "max_tokens": 4, "temperature": 0}
LEADER, CORE, WORKER = "the API process", "VLLM::EngineCor", "VLLM::Worker"
LEVELS = {1: Residency.HOST_BACKED, 2: Residency.DEEP}


@attrs.define
class Meter:
    """A machine whose GPU memory reads as if the worker used it and gave back what it says."""

    find_worker: Callable[[], int | None] = lambda: None
    now: int = 8 * GIB
    parked: int = GIB

    async def sample(self) -> MemorySample:
        worker = self.find_worker()
        used = {} if worker is None else {worker: self.now}
        return MemorySample(at_s=0, available_bytes={}, used_by_pid=used)

    async def look_at(self, pids: Collection[int]) -> ProcessFigures:
        return ProcessFigures()


class CpuVllm:
    """The family, but for two things that a CPU cannot do.

    `--enable-sleep-mode` is refused there, while its routes answer in development mode; and no
    memory moves, so the meter is moved instead.
    """

    def __init__(self, place: Surroundings, meter: Meter) -> None:
        self._vllm = Vllm(surroundings=place)
        self._meter = meter

    def __getattr__(self, name: str) -> Any:
        return getattr(self._vllm, name)

    def render(self, order: LaunchOrder, *, port: int, keys: LaunchKeys) -> Rendered:
        rendered = self._vllm.render(order, port=port, keys=keys)
        return attrs.evolve(rendered, env={**rendered.env, "VLLM_SERVER_DEV_MODE": "1"})

    async def park(self, control: Control) -> None:
        await self._vllm.park(control)
        self._meter.now = self._meter.parked

    async def wake(self, control: Control, *, canary: str | None) -> None:
        await self._vllm.wake(control, canary=canary)
        self._meter.now = 8 * GIB


@attrs.define
class Bench:
    """One real engine behind the host's own adapters."""

    host: LocalHost
    meter: Meter
    processes: LocalProcesses
    record: LaunchRecord

    def at(self, level: int, *, port: int | None = None) -> LaunchRecord:
        """The launch as if it were deployed to park at ``level``, reached through ``port``."""
        record = attrs.evolve(self.record, residency=LEVELS[level])
        return record if port is None else attrs.evolve(record, port=port)

    async def admin(self, method: str, path: str, value: Any = None) -> Any:
        caller = Caller(control=self.host._control(self.record))
        if method == "GET":
            return (await caller.get(path, admin=True)).json()
        return (await caller.post(path, value, within_s=120, admin=True)).json()

    async def ask(self, within_s: float = 120) -> Any:
        caller = Caller(control=self.host._control(self.record))
        return (await caller.post(PLAIN, ASK, within_s=within_s)).json()

    def pid_of(self, name: str) -> int:
        """Of the leader, or of the one process of its group that calls itself so."""
        if name == LEADER:
            return self.record.process.pid
        found = named(self.processes.group_members(self.record.process), name)
        assert found is not None
        return found


def named(pids: Collection[int], name: str) -> int | None:
    """The first of some processes whose name begins like this."""
    for pid in pids:
        with contextlib.suppress(OSError):
            if Path(f"/proc/{pid}/comm").read_text().startswith(name):
                return pid
    return None


@contextlib.asynccontextmanager
async def running(tmp_path):
    """A ready engine, started as a daemon starts one; nothing of it is left in the end."""
    place = surroundings("bare", state_dir=str(tmp_path))
    ensure_runtime(tmp_path)
    processes = LocalProcesses(tmp_path)
    meter = Meter()
    host = LocalHost(
        machine=meter,
        machine_shape=surroundings("card").shape,
        processes=processes,
        families={"vllm": CpuVllm(place, meter)},
        checkpoints=None,
        sources=None,
        ports=PortLeases(18_100, 18_199),
        secret=b"a secret of this test",
        before_launch=lambda ordered: prepare_launch(ordered, place),
    )
    ordered = order(
        "vllm",
        devices=(),
        executable=(os.environ["CAPYCTL_TEST_VLLM"],),
        model_path=os.environ["CAPYCTL_TEST_VLLM_MODEL"],
        context_length=512,
        concurrency=4,
        kv_cache_bytes=64 * MIB,
        typed={"cuda_graphs": False, "dtype": "bfloat16"},
        env={"VLLM_CPU_OMP_THREADS_BIND": "nobind"},
    )
    record = await host.prepare(ordered)
    meter.find_worker = lambda: named(processes.group_members(record.process), WORKER)
    await host.run(record)
    try:
        with trio.fail_after(READY_WITHIN_S):
            canary = await host.wait_ready(attrs.evolve(record, residency=Residency.DEEP), ordered)
        yield Bench(host, meter, processes, attrs.evolve(record, canary=canary))
    finally:
        with trio.CancelScope(shield=True):
            await processes.end(record.process, grace_s=0, proof_s=10)


def run(main: Callable[..., Any], *arguments: Any) -> None:
    """Longer than other tests may take, but not for ever."""

    async def bounded() -> None:
        with trio.fail_after(TEST_WITHIN_S):
            await main(*arguments)

    trio.run(bounded)


def test_it_is_known_though_its_own_command_fails():
    """`vllm --version` asks for the metadata of a distribution that is not installed."""
    found = locate(os.environ["CAPYCTL_TEST_VLLM"])
    assert (found.distribution, found.version) == ("vllm-cpu", "0.32.0")
    assert check_version(found).version == "0.32.0"
    assert "no sleep mode" in deep_park_probe(found)
    asked = subprocess.run(
        [found.executable, "--version"], capture_output=True, text=True, timeout=300, check=False
    )
    assert asked.returncode != 0
    assert "PackageNotFoundError" in asked.stderr


def test_the_whole_sleep_protocol_and_an_end_with_an_open_stream(tmp_path):
    async def main():
        async with running(tmp_path) as bench:
            await guarded(bench)
            checksums = await bench.admin("POST", "/weight_checker", {"action": "checksum"})
            for level in (1, 2, 2):
                proof = await bench.host.park(bench.at(level))
                assert proof.residue == {DomainName("gpu0"): GIB}
                assert await bench.admin("GET", "/is_sleeping") == {"is_sleeping": True}
                await bench.host.wake(bench.at(level))
                compare = {"action": "compare", "baseline": checksums["checksums"]}
                compared = await bench.admin("POST", "/weight_checker", compare)
                assert compared == {"match": True, "mismatches": []}
            await asleep(bench)
            await nothing_freed(bench)
            await ended_with_an_open_stream(bench)

    run(main)


async def guarded(bench):
    """The guard of the entry in the real server: no key, no answer."""
    port = bench.record.port
    control = bench.host._control(bench.record)
    for path, wanted in (("/v1/models", control.endpoint.key), ("/is_sleeping", control.admin_key)):
        keys = (None, "wrong", control.endpoint.key, control.admin_key)
        statuses = {}
        for key in keys:
            headers = {} if key is None else {"authorization": f"Bearer {key}"}
            reply = await request("GET", "127.0.0.1", port, path, headers=headers, within_s=30)
            statuses[key] = reply.status
        assert statuses == {key: 200 if key == wanted else 401 for key in keys}


async def asleep(bench):
    """A request to a sleeping engine hangs and is counted nowhere; an unknown tag does nothing."""
    record = bench.at(2)
    await bench.host.park(record)
    told = await bench.admin("POST", "/wake_up?tags=nonsense")
    assert told["status"] == "sleeping"
    async with trio.open_nursery() as nursery:
        nursery.start_soon(hangs, bench)
        await trio.sleep(HANGS_FOR_S / 2)
        sample = await bench.host.sample_engine(record)
        assert (sample.running, sample.waiting) == (0, 0)
    await bench.host.wake(record)


async def hangs(bench):
    with pytest.raises(Unreachable, match="not answered within"):
        await bench.ask(within_s=HANGS_FOR_S)


async def nothing_freed(bench):
    """It says that it sleeps, and the meter says otherwise: no park, and it serves on."""
    bench.meter.parked = bench.meter.now
    with pytest.raises(ParkRefused, match="too few came free"):
        await bench.host.park(bench.at(2))
    assert await bench.admin("GET", "/is_sleeping") == {"is_sleeping": False}
    assert len((await bench.ask())["choices"]) == 1


async def ended_with_an_open_stream(bench):
    """SIGTERM alone waits for the client for ever; the end of a launch does not."""
    endpoint = bench.host.endpoint(bench.record)
    stream = await trio.open_tcp_stream(endpoint.host, endpoint.port)
    body = b'{"model":"m","prompt":"x","max_tokens":400,"ignore_eos":true,"stream":true}'
    head = (
        f"POST {PLAIN} HTTP/1.1\r\nhost: e\r\ncontent-type: application/json\r\n"
        f"authorization: Bearer {endpoint.key}\r\ncontent-length: {len(body)}\r\n\r\n"
    )
    async with stream:
        await stream.send_all(head.encode() + body)
        received = b""
        while b"data: " not in received:
            received += await stream.receive_some()
        outcome = await bench.host.end(bench.record, grace_s=5, idle_s=0)
    assert outcome is EndOutcome.GONE
    assert bench.processes.group_members(bench.record.process) == ()


@pytest.mark.parametrize(
    ("step", "victim", "broken"),
    [
        ("/sleep", WORKER, "park_failed"),
        ("/wake_up?tags=weights", LEADER, "wake_failed"),
        ("/collective_rpc", CORE, "wake_failed"),
        ("/wake_up?tags=kv_cache", WORKER, "wake_failed"),
    ],
)
def test_killed_at_a_step_it_is_broken_and_nothing_of_it_is_left(tmp_path, step, victim, broken):
    async def main():
        async with running(tmp_path) as bench, trio.open_nursery() as nursery:
            between = FakeServer(lambda asked: forward(bench, asked, step, victim))
            await nursery.start(lambda task_status: between.serve(task_status=task_status))
            record = bench.at(2, port=between.port)
            with pytest.raises(EngineBroken) as caught:
                await park_and_wake(bench.host, record)
            assert caught.value.code == broken
            assert sum(step in call for call in between.calls()) == 1
            await survivors(bench, victim)
            nursery.cancel_scope.cancel()

    run(main)


async def park_and_wake(host, record):
    await host.park(record)
    await host.wake(record)


async def forward(bench: Bench, asked: Asked, step: str, victim: str) -> Told:
    """Stands between; kills one of its processes before it passes ``step`` on."""
    query = "&".join(f"{name}={value}" for name, value in asked.query)
    path = f"{asked.path}?{query}" if query else asked.path
    if path.startswith(step):
        os.kill(bench.pid_of(victim), signal.SIGKILL)
    kept = {name: asked.headers[name] for name in ("authorization", "content-type")
            if name in asked.headers}  # fmt: skip
    try:
        reply = await request(
            asked.method, "127.0.0.1", bench.record.port, path,
            headers=kept, body=asked.body or None, within_s=60,
        )  # fmt: skip
    except Unreachable:
        return Told(hang_up=True)
    return Told(status=reply.status, body=reply.body)


async def survivors(bench, victim):
    """Core and worker outlive a killed API process; of a killed worker it ends, with code 0.

    Of a killed core it does not end at all: it waits for tasks that nobody works on any more.
    That the worker is gone is what tells.
    """
    with trio.fail_after(60):
        ended = await bench.host.wait_exit(bench.record)
    if victim == LEADER:
        assert ended.exit_code == -signal.SIGKILL
        assert len(bench.processes.group_members(bench.record.process)) >= 2
    else:
        assert ended.worker_pid is not None or ended.exit_code == 0
    outcome = await bench.host.end(bench.record, grace_s=2, idle_s=0)
    assert outcome is EndOutcome.GONE
    assert bench.processes.group_members(bench.record.process) == ()
