"""What a launch is seen to hold: the peak of its start, what a park leaves, and its workers."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping

import attrs
import trio

from capyctl.contracts.gpus import Machine
from capyctl.contracts.host import ParkProof
from capyctl.contracts.processes import Processes
from capyctl.domain.devices import Gpu, MachineShape, MemoryKind, MemorySample
from capyctl.domain.identity import ProcessIdentity
from capyctl.domain.ids import DomainName, LaunchId
from capyctl.domain.launches import LaunchRecord
from capyctl.domain.specs import Charges

START_POLL_S = 0.25
PARK_POLL_S_MIN = 0.01
PARK_POLL_S_MAX = 0.1
PARK_PROOF_S = 30.0
"""How long freed memory may take to show after a park."""
FREED_SHARE_MIN = 0.5
"""A park that frees less than this share of what the engine used has not parked. What it keeps by
design is left out of the count."""
WORKER_POLL_S = 0.5
REMEMBERED_COUNT_MAX = 64
COMPILERS = frozenset({"nvcc", "cicc", "ptxas", "cc1plus", "cc1", "g++", "gcc", "ld", "ninja"})
"""Their memory is not the model's: what is seen while one runs is no peak."""


@attrs.define(eq=False)
class _Start:
    """One start under way."""

    before: MemorySample
    alone: bool = True
    """Nothing else moved memory meanwhile."""
    drops: dict[DomainName, int] = attrs.field(factory=dict)
    own: dict[DomainName, int] = attrs.field(factory=dict)


