"""A host that is another machine: its methods wait for it, and its reads tell what is known."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import attrs
import trio

from capyctl.contracts.checkpoints import Progress, Unfetchable, Unmeasurable
from capyctl.contracts.clock import Clock, Ids
from capyctl.contracts.engines import ParkRefused
from capyctl.contracts.host import EndOutcome, ParkProof
from capyctl.contracts.hosts import CapabilityMissing, HostFailed, HostSample
from capyctl.domain.checkpoints import CheckpointFacts, RemoteSource
from capyctl.domain.devices import EngineSample, MachineShape, MemorySample
from capyctl.domain.hosts import HostPublication, IngressTransport
from capyctl.domain.identity import ExitStatus
from capyctl.domain.ids import DomainName, HostId, LaunchId
from capyctl.domain.launches import Endpoint, IngressPass, LaunchOrder, LaunchRecord
from capyctl.domain.specs import Charges, ModelTask
from capyctl.link.calls import OpenCall, OpenCalls, record_of
from capyctl.link.session import Session
from capyctl.wire import link_calls as c
from capyctl.wire.link import Heartbeat, Hello, HostFrame, Synced, Watch

GONE_COUNT_MAX = 4096
"""Launches of which it is remembered that they are gone; more matter to nobody."""
WATCHED_COUNT_MAX = 1024
PROTECTED_S = 60.0
"""How long a launch that was just prepared counts as known before it is stored; a commit takes
milliseconds."""
SAMPLE_S = 8.0
"""How long `sample_engine` waits for a look that began after it was asked for."""
Routes = Callable[[str, ModelTask], frozenset[str]]


@attrs.frozen(kw_only=True)
class Opened:
    """What a launch's last proof brought."""

    peak: Charges = attrs.field(factory=dict)
    generation: int = 0


