"""A machine without engine processes: it does at once what a server asks, and notes when."""

from __future__ import annotations

import itertools
import time
from collections.abc import Collection

import attrs
import trio

from capyctl.contracts.checkpoints import Progress
from capyctl.contracts.host import EndOutcome, ParkProof
from capyctl.domain.checkpoints import CheckpointFacts, RemoteSource
from capyctl.domain.devices import EngineSample, Gpu, MachineShape, MemorySample
from capyctl.domain.identity import ExitStatus, ProcessIdentity
from capyctl.domain.ids import DeploymentId, DomainName, GpuId, HostId, LaunchId
from capyctl.domain.launches import Endpoint, LaunchOrder, LaunchRecord
from capyctl.domain.specs import Charges, ModelTask
from capyctl.domain.units import GIB
from capyctl.ledger.limits import derive_domains

CARDS_COUNT = 4
CARD_BYTES = 80 * GIB
RAM_BYTES = 1024 * GIB
_PIDS = itertools.count(1000)


def machine_shape(host: HostId) -> MachineShape:
    """Four cards of 80 GiB beside 1 TiB of host RAM."""
    cards = {GpuId(f"gpu{number}"): CARD_BYTES for number in range(CARDS_COUNT)}
    gpus = tuple(
        Gpu(
            id=name,
            uuid=f"GPU-{host}-{name}",
            name="Simulated",
            total_bytes=size,
            domain=DomainName(name),
        )
        for name, size in cards.items()
    )
    return MachineShape(
        host=host, gpus=gpus, domains=derive_domains(ram_bytes=RAM_BYTES, cards=cards)
    )


@attrs.define(eq=False)
class LightEngine:
    """What stands for an engine's process."""

    record: LaunchRecord
    draws: Charges
    """Bytes that it takes on each domain while it serves."""
    gone: trio.Event = attrs.field(factory=trio.Event)


@attrs.define(eq=False)
class LightHost:
    """Implements `contracts.host.Host` and, of its own engines, `contracts.hosts.Strays`."""

    machine: MachineShape
    facts: CheckpointFacts
    """Of every model."""
    engine_port: int
    """Where all engines answer."""
    load_s: float = 0.0
    engines: dict[LaunchId, LightEngine] = attrs.field(factory=dict)
    prepared_at_s: dict[DeploymentId, float] = attrs.field(factory=dict)
    """When a launch of each deployment was last asked for, on the monotonic clock."""

    def shape(self) -> MachineShape:
        return self.machine

    async def measure(
        self, model_path: str, *, weights_file: str | None, declared: str | None = None
    ) -> CheckpointFacts:
        await trio.lowlevel.checkpoint()
        return self.facts

    async def fetch(self, source: RemoteSource, progress: Progress) -> int:
        await trio.lowlevel.checkpoint()
        return 0

    async def prepare(self, order: LaunchOrder) -> LaunchRecord:
        self.prepared_at_s[order.instance.deployment] = time.monotonic()
        await trio.lowlevel.checkpoint()
        assert order.charges is not None
        record = LaunchRecord(
            launch=order.launch,
            deployment=order.instance.deployment,
            index=order.instance.index,
            family=order.engine.family,
            profile=order.engine.profile,
            process=ProcessIdentity(pid=next(_PIDS), boot_id="light", start_ticks=1),
            port=self.engine_port,
            served_name=order.engine.served_name,
            residency=order.residency,
            model_path=order.engine.model_path,
            device_uuids=order.device_uuids,
            ready=order.charges.ready,
            files=order.files,
        )
        self.engines[order.launch] = LightEngine(record, order.charges.ready)
        return record

    async def run(self, record: LaunchRecord) -> None:
        await trio.lowlevel.checkpoint()

    async def discard(self, record: LaunchRecord) -> None:
        await trio.lowlevel.checkpoint()
        self._end(record.launch)

    async def wait_ready(self, record: LaunchRecord, order: LaunchOrder | None) -> str | None:
        await trio.sleep(0.0 if order is None else self.load_s)
        return "canary"

    def start_peak(self, record: LaunchRecord) -> Charges:
        return {}

    async def wait_exit(self, record: LaunchRecord) -> ExitStatus:
        await self.engines[record.launch].gone.wait()
        return ExitStatus(exit_code=0)

    def is_running(self, record: LaunchRecord) -> bool:
        return record.launch in self.engines

    async def park(self, record: LaunchRecord) -> ParkProof:
        await trio.lowlevel.checkpoint()
        return ParkProof(residue={})

    async def wake(self, record: LaunchRecord) -> None:
        await trio.lowlevel.checkpoint()

    async def end(self, record: LaunchRecord, *, grace_s: float, idle_s: float) -> EndOutcome:
        await trio.lowlevel.checkpoint()
        self._end(record.launch)
        return EndOutcome.GONE

    def endpoint(self, record: LaunchRecord) -> Endpoint:
        return Endpoint(host="127.0.0.1", port=record.port, key="k", served_name=record.served_name)

    def routes(self, family: str, task: ModelTask) -> frozenset[str]:
        return frozenset()

    async def sample(self) -> MemorySample:
        await trio.lowlevel.checkpoint()
        room = {domain.name: domain.total_bytes for domain in self.machine.domains}
        for engine in self.engines.values():
            for domain, size in engine.draws.items():
                room[domain] -= size
        return MemorySample(at_s=trio.current_time(), available_bytes=room)

    async def sample_engine(self, record: LaunchRecord) -> EngineSample | None:
        await trio.lowlevel.checkpoint()
        return EngineSample(at_s=trio.current_time(), running=0, waiting=0, kv_usage_ratio=0.1)

    async def log_tail(self, record: LaunchRecord, *, bytes_max: int) -> tuple[str, bool] | None:
        await trio.lowlevel.checkpoint()
        return "one line\n", False

    async def end_others(self, keep: Collection[LaunchId]) -> frozenset[LaunchId]:
        await trio.lowlevel.checkpoint()
        strays = frozenset(self.engines.keys() - set(keep))
        for launch in strays:
            self._end(launch)
        return strays

    def _end(self, launch: LaunchId) -> None:
        engine = self.engines.pop(launch, None)
        if engine is not None:
            engine.gone.set()
