"""A machine with engines that outlive its host's process, and a server's records and ears."""

from __future__ import annotations

import itertools
from collections import Counter

import attrs
import trio

from capyctl.contracts.checkpoints import Unfetchable, Unmeasurable
from capyctl.contracts.engines import EngineBroken, ParkRefused
from capyctl.contracts.host import EndOutcome, LaunchRefused, ParkProof
from capyctl.domain.checkpoints import CheckpointFacts
from capyctl.domain.devices import EngineSample, MachineShape, MemorySample
from capyctl.domain.hosts import HostPublication, HostRecord, IngressAddress
from capyctl.domain.identity import ExitStatus, ProcessIdentity
from capyctl.domain.ids import DomainName, HostId, InstanceId, LaunchId
from capyctl.domain.launches import Endpoint, LaunchOrder, LaunchRecord
from capyctl.domain.specs import Residency
from tests.machines import making

HOST = HostId("0" * 25 + "H")
CARD = DomainName("gpu0")
PUBLICATION = HostPublication(
    shape=MachineShape(host=HOST, gpus=(), domains=()),
    version="0.1.0",
    capabilities=("checkpoint_digest", "engine_log_tail", "model_sources"),
    models_root="/models",
    ingress=IngressAddress(host="192.0.2.7", port=7446),
)


class TrioClock:
    def monotonic_s(self) -> float:
        return trio.current_time()

    def wall_ms(self) -> int:
        return round(trio.current_time() * 1000)


class CountedIds:
    def __init__(self, prefix: str = "0") -> None:
        self._prefix = prefix
        self._numbers = itertools.count(1)

    def ulid(self) -> str:
        number = f"{next(self._numbers)}"
        return self._prefix + number.rjust(26 - len(self._prefix), "0")


def order(launch: str = "1") -> LaunchOrder:
    return LaunchOrder(
        launch=LaunchId(launch.rjust(26, "0")),
        instance=InstanceId(making.DEPLOYMENT, 0),
        engine=making.ENGINE,
        residency=Residency.DEEP,
        charges=making.charges(),
    )


@attrs.define(eq=False)
class FakeEngine:
    record: LaunchRecord
    state: str = "latched"
    """``latched``, ``running``, ``parked`` or ``gone``."""
    latch_of: object = None
    gone: trio.Event = attrs.field(factory=trio.Event)

    def end(self) -> None:
        self.state = "gone"
        self.gone.set()


@attrs.define(eq=False)
class FakeMachine:
    """What is there between two processes of a host. ``times`` is how long each method takes."""

    engines: dict[LaunchId, FakeEngine] = attrs.field(factory=dict)
    calls: Counter = attrs.field(factory=Counter)
    """Begun, by method and what it is about."""
    takes_s: dict[str, float] = attrs.field(factory=dict)
    raises: dict[str, Exception] = attrs.field(factory=dict)
    """What a method raises next, once."""
    log: str = "line\n"
    pids: itertools.count = attrs.field(factory=lambda: itertools.count(100))

    @property
    def alive(self) -> set[LaunchId]:
        return {one.record.launch for one in self.engines.values() if one.state != "gone"}


class FakeHost:
    """One process of a host. Implements `contracts.host.Host`."""

    def __init__(self, machine: FakeMachine) -> None:
        self.machine = machine

    def process_ended(self) -> None:
        """The daemon is killed: its latches go, its engines stay."""
        for engine in self.machine.engines.values():
            if engine.state == "latched" and engine.latch_of is self:
                engine.end()

    async def _do(self, method: str, about: str = "") -> None:
        machine = self.machine
        machine.calls[method, about] += 1
        await trio.sleep(machine.takes_s.get(method, 0.0))
        if method in machine.raises:
            raise machine.raises.pop(method)

    def _engine(self, record: LaunchRecord) -> FakeEngine:
        return self.machine.engines[record.launch]

    def shape(self) -> MachineShape:
        return PUBLICATION.shape

    async def measure(self, model_path, *, weights_file, declared=None) -> CheckpointFacts:
        await self._do("measure", model_path)
        return CheckpointFacts(
            digest="sha256:" + "0" * 64,
            weights_bytes=8,
            format="gguf",
            weights_file=weights_file,
            stat_identity=(("a.gguf", 1, 2, 3, 4, 5),),
        )

    async def fetch(self, source, progress) -> int:
        progress(1, 10)
        await self._do("fetch", source.key)
        progress(10, 10)
        return 10

    async def prepare(self, order: LaunchOrder) -> LaunchRecord:
        await self._do("prepare", order.launch)
        record = LaunchRecord(
            launch=order.launch,
            deployment=order.instance.deployment,
            index=order.instance.index,
            family=order.engine.family,
            profile=order.engine.profile,
            process=ProcessIdentity(pid=next(self.machine.pids), boot_id="boot", start_ticks=7),
            port=20_000,
            served_name=order.engine.served_name,
            residency=order.residency,
            model_path=order.engine.model_path,
        )
        self.machine.engines[order.launch] = FakeEngine(record, latch_of=self)
        return record

    async def run(self, record: LaunchRecord) -> None:
        await self._do("run", record.launch)
        engine = self._engine(record)
        if engine.state != "latched" or engine.latch_of is not self:
            raise LaunchRefused("spawn_failed", "it has no latch", permanent=False)
        engine.state = "running"

    async def discard(self, record: LaunchRecord) -> None:
        await self._do("discard", record.launch)
        engine = self._engine(record)
        if engine.state == "latched":
            engine.end()

    async def wait_ready(self, record, order) -> str | None:
        await self._do("wait_ready", record.launch)
        return "canary"

    def start_peak(self, record: LaunchRecord):
        return {CARD: 5}

    async def wait_exit(self, record: LaunchRecord) -> ExitStatus:
        self.machine.calls["wait_exit", record.launch] += 1
        await self._engine(record).gone.wait()
        return ExitStatus(exit_code=-9)

    def is_running(self, record: LaunchRecord) -> bool:
        engine = self.machine.engines.get(record.launch)
        return engine is not None and engine.state != "gone"

    async def park(self, record: LaunchRecord) -> ParkProof:
        await self._do("park", record.launch)
        self._engine(record).state = "parked"
        return ParkProof(residue={CARD: 3}, attributed=False)

    async def wake(self, record: LaunchRecord) -> None:
        await self._do("wake", record.launch)
        self._engine(record).state = "running"

    async def end(self, record, *, grace_s, idle_s) -> EndOutcome:
        await self._do("end", record.launch)
        self._engine(record).end()
        return EndOutcome.GONE

    def endpoint(self, record: LaunchRecord) -> Endpoint:
        return Endpoint(host="127.0.0.1", port=record.port, key="secret", served_name="m")

    def routes(self, family, task) -> frozenset[str]:
        return frozenset({f"/{family}/{task.value}"})

    async def sample(self) -> MemorySample:
        await self._do("sample")
        return MemorySample(at_s=trio.current_time(), available_bytes={CARD: 11})

    async def sample_engine(self, record: LaunchRecord) -> EngineSample | None:
        await self._do("sample_engine", record.launch)
        if self._engine(record).state != "running":
            return None
        return EngineSample(at_s=trio.current_time(), running=2, waiting=1, kv_usage_ratio=0.5)

    async def log_tail(self, record, *, bytes_max) -> tuple[str, bool] | None:
        await self._do("log_tail", record.launch)
        if not self.machine.log:
            return None
        kept = self.machine.log[-bytes_max:]
        return kept, kept != self.machine.log


