"""A host without processes: engines that load, crash, hang, park, wake and refuse to die."""

from __future__ import annotations

import random
from collections.abc import Callable

import attrs
import trio

from capyctl.contracts.checkpoints import Progress, Unmeasurable
from capyctl.contracts.engines import EngineBroken, ParkRefused
from capyctl.contracts.host import EndOutcome, LaunchRefused, ParkProof
from capyctl.domain.checkpoints import CheckpointFacts, RemoteSource
from capyctl.domain.devices import EngineSample, MachineShape, MemoryKind, MemorySample
from capyctl.domain.identity import ExitStatus, ProcessIdentity
from capyctl.domain.ids import DomainName, LaunchId
from capyctl.domain.launches import Endpoint, LaunchOrder, LaunchRecord
from capyctl.domain.specs import Charges, ModelTask
from capyctl.domain.units import GIB
from capyctl.simulation.engine import Engine, EngineState
from capyctl.simulation.faults import Faults
from capyctl.simulation.machine import PARKED_BYTES, phase_charges

ALIVE = (EngineState.LATCHED, EngineState.LOADING, EngineState.SERVING, EngineState.PARKED)


class SimHost:
    """The machine itself: it is there before, between and after the daemons."""

    def __init__(
        self,
        shape: MachineShape,
        chance: random.Random,
        faults: Faults,
        nursery: trio.Nursery,
        changed: Callable[[Engine], None],
    ) -> None:
        self.machine = shape
        self.faults = faults
        self.chance = chance
        self.engines: dict[LaunchId, Engine] = {}
        self.differs = False
        """Its files are not those of other machines."""
        self.clock_s = 0.0
        """By how much its monotonic clock differs from the server's."""
        self._nursery = nursery
        self._changed = changed
        self._ports_count = 0
        self._measured: set[str] = set()
        self._seen: list[MemorySample] = []

    @property
    def alive(self) -> list[Engine]:
        return [engine for engine in self.engines.values() if engine.state in ALIVE]

    def rolls(self, chance: float) -> bool:
        return self.chance.random() < chance

    def become(self, engine: Engine, state: EngineState) -> None:
        if state is EngineState.GONE:
            engine.end()
        else:
            engine.state = state
        self._changed(engine)

    def make(self, order: LaunchOrder, session: object) -> Engine:
        """A latch for ``order``, with whatever will befall it drawn already."""
        faults, chance = self.faults, self.chance
        card = next(g for g in self.machine.gpus if g.uuid == order.device_uuids[0])
        self._ports_count += 1
        residue_bytes = PARKED_BYTES
        request_bytes = order.engine.request_bytes or GIB
        if self.rolls(faults.residue_chance):
            residue_bytes = chance.randint(PARKED_BYTES, request_bytes)
        engine = Engine(
            record=LaunchRecord(
                launch=order.launch,
                deployment=order.instance.deployment,
                index=order.instance.index,
                family=order.engine.family,
                profile=order.engine.profile,
                process=ProcessIdentity(pid=1000 + self._ports_count, boot_id="b", start_ticks=1),
                port=20_000 + self._ports_count,
                served_name=order.engine.served_name,
                residency=order.residency,
                model_path=order.engine.model_path,
            ),
            order=order,
            instance=order.instance,
            card=card.domain,
            figures=phase_charges(card.domain, request_bytes, parks=order.engine.parks),
            load_s=chance.uniform(5.0, 90.0),
            hangs=self.rolls(faults.hang_chance),
            unfit=self.rolls(faults.unfit_chance),
            crash_after_s=chance.expovariate(1 / 150) if self.rolls(faults.crash_chance) else None,
            residue_bytes=residue_bytes,
            undying_s=chance.uniform(0, 400) if self.rolls(faults.undying_chance) else 0.0,
            session=session,
        )
        self.engines[order.launch] = engine
        self._changed(engine)
        return engine

    def open(self, engine: Engine) -> None:
        engine.loaded_at_s = trio.current_time() + engine.load_s
        self.become(engine, EngineState.LOADING)
        if engine.crash_after_s is not None:
            self._nursery.start_soon(self._crash, engine)

    async def _crash(self, engine: Engine) -> None:
        assert engine.crash_after_s is not None
        with trio.move_on_after(engine.crash_after_s):
            await engine.gone.wait()
        if engine.state is not EngineState.GONE and self.faults.crash_chance > 0:
            self.become(engine, EngineState.GONE)

    def session_ended(self, session: object) -> None:
        """A daemon is gone: latches that it did not open go with it."""
        for engine in self.alive:
            if engine.state is EngineState.LATCHED and engine.session is session:
                self.become(engine, EngineState.GONE)

    def calm(self) -> None:
        """Faults end: what cannot die dies when told, what crashes does not any more."""
        self.faults = Faults()
        for engine in self.engines.values():
            engine.undying_s = 0.0
            engine.undying_until_s = None
            engine.busy_until_s = 0.0

    def uses(self, domain: DomainName) -> int:
        return sum(engine.uses.get(domain, 0) for engine in self.alive)

    def look(self) -> MemorySample:
        """Memory as it is now, or as it was a while ago."""
        now_s = trio.current_time()
        available = {d.name: d.total_bytes - self.uses(d.name) for d in self.machine.domains}
        fresh = MemorySample(at_s=now_s, available_bytes=available)
        self._seen = [s for s in self._seen if now_s - s.at_s < 60.0]
        self._seen.append(fresh)
        lag_s = self.chance.uniform(0.0, self.faults.sample_lag_max_s)
        return next(s for s in self._seen if s.at_s >= now_s - lag_s)

    async def measured(self, model_path: str) -> CheckpointFacts:
        await trio.sleep(self.chance.uniform(0.0, 10.0))
        if model_path not in self._measured and self.rolls(self.faults.unmeasurable_chance):
            raise Unmeasurable("io_error", "the disk did not answer")
        self._measured.add(model_path)
        digit = "1" if self.differs else "0"
        return CheckpointFacts(
            digest="sha256:" + digit * 64, weights_bytes=8 * GIB, format="safetensors"
        )

    def overbooked(self) -> list[str]:
        """Cards on which engines draw more than there is."""
        return [
            f"{d.name}: {self.uses(d.name)} of {d.total_bytes}"
            for d in self.machine.domains
            if d.kind is MemoryKind.DEVICE and self.uses(d.name) > d.total_bytes
        ]