class RemoteHost:
    """Implements `contracts.host.Host` over whatever session its host has.

    Calls wait through the loss of a link, without a bound: whoever makes one bounds it, or
    cancels it. They end with what the host says, and with nothing else.
    """

    def __init__(
        self,
        id: HostId,
        publication: HostPublication,
        *,
        clock: Clock,
        ids: Ids,
        routes: Routes,
        sample_s: float = SAMPLE_S,
    ) -> None:
        """``routes`` are those of the server's own release: no host newer than it is let in.
        ``sample_s``: several heartbeats."""
        self.id = id
        self.publication = publication
        self._clock = clock
        self._routes = routes
        self._sample_s = sample_s
        self.calls = OpenCalls(ids, self._answered)
        self._capabilities: frozenset[str] = frozenset(publication.capabilities)
        self._epoch = ""
        self._gone: dict[LaunchId, None] = {}
        self._opened: dict[LaunchId, Opened] = {}
        self._serving: set[LaunchId] = set()
        """Engines that answered since, and were not parked or ended: samples of them come."""
        self._prepared: dict[LaunchId, tuple[LaunchRecord, float]] = {}
        self._wanted: dict[LaunchId, int] = {}
        """Engines that are asked about, and by how many."""
        self._watch_count = 0
        self._seen_count = 0
        self._sample = HostSample(memory=None)
        self._sampled = trio.Event()

    # -- what is known ----------------------------------------------------------------------

    def shape(self) -> MachineShape:
        return self.publication.shape

    def routes(self, family: str, task: ModelTask) -> frozenset[str]:
        return self._routes(family, task)

    def is_running(self, record: LaunchRecord) -> bool:
        return record.launch not in self._gone

    def start_peak(self, record: LaunchRecord) -> Charges:
        return self._opened.get(record.launch, Opened()).peak

    def endpoint(self, record: LaunchRecord) -> Endpoint:
        """The host's ingress, and what a request must name to reach the launch through it."""
        ingress = self.publication.ingress
        if ingress is None:
            raise ValueError(f"host {self.id} publishes no ingress")
        generation = self._opened.get(record.launch, Opened()).generation
        return Endpoint(
            host=ingress.host,
            port=ingress.port,
            key=None,
            served_name=record.served_name,
            ingress=IngressPass(
                host=self.id,
                launch=record.launch,
                generation=generation,
                secure=ingress.transport is IngressTransport.MUTUAL_TLS,
            ),
        )

    # -- calls ------------------------------------------------------------------------------

    async def measure(
        self, model_path: str, *, weights_file: str | None, declared: str | None = None
    ) -> CheckpointFacts:
        call = c.Measure(model_path=model_path, weights_file=weights_file, declared=declared)
        try:
            self._need(call)
            facts: CheckpointFacts = await self.calls.make(call)
        except (CapabilityMissing, HostFailed) as problem:
            raise Unmeasurable("host_unavailable", str(problem)) from problem
        return facts

    async def fetch(self, source: RemoteSource, progress: Progress) -> int:
        call = c.Fetch(source=source)
        try:
            self._need(call)
        except CapabilityMissing as missing:
            raise Unfetchable("denied", str(missing), terminal=True) from missing
        try:
            fetched: c.Fetched = await self.calls.make(call, progress)
        except HostFailed as problem:
            raise Unfetchable("io_error", str(problem)) from problem
        return fetched.total_bytes

    async def prepare(self, order: LaunchOrder) -> LaunchRecord:
        record: LaunchRecord = await self.calls.make(c.Prepare(order=order))
        return record

    async def run(self, record: LaunchRecord) -> None:
        await self.calls.make(c.Run(record=record))

    async def discard(self, record: LaunchRecord) -> None:
        await self.calls.make(c.Discard(record=record))

    async def wait_ready(self, record: LaunchRecord, order: LaunchOrder | None) -> str | None:
        ready: c.Ready = await self.calls.make(c.WaitReady(record=record, order=order))
        return ready.canary

    async def wait_exit(self, record: LaunchRecord) -> ExitStatus:
        status: ExitStatus = await self.calls.make(c.WaitExit(record=record))
        return status

    async def park(self, record: LaunchRecord) -> ParkProof:
        served = record.launch in self._serving
        self._serving.discard(record.launch)
        try:
            proof: ParkProof = await self.calls.make(c.Park(record=record))
        except ParkRefused:
            if served:
                self._serving.add(record.launch)
            raise
        return proof

    async def wake(self, record: LaunchRecord) -> None:
        await self.calls.make(c.Wake(record=record))

    async def end(self, record: LaunchRecord, *, grace_s: float, idle_s: float) -> EndOutcome:
        call = c.End(record=record, grace_s=grace_s, idle_s=idle_s)
        ended: c.Ended = await self.calls.make(call)
        return ended.outcome

    async def log_tail(self, record: LaunchRecord, *, bytes_max: int) -> tuple[str, bool] | None:
        """See `contracts.host.Host`; at most 256 KiB. Raises CapabilityMissing, too."""
        call = c.LogTail(record=record, bytes_max=min(bytes_max, c.LOG_TAIL_BYTES_MAX))
        self._need(call)
        tail: c.Tail = await self.calls.make(call)
        return None if tail.text is None else (tail.text, tail.truncated)

    def _need(self, call: c.HostCall) -> None:
        name = c.CAPABILITY_OF[c.method_of(call)]
        if name not in self._capabilities:
            raise CapabilityMissing(name)

    def _answered(self, done: OpenCall, running: bool | None) -> None:
        """What an answer says beside its value, noted before its caller goes on."""
        record = record_of(done.call)
        if record is None:
            if isinstance(done.value, LaunchRecord):
                self._prepared[done.value.launch] = (done.value, trio.current_time())
            return
        if running is False:
            self._note_gone(record.launch)
        match done.value:
            case c.Ready(peak=peak, generation=generation):
                self._opened[record.launch] = Opened(peak=peak, generation=generation)
                self._serving.add(record.launch)
            case c.Woken(generation=generation):
                known = self._opened.get(record.launch, Opened())
                self._opened[record.launch] = attrs.evolve(known, generation=generation)
                self._serving.add(record.launch)
            case c.Ended(outcome=EndOutcome.GONE):
                self._note_gone(record.launch)
                self._forget(record.launch)
            case c.Nothing() if done.method == "discard":
                self._note_gone(record.launch)
                self._forget(record.launch)

    def _note_gone(self, launch: LaunchId) -> None:
        self._gone[launch] = None
        self._serving.discard(launch)
        if len(self._gone) > GONE_COUNT_MAX:
            del self._gone[next(iter(self._gone))]

    def _forget(self, launch: LaunchId) -> None:
        self._opened.pop(launch, None)
        self._prepared.pop(launch, None)

    # -- looks ------------------------------------------------------------------------------

    async def sample(self) -> MemorySample:
        """The next look at the host's memory that comes; about every second while it is live."""
        while True:
            await self._sampled.wait()
            if self._sample.memory is not None:
                return self._sample.memory

    async def sample_engine(self, record: LaunchRecord) -> EngineSample | None:
        """A look that began after this was asked for; None when none comes in time: 8 s."""
        launch, number = record.launch, self._watch_count + 1
        self._wanted[launch] = self._wanted.get(launch, 0) + 1
        try:
            with trio.move_on_after(self._sample_s):
                while self._seen_count < number:
                    await self._sampled.wait()
                return self._sample.engines.get(launch)
        finally:
            self._wanted[launch] -= 1
            if self._wanted[launch] == 0:
                del self._wanted[launch]
        return None

    def watch(self) -> Watch:
        """The next frame that says which engines are to be looked at."""
        self._watch_count += 1
        launches = sorted(self._serving | self._wanted.keys())
        return Watch(number=self._watch_count, launches=[*launches[:WATCHED_COUNT_MAX]])

    def take_heartbeat(self, beat: Heartbeat) -> HostSample:
        """What it tells, on this machine's clock."""
        now_s = self._clock.monotonic_s()
        memory = None
        if beat.memory is not None:
            memory = MemorySample(
                at_s=now_s - beat.memory.age_s,
                available_bytes={
                    DomainName(name): size for name, size in beat.memory.available_bytes.items()
                },
            )
        engines = {
            LaunchId(launch): EngineSample(
                at_s=now_s - figures.age_s,
                running=figures.running,
                waiting=figures.waiting,
                kv_usage_ratio=figures.kv_usage_ratio,
                running_limit_count=figures.running_limit_count,
            )
            for launch, figures in beat.engines.items()
        }
        self._sample = HostSample(memory=memory, engines=engines)
        self._seen_count = beat.seen
        self._sampled.set()
        self._sampled = trio.Event()
        return self._sample

    # -- the session ------------------------------------------------------------------------

    def launches(self, stored: Sequence[LaunchRecord]) -> list[LaunchRecord]:
        """All that the server knows on this host: what is stored, and what will be in a moment."""
        known = {record.launch: record for record in stored}
        now_s = trio.current_time()
        for launch, (record, at_s) in list(self._prepared.items()):
            if launch in known or now_s - at_s > PROTECTED_S:
                del self._prepared[launch]
            else:
                known[launch] = record
        return list(known.values())

    def unclaimed(self, stored: Callable[[], Sequence[LaunchRecord]]) -> list[LaunchRecord]:
        """Launches that were prepared and never stored: whoever asked for them failed.

        Each is returned once, and is to be discarded.
        """
        before_s = trio.current_time() - PROTECTED_S
        old = [record for record, at_s in self._prepared.values() if at_s < before_s]
        if not old:
            return []
        known = {record.launch for record in stored()}
        for record in old:
            del self._prepared[record.launch]
        return [record for record in old if record.launch not in known]

    def attach(self, session: Session[HostFrame], hello: Hello, synced: Synced) -> None:
        """A session is agreed: note the host's word on what runs, and let the calls go on."""
        self._capabilities = frozenset(hello.capabilities)
        for launch, running in synced.running.items():
            if not running:
                self._note_gone(LaunchId(launch))
        if hello.epoch != self._epoch:
            self._serving.clear()
            self._epoch = hello.epoch
        self.calls.attach(session, hello.epoch, frozenset(synced.calls))

    def detach(self) -> None:
        """There is no agreed session any more."""
        self.calls.detach()