@attrs.define(eq=False)
class FakeStrays:
    machine: FakeMachine
    takes_s: float = 0.0

    async def end_others(self, keep) -> frozenset[LaunchId]:
        met = self.machine.alive - set(keep)
        await trio.sleep(self.takes_s)
        for launch in met:
            self.machine.engines[launch].end()
        return frozenset(met)


@attrs.define(eq=False)
class FakeOpenings:
    open_now: dict[LaunchId, int] = attrs.field(factory=dict)
    endpoints: dict[LaunchId, Endpoint] = attrs.field(factory=dict)

    def open(self, launch, endpoint, *, generation) -> None:
        self.open_now[launch] = generation
        self.endpoints[launch] = endpoint

    def close(self, launch) -> None:
        self.open_now.pop(launch, None)


@attrs.define(eq=False)
class FakeDirectory:
    records: dict[HostId, HostRecord] = attrs.field(
        factory=lambda: {HOST: HostRecord(id=HOST, name="gpu-a")}
    )
    launches: dict[LaunchId, LaunchRecord] = attrs.field(factory=dict)

    def record(self, host):
        return self.records.get(host)

    def known_launches(self, host):
        return list(self.launches.values())


@attrs.define(eq=False)
class FakeEvents:
    """What was told, and when."""

    told: list[tuple[float, str]] = attrs.field(factory=list)
    samples: list = attrs.field(factory=list)
    publications: list[HostPublication] = attrs.field(factory=list)
    changed: trio.Event = attrs.field(factory=trio.Event)

    @property
    def names(self) -> list[str]:
        return [name for _, name in self.told]

    def _tell(self, name: str) -> None:
        self.told.append((round(trio.current_time(), 3), name))
        self.changed.set()
        self.changed = trio.Event()

    def online(self, host, publication, *, fresh, compatibility) -> None:
        self.publications.append(publication)
        self._tell(f"online {'fresh' if fresh else 'again'} {compatibility.value}")

    def suspended(self, host) -> None:
        self._tell("suspended")

    def lost(self, host) -> None:
        self._tell("lost")

    def sampled(self, host, sample) -> None:
        self.samples.append(sample)

    async def wait(self, name: str, count: int = 1) -> None:
        """Until it was told so often, its first word or words being ``name``."""
        while sum(one.startswith(name) for one in self.names) < count:
            await self.changed.wait()


FAILURES = (
    ("prepare", LaunchRefused("port_conflict", "taken", permanent=True)),
    ("prepare", LaunchRefused("spawn_failed", "not now", permanent=False)),
    ("run", LaunchRefused("spawn_failed", "its latch is gone", permanent=False)),
    ("wait_ready", LaunchRefused("effective_args_mismatch", "other", permanent=True)),
    ("measure", Unmeasurable("unsafe_file", "a link leads out")),
    ("fetch", Unfetchable("too_large", "600 GB", terminal=True, again=False)),
    ("park", ParkRefused("nothing came free")),
    ("park", EngineBroken("park_failed", "no answer")),
    ("wake", EngineBroken("wake_mismatch", "it answers differently")),
    ("log_tail", PermissionError("the log is raw")),
)