@attrs.define(eq=False, kw_only=True)
class MemoryWatch:
    """Looks at the machine on behalf of its host. One per host."""

    machine: Machine
    shape: MachineShape
    processes: Processes
    _starts: dict[LaunchId, _Start] = attrs.field(factory=dict)
    _workers: dict[LaunchId, tuple[ProcessIdentity, ...]] = attrs.field(factory=dict)
    _moving_count: int = 0

    @contextlib.contextmanager
    def moving(self) -> Iterator[None]:
        """Something takes or gives back memory: no start beside it is measured by drops."""
        self._moving_count += 1
        self._disturb(None)
        try:
            yield
        finally:
            self._moving_count -= 1

    def _disturb(self, but: LaunchId | None) -> None:
        for launch, start in self._starts.items():
            if launch != but:
                start.alone = False

    # -- a start -----------------------------------------------------------------------------

    async def expect(self, launch: LaunchId) -> None:
        """Look once before the engine's process is made."""
        try:
            before = await self.machine.sample()
        except OSError:
            return
        self._disturb(None)
        alone = not self._moving_count and not self._starts
        self._starts[launch] = _Start(before, alone=alone)
        while len(self._starts) > REMEMBERED_COUNT_MAX:
            del self._starts[next(iter(self._starts))]

    def forget(self, launch: LaunchId) -> None:
        self._starts.pop(launch, None)
        self._workers.pop(launch, None)

    async def follow(self, record: LaunchRecord) -> None:
        """Look again and again until cancelled."""
        while record.launch in self._starts:
            await trio.sleep(START_POLL_S)
            with contextlib.suppress(OSError):
                await self._look(record)

    async def finish(self, record: LaunchRecord) -> None:
        """The engine is ready: a last look, and who of it holds device memory."""
        with contextlib.suppress(OSError):
            await self._look(record)
            await self._note_workers(record)

    async def _look(self, record: LaunchRecord) -> None:
        start = self._starts.get(record.launch)
        if start is None:
            return
        sample = await self.machine.sample()
        pids = self.processes.group_members(record.process)
        figures = await self.machine.look_at(pids)
        if figures.programs & COMPILERS:
            return
        device = self.device_of(record)
        for domain, before in start.before.available_bytes.items():
            now = sample.available_bytes.get(domain)
            mine = domain == device or not self._is_card(domain)
            if now is not None and mine and before > now:
                start.drops[domain] = max(start.drops.get(domain, 0), before - now)
        own = self._own(record, sample, pids, figures.anonymous_bytes)
        if own is not None and own > 0:
            start.own[device] = max(start.own.get(device, 0), own)

    def peak(self, record: LaunchRecord) -> Charges:
        """What the start took at most; asked once, when it is over.

        The driver's figures go before drops on a card, and stand in for them elsewhere;
        drops count only where nothing else moved memory.
        """
        start = self._starts.pop(record.launch, None)
        if start is None:
            return {}
        found = dict(start.drops) if start.alone else {}
        for domain, own in start.own.items():
            if self._is_card(domain) or domain not in found:
                found[domain] = own
        return found

    # -- a park ------------------------------------------------------------------------------

    async def held(self, record: LaunchRecord) -> tuple[int | None, int | None]:
        """Bytes of the launch on its device, where the driver tells, and bytes available there."""
        try:
            sample = await self.machine.sample()
        except OSError:
            return None, None
        pids = self.processes.group_members(record.process)
        anonymous = 0
        if self.shape.unified:
            anonymous = (await self.machine.look_at(pids)).anonymous_bytes
        own = self._own(record, sample, pids, anonymous)
        return own or None, sample.available_bytes.get(self.device_of(record))

    async def freed(
        self, record: LaunchRecord, before: tuple[int | None, int | None]
    ) -> ParkProof | None:
        """Wait until memory is seen free after a park; what is left, or None when too little
        of it is by the driver's own figures.

        Without those, what is not seen to come free stays in the residue. Weights that stay by
        design do not count as memory that should have come free.
        """
        device = self.device_of(record)
        own, available = before
        ready = record.ready.get(device, 0)
        left: int | None = None
        pause_s = PARK_POLL_S_MIN
        with trio.move_on_after(PARK_PROOF_S):
            while True:
                own_now, available_now = await self.held(record)
                if own is not None:
                    left = own_now or 0
                    if left <= _left_max(own, record.kept_bytes):
                        return ParkProof(residue={device: left})
                elif available is not None and available_now is not None:
                    left = max(0, ready - max(0, available_now - available))
                    if left <= _left_max(ready, record.kept_bytes):
                        return ParkProof(residue={device: left}, attributed=False)
                await trio.sleep(pause_s)
                pause_s = min(pause_s * 1.5, PARK_POLL_S_MAX)
        if own is not None:
            return None
        return ParkProof(residue={device: ready if left is None else left}, attributed=False)

    # -- workers -----------------------------------------------------------------------------

    async def _note_workers(self, record: LaunchRecord) -> None:
        sample = await self.machine.sample()
        if not sample.used_by_pid:
            return
        members = await self.processes.members(record.process)
        holders = (who for pid, who in members.items() if sample.used_by_pid.get(pid))
        self._workers[record.launch] = tuple(w for w in holders if w != record.process)

    async def worker_gone(self, record: LaunchRecord) -> int:
        """Pid of a worker that held device memory when the engine became ready, once it is gone.

        Never returns for an engine without such workers.
        """
        while True:
            for worker in self._workers.get(record.launch, ()):
                if not self.processes.is_running(worker):
                    return worker.pid
            await trio.sleep(WORKER_POLL_S)

    # -- whose is what -----------------------------------------------------------------------

    def device_of(self, record: LaunchRecord) -> DomainName:
        """Where the launch's model lives."""
        gpu = self._gpu_of(record)
        if gpu is not None:
            return gpu.domain
        return next(d.name for d in self.shape.domains if d.kind is not MemoryKind.DEVICE)

    def _gpu_of(self, record: LaunchRecord) -> Gpu | None:
        named = [gpu for gpu in self.shape.gpus if gpu.uuid in record.device_uuids]
        # Records of before devices were noted: with one card there is no question.
        return next(iter(named or self.shape.gpus[: len(self.shape.gpus) == 1]), None)

    def _is_card(self, domain: DomainName) -> bool:
        return self.shape.domain(domain).kind is MemoryKind.DEVICE

    def _own(
        self,
        record: LaunchRecord,
        sample: MemorySample,
        pids: tuple[int, ...],
        anonymous_bytes: int,
    ) -> int | None:
        """Bytes of these processes on the launch's device; None where the driver does not tell."""
        if self._gpu_of(record) is None or not sample.used_by_pid:
            return None
        used: Mapping[int, int] = sample.used_by_pid
        on_device = sum(used.get(pid, 0) for pid in pids)
        return on_device + (anonymous_bytes if self.shape.unified else 0)


def _left_max(used: int, kept: int) -> float:
    """What may be left of ``used`` bytes after a park that leaves ``kept`` in place."""
    kept = min(kept, used)
    return kept + (used - kept) * (1.0 - FREED_SHARE_MIN)
