"""This machine as a host: adapters for processes, engines, memory and files, put together."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Callable, Mapping
from typing import Protocol

import attrs
import trio

from capyctl.contracts.checkpoints import (
    Checkpoints,
    Progress,
    Sources,
    Unfetchable,
    Unmeasurable,
)
from capyctl.contracts.engines import (
    Control,
    EngineBroken,
    Family,
    LaunchKeys,
    NotReady,
    ParkRefused,
)
from capyctl.contracts.gpus import Machine
from capyctl.contracts.host import EndOutcome, LaunchRefused, ParkProof
from capyctl.contracts.processes import Command, Processes, SpawnFailed
from capyctl.control.kills import MemoryKills, may_be_killed
from capyctl.control.memory_watch import PARK_PROOF_S, MemoryWatch
from capyctl.domain.checkpoints import CheckpointFacts, RemoteSource
from capyctl.domain.devices import EngineSample, MachineShape, MemorySample
from capyctl.domain.identity import ExitStatus
from capyctl.domain.ids import LaunchId
from capyctl.domain.launches import (
    Endpoint,
    Installation,
    LaunchOrder,
    LaunchRecord,
    ModelFiles,
)
from capyctl.domain.specs import Charges, ModelTask, Residency

IDLE_POLL_S = 0.25
PROOF_S = 5.0
LEADER_FIRST_S = 0.25
"""Processes that are killed together do not end in one instant."""
PORT_POLL_MIN_S = 0.02
PORT_POLL_MAX_S = 0.5


class Ports(Protocol):
    """Leases of loopback ports; a port that a stranger listens on is never given."""

    def lease(self) -> int:
        """Raises OSError with the range when every port is taken."""

    def reserve(self, port: int) -> None: ...

    def is_taken(self, port: int) -> bool:
        """Whether somebody listens on the port now."""

    def release(self, port: int) -> None: ...


def launch_keys(secret: bytes, launch: LaunchId) -> LaunchKeys:
    """The keys of one launch, derived so that they need not be stored.

    HMAC-SHA256 of the launch id and the key's purpose under an owner-only secret: as
    unguessable as random ones, and known again after a restart.
    """

    def derive(purpose: str) -> str:
        return hmac.new(secret, f"{purpose}:{launch}".encode(), hashlib.sha256).hexdigest()

    return LaunchKeys(inference=derive("inference"), admin=derive("admin"))


@attrs.define(eq=False, kw_only=True)
class LocalHost:
    """Implements `contracts.host.Host` on this machine."""

    machine: Machine
    machine_shape: MachineShape
    processes: Processes
    families: Mapping[str, Family]
    checkpoints: Checkpoints
    ports: Ports
    secret: bytes = attrs.field(repr=False)
    sources: Sources | None = None
    """None: nothing is fetched from elsewhere."""
    raw_logs: bool = False
    before_launch: Callable[[LaunchOrder], Installation | None] = attrs.field(
        default=lambda _: None
    )
    """What must be true on disk first, and which files the engine has, where that is known.
    Blocks, so it runs in a thread. Raises LaunchRefused."""
    extra_env: Callable[[LaunchOrder], Mapping[str, str]] = attrs.field(default=lambda _: {})
    """What a simulated machine adds to an engine's environment."""
    watch: MemoryWatch = attrs.field(init=False)
    kills: MemoryKills = attrs.field(factory=MemoryKills, init=False)

    def __attrs_post_init__(self) -> None:
        self.watch = MemoryWatch(
            machine=self.machine, shape=self.machine_shape, processes=self.processes
        )

    def shape(self) -> MachineShape:
        return self.machine_shape

    async def measure(
        self, model_path: str, *, weights_file: str | None, declared: str | None = None
    ) -> CheckpointFacts:
        return await self.checkpoints.measure(
            model_path, weights_file=weights_file, declared=declared
        )

    async def fetch(self, source: RemoteSource, progress: Progress) -> int:
        if self.sources is None:
            raise Unfetchable("denied", "this machine fetches no files", terminal=True)
        return await self.sources.fetch(source, progress)

    async def prepare(self, order: LaunchOrder) -> LaunchRecord:
        family = self.families.get(order.engine.family)
        if family is None:
            raise LaunchRefused(
                "engine_unsupported",
                f"this release cannot launch {order.engine.family}",
                permanent=True,
            )
        await self._check_files(order.files)
        installation = await trio.to_thread.run_sync(self.before_launch, order)
        await self.watch.expect(order.launch)
        try:
            port = self.ports.lease()
        except OSError as problem:
            self.watch.forget(order.launch)
            raise LaunchRefused("port_conflict", str(problem), permanent=False) from problem
        prepared = False
        try:
            record = await self._spawn(family, order, port)
            prepared = True
            return attrs.evolve(record, installation=installation)
        finally:
            if not prepared:
                self.watch.forget(order.launch)
                self.ports.release(port)

    async def _check_files(self, files: ModelFiles | None) -> None:
        """Whether the model's files are what was measured; cheap while none has changed."""
        if files is None:
            return
        try:
            found = await self.checkpoints.digest(files.path)
        except Unmeasurable as problem:
            detail = f"the model's files could not be compared: {problem}"
            raise LaunchRefused("checkpoint_unverified", detail, permanent=False) from problem
        if found != files.digest:
            detail = f"the files' digest is {found}, measured was {files.digest}"
            raise LaunchRefused("checkpoint_mismatch", detail, permanent=True)
        await self._check_files(files.draft)

    async def _spawn(self, family: Family, order: LaunchOrder, port: int) -> LaunchRecord:
        keys = launch_keys(self.secret, order.launch)
        try:
            rendered = family.render(order, port=port, keys=keys)
        except ValueError as problem:
            raise LaunchRefused(
                "engine_argument_rejected", str(problem), permanent=True
            ) from problem
        command = Command(
            launch=order.launch,
            deployment=order.instance.deployment,
            argv=rendered.argv,
            env={**rendered.env, **self.extra_env(order)},
            secrets=(keys.inference, keys.admin),
            raw_log=self.raw_logs,
        )
        try:
            process = await self.processes.spawn(command)
        except SpawnFailed as problem:
            raise LaunchRefused("spawn_failed", str(problem), permanent=False) from problem
        return LaunchRecord(
            launch=order.launch,
            deployment=order.instance.deployment,
            index=order.instance.index,
            family=order.engine.family,
            profile=order.engine.profile,
            process=process,
            port=port,
            served_name=order.engine.served_name,
            residency=order.residency,
            model_path=order.engine.model_path,
            device_uuids=order.device_uuids,
            ready={} if order.charges is None else order.charges.ready,
            files=order.files,
            task=order.engine.task,
            kept_bytes=order.engine.kept_bytes,
        )

    async def run(self, record: LaunchRecord) -> None:
        try:
            await self.processes.open_latch(record.launch)
        except SpawnFailed as problem:
            raise LaunchRefused("spawn_failed", str(problem), permanent=False) from problem

    async def discard(self, record: LaunchRecord) -> None:
        await self.processes.discard(record.launch)
        self.watch.forget(record.launch)
        self.ports.release(record.port)

    async def wait_ready(self, record: LaunchRecord, order: LaunchOrder | None) -> str | None:
        self.ports.reserve(record.port)
        await self._wait_own_port(record)
        canary: str | None = None
        async with trio.open_nursery() as looking:
            looking.start_soon(self.watch.follow, record)
            try:
                canary = await self._family(record).wait_ready(self._control(record), order)
            except NotReady as refused:
                problem: NotReady | None = refused
            else:
                problem = None
            looking.cancel_scope.cancel()
        if problem is not None:
            raise LaunchRefused(problem.code, problem.detail, permanent=True) from problem
        await self.watch.finish(record)
        return canary

    async def _wait_own_port(self, record: LaunchRecord) -> None:
        """Until the launch listens on its port. Whoever else does is never asked anything."""
        pause_s = PORT_POLL_MIN_S
        while not self.ports.is_taken(record.port):
            await trio.sleep(pause_s)
            pause_s = min(pause_s * 1.5, PORT_POLL_MAX_S)
        stranger = await self.processes.stranger_on(record.process, record.port)
        if stranger is not None:
            detail = f"process {stranger}, which is not the engine's, listens on port {record.port}"
            raise LaunchRefused("port_conflict", detail, permanent=False)

    def start_peak(self, record: LaunchRecord) -> Charges:
        return self.watch.peak(record)

    async def wait_exit(self, record: LaunchRecord) -> ExitStatus:
        status = await self._wait_exit(record)
        if not may_be_killed(status):
            return status
        try:
            now = await self.machine.sample()
        except OSError:
            return status
        return attrs.evolve(status, out_of_memory=self.kills.recent(now))

    async def _wait_exit(self, record: LaunchRecord) -> ExitStatus:
        found: list[ExitStatus] = []

        async def leader() -> None:
            found.append(await self.processes.wait_exit(record.process))
            race.cancel_scope.cancel()

        async def workers() -> None:
            pid = await self.watch.worker_gone(record)
            await trio.sleep(LEADER_FIRST_S)
            if not self.processes.is_running(record.process):
                return  # all of it went: how its leader ended tells more
            found.append(ExitStatus(exit_code=None, worker_pid=pid))
            race.cancel_scope.cancel()

        async with trio.open_nursery() as race:
            race.start_soon(leader)
            race.start_soon(workers)
        return found[0]

    def is_running(self, record: LaunchRecord) -> bool:
        return self.processes.is_running(record.process)

    async def park(self, record: LaunchRecord) -> ParkProof:
        """Park, then wait until the memory is seen free: an engine's word is not enough."""
        with self.watch.moving():
            before = await self.watch.held(record)
            await self._family(record).park(self._control(record))
            proof = await self.watch.freed(record, before)
            if proof is None:
                # Take it back, so that it serves on.
                await self._family(record).wake(self._control(record), canary=record.canary)
                left, _ = await self.watch.held(record)
                raise ParkRefused(
                    f"the engine reported a park, but of {before[0]} bytes too few came free "
                    f"within {PARK_PROOF_S:.0f} s; it uses {left} again"
                )
            return proof

    async def wake(self, record: LaunchRecord) -> None:
        if record.residency is Residency.DEEP:
            try:
                await self._check_files(record.files)
            except LaunchRefused as refused:
                raise EngineBroken(refused.code, refused.detail) from refused
        with self.watch.moving():
            await self._family(record).wake(self._control(record), canary=record.canary)

    async def end(self, record: LaunchRecord, *, grace_s: float, idle_s: float) -> EndOutcome:
        if idle_s > 0 and self.is_running(record) and not await self._idle(record, idle_s):
            return EndOutcome.BUSY
        with self.watch.moving():
            gone = await self.processes.end(record.process, grace_s=grace_s, proof_s=PROOF_S)
        if not gone:
            return EndOutcome.UNPROVEN
        self.watch.forget(record.launch)
        self.ports.release(record.port)
        return EndOutcome.GONE

    async def _idle(self, record: LaunchRecord, within_s: float) -> bool:
        """False only when it still answers that requests run when the time is over.

        An engine that does not answer is signalled: at once when it is gone, and at the
        end of the bound when it is merely silent.
        """
        busy = False
        with trio.move_on_after(within_s):
            while True:
                sample = await self.sample_engine(record)
                if sample is None and not self.is_running(record):
                    return True
                busy = sample is not None and sample.running + sample.waiting > 0
                if sample is not None and not busy:
                    return True
                await trio.sleep(IDLE_POLL_S)
        return not busy

    def endpoint(self, record: LaunchRecord) -> Endpoint:
        keys = launch_keys(self.secret, record.launch)
        takes_key = self._family(record).takes_key
        return Endpoint(
            host="127.0.0.1",
            port=record.port,
            key=keys.inference if takes_key else None,
            served_name=record.served_name,
        )

    def routes(self, family: str, task: ModelTask) -> frozenset[str]:
        return self.families[family].routes(task)

    async def sample(self) -> MemorySample:
        sample = await self.machine.sample()
        self.kills.note(sample)
        return sample

    async def sample_engine(self, record: LaunchRecord) -> EngineSample | None:
        return await self._family(record).sample(self._control(record))

    async def log_tail(self, record: LaunchRecord, *, bytes_max: int) -> tuple[str, bool] | None:
        keys = launch_keys(self.secret, record.launch)
        return await self.processes.log_tail(
            record.deployment,
            record.launch,
            bytes_max=bytes_max,
            secrets=(keys.inference, keys.admin),
        )

    def _family(self, record: LaunchRecord) -> Family:
        return self.families[record.family]

    def _control(self, record: LaunchRecord) -> Control:
        levels = {Residency.HOST_BACKED: 1, Residency.DEEP: 2}
        return Control(
            endpoint=self.endpoint(record),
            admin_key=launch_keys(self.secret, record.launch).admin,
            model_path=record.model_path,
            level=levels.get(record.residency),
            task=record.task,
        )