@attrs.define(eq=False)
class HostDoor:
    """One daemon's way to the host. Implements `contracts.host.Host`.

    When the daemon ends, what it asked for is not done any more.
    """

    host: SimHost
    ended: bool = False

    def leave(self) -> None:
        """The daemon is no more."""
        self.ended = True
        self.host.session_ended(self)

    async def _takes(self, seconds: float) -> None:
        await trio.sleep(seconds)
        if self.ended:
            await trio.sleep_forever()

    def shape(self) -> MachineShape:
        return self.host.machine

    async def measure(
        self, model_path: str, *, weights_file: str | None, declared: str | None = None
    ) -> CheckpointFacts:
        facts = await self.host.measured(model_path)
        await self._takes(0)
        return facts

    async def fetch(self, source: RemoteSource, progress: Progress) -> int:
        await self._takes(self.host.chance.uniform(0.0, 10.0))
        return 0

    async def prepare(self, order: LaunchOrder) -> LaunchRecord:
        host = self.host
        await self._takes(host.chance.uniform(0.0, 2.0))
        if host.rolls(host.faults.prepare_chance):
            permanent = host.rolls(0.3)
            code = "no_executable" if permanent else "port_conflict"
            raise LaunchRefused(code, "the latch could not be made", permanent=permanent)
        return host.make(order, self).record

    async def run(self, record: LaunchRecord) -> None:
        await self._takes(self.host.chance.uniform(0.0, 0.5))
        engine = self.host.engines[record.launch]
        if engine.state is not EngineState.LATCHED or engine.session is not self:
            raise LaunchRefused("spawn_failed", "it has no latch", permanent=False)
        self.host.open(engine)

    async def discard(self, record: LaunchRecord) -> None:
        await self._takes(self.host.chance.uniform(0.0, 1.0))
        engine = self.host.engines[record.launch]
        if engine.state is EngineState.LATCHED:
            self.host.become(engine, EngineState.GONE)

    async def wait_ready(self, record: LaunchRecord, order: LaunchOrder | None) -> str | None:
        engine = self.host.engines[record.launch]
        while engine.state is EngineState.LATCHED:
            await self._takes(0.5)
        await self._takes(max(0.1, engine.loaded_at_s - trio.current_time()))
        proof = order is None
        if self.host.rolls(self.host.faults.unfit_chance) if proof else engine.unfit:
            raise LaunchRefused("effective_args_mismatch", "another context", permanent=True)
        mute = self.host.rolls(self.host.faults.hang_chance) if proof else engine.hangs
        if mute or engine.state is EngineState.GONE:
            await trio.sleep_forever()
        if engine.state is EngineState.LOADING:
            self.host.become(engine, EngineState.SERVING)
        return "canary"

    def start_peak(self, record: LaunchRecord) -> Charges:
        return self.host.engines[record.launch].figures.cold

    async def wait_exit(self, record: LaunchRecord) -> ExitStatus:
        await self.host.engines[record.launch].gone.wait()
        await self._takes(self.host.chance.uniform(0.0, 0.5))
        return ExitStatus(exit_code=1)

    def is_running(self, record: LaunchRecord) -> bool:
        return self.host.engines[record.launch].state is not EngineState.GONE

    async def park(self, record: LaunchRecord) -> ParkProof:
        host, faults = self.host, self.host.faults
        engine = host.engines[record.launch]
        assert engine.requests_count == 0, f"{engine} was told to park with requests inside"
        assert engine.state in (EngineState.SERVING, EngineState.GONE), f"{engine} told to park"
        await self._takes(host.chance.uniform(0.1, 8.0))
        if host.rolls(faults.park_refused_chance):
            raise ParkRefused("nothing came free")
        if host.rolls(faults.park_hang_chance):
            await trio.sleep_forever()
        if engine.state is EngineState.GONE or host.rolls(faults.park_broken_chance):
            raise EngineBroken("park_failed", "the connection broke")
        host.become(engine, EngineState.PARKED)
        return ParkProof(residue={engine.card: engine.residue_bytes})

    async def wake(self, record: LaunchRecord) -> None:
        host = self.host
        engine = host.engines[record.launch]
        assert engine.state in (EngineState.PARKED, EngineState.GONE), f"{engine} told to wake"
        if engine.state is EngineState.PARKED:
            host.become(engine, EngineState.SERVING)
        await self._takes(host.chance.uniform(0.5, 20.0))
        if engine.state is EngineState.GONE or host.rolls(host.faults.wake_broken_chance):
            raise EngineBroken("wake_mismatch", "it answers differently")

    async def end(self, record: LaunchRecord, *, grace_s: float, idle_s: float) -> EndOutcome:
        host, faults = self.host, self.host.faults
        engine = host.engines[record.launch]
        if idle_s > 0 and engine.state is not EngineState.GONE and host.rolls(faults.busy_chance):
            await self._takes(idle_s)
            return EndOutcome.BUSY
        await self._takes(host.chance.uniform(0.0, min(grace_s, faults.end_delay_max_s)))
        now_s = trio.current_time()
        if engine.undying_s > 0 and engine.undying_until_s is None:
            engine.undying_until_s = now_s + engine.undying_s
        if engine.undying_until_s is not None and now_s < engine.undying_until_s:
            await self._takes(grace_s + 5.0)
            return EndOutcome.UNPROVEN
        if engine.state is not EngineState.GONE:
            host.become(engine, EngineState.GONE)
        return EndOutcome.GONE

    def endpoint(self, record: LaunchRecord) -> Endpoint:
        return Endpoint(
            host="127.0.0.1", port=record.port, key=None, served_name=record.served_name
        )

    def routes(self, family: str, task: ModelTask) -> frozenset[str]:
        return frozenset({"/v1/chat/completions"})

    async def sample(self) -> MemorySample:
        await self._takes(0)
        seen = self.host.look()
        return attrs.evolve(seen, at_s=seen.at_s + self.host.clock_s)

    async def sample_engine(self, record: LaunchRecord) -> EngineSample | None:
        await self._takes(0.01)
        engine = self.host.engines[record.launch]
        if engine.state is not EngineState.SERVING:
            return None
        at_s = trio.current_time() + self.host.clock_s
        return EngineSample(at_s=at_s, running=engine.requests_count, waiting=0)

    async def log_tail(self, record: LaunchRecord, *, bytes_max: int) -> tuple[str, bool] | None:
        await trio.lowlevel.checkpoint()
        return None
