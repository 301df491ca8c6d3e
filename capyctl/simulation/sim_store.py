"""A store in memory: what was committed stays when a daemon ends, what was not is gone."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable

import attrs
import trio

from capyctl.contracts.store import (
    Change,
    Committed,
    EventPage,
    OnCommitted,
    ReceiptTaken,
    Store,
    StoreBroken,
    Stored,
)
from capyctl.domain.canonical import canonical_json
from capyctl.domain.events import EVENT_PAYLOAD_BYTES_MAX, Event, Receipt
from capyctl.domain.hosts import HostRecord, Invitation
from capyctl.domain.ids import DeploymentId, HostId, InstanceId
from capyctl.domain.operations import Operation
from capyctl.machines.deployment import Deployment
from capyctl.machines.instance import Instance
from capyctl.simulation.faults import Faults


class InjectedFailure(Exception):
    """An actor is to fail here, as by a bug of its own."""


class FailingActors:
    """A store in front of another one, in which an actor fails now and then."""

    def __init__(self, inner: Store, chance: random.Random, faults: Faults) -> None:
        self._inner = inner
        self._chance = chance
        self.faults = faults

    async def commit(self, change: Change) -> Committed:
        if self._chance.random() < self.faults.actor_crash_chance:
            raise InjectedFailure("a bug in an actor")
        return await self._inner.commit(change)

    def submit(self, change: Change) -> None:
        if self._chance.random() < self.faults.actor_crash_chance:
            raise InjectedFailure("a bug in an actor")
        self._inner.submit(change)

    def listen(self, listener: OnCommitted) -> None:
        self._inner.listen(listener)

    async def find_receipt(self, scope: str, key: str) -> Receipt | None:
        return await self._inner.find_receipt(scope, key)

    async def read_events(
        self, after_seq: int, *, count_max: int = 64, bytes_max: int = 262_144
    ) -> EventPage:
        return await self._inner.read_events(after_seq, count_max=count_max, bytes_max=bytes_max)

    @property
    def broken(self) -> bool:
        return self._inner.broken


@attrs.define(eq=False)
class Disk:
    """What is durable."""

    deployments: dict[DeploymentId, Deployment] = attrs.field(factory=dict)
    instances: dict[InstanceId, Instance] = attrs.field(factory=dict)
    operations: dict[str, Operation] = attrs.field(factory=dict)
    hosts: dict[HostId, HostRecord] = attrs.field(factory=dict)
    invitations: dict[str, Invitation] = attrs.field(factory=dict)
    receipts: dict[tuple[str, str], Receipt] = attrs.field(factory=dict)
    events: list[Event] = attrs.field(factory=list)
    session_epoch: int = 0
    commits_count: int = 0

    def load(self) -> Stored:
        """What a start finds; it is a new session from here on."""
        self.session_epoch += 1
        return Stored(
            incarnation="0" * 26,
            session_epoch=self.session_epoch,
            last_seq=len(self.events),
            deployments=tuple(self.deployments.values()),
            instances=tuple(self.instances.values()),
            operations=tuple(o for o in self.operations.values() if o.open),
            hosts=tuple(self.hosts.values()),
            invitations=tuple(self.invitations.values()),
        )

    def apply(self, change: Change, now_ms: int) -> Committed:
        """Raises ReceiptTaken; then nothing of it is applied."""
        receipt = change.receipt
        if receipt is not None:
            taken = self.receipts.get((receipt.scope, receipt.key))
            if taken is not None:
                raise ReceiptTaken(taken)
            self.receipts[(receipt.scope, receipt.key)] = receipt
        for record in change.puts:
            match record:
                case Deployment():
                    self.deployments[record.id] = record
                case Instance():
                    self.instances[record.id] = record
                case Operation():
                    self.operations[record.id] = record
                case HostRecord():
                    self.hosts[record.id] = record
                case Invitation():
                    self.invitations[record.id] = record
        for gone in change.removes:
            self.instances.pop(gone, None)
        if change.deleted is not None:
            self.deployments.pop(change.deleted, None)
            mine = [id for id in self.instances if id.deployment == change.deleted]
            for id in mine:
                del self.instances[id]
        self.commits_count += 1
        return Committed(change=change, events=self._place(change, now_ms))

    def _place(self, change: Change, now_ms: int) -> tuple[Event, ...]:
        placed = []
        for new in change.events:
            payload = canonical_json(new.payload)
            assert len(payload.encode()) <= EVENT_PAYLOAD_BYTES_MAX
            event = Event(
                seq=len(self.events) + 1,
                kind=new.kind,
                deployment=new.deployment,
                operation=new.operation,
                payload_json=payload,
                recorded_at_ms=now_ms,
            )
            self.events.append(event)
            placed.append(event)
        return tuple(placed)


@attrs.define(eq=False)
class _Pending:
    change: Change
    done: trio.Event = attrs.field(factory=trio.Event)
    outcome: Committed | Exception | None = None


class SimStore:
    """One session's door to the disk. Implements `contracts.store.Store`."""

    def __init__(
        self,
        disk: Disk,
        chance: random.Random,
        faults: Faults,
        *,
        now_ms: Callable[[], int],
        before: Callable[[Change], None],
        after: Callable[[int], None],
    ) -> None:
        self.disk = disk
        self.faults = faults
        self._chance = chance
        self._now_ms = now_ms
        self._before = before
        self.after = after
        self._listeners: list[OnCommitted] = []
        self._queue: deque[_Pending] = deque()
        self._work = trio.Event()
        self._broken = False

    @property
    def broken(self) -> bool:
        return self._broken

    def end(self) -> None:
        """The process is no more: nothing is written from here on."""
        self._broken = True
        for pending in self._queue:
            pending.outcome = StoreBroken("the process has ended")
            pending.done.set()
        self._queue.clear()

    def listen(self, listener: OnCommitted) -> None:
        self._listeners.append(listener)

    async def find_receipt(self, scope: str, key: str) -> Receipt | None:
        await trio.lowlevel.checkpoint()
        return self.disk.receipts.get((scope, key))

    async def read_events(
        self, after_seq: int, *, count_max: int = 64, bytes_max: int = 262_144
    ) -> EventPage:
        await trio.lowlevel.checkpoint()
        found = tuple(self.disk.events[after_seq : after_seq + count_max])
        return EventPage(events=found, floor_seq=1, last_seq=len(self.disk.events))

    async def commit(self, change: Change) -> Committed:
        await trio.lowlevel.checkpoint_if_cancelled()
        if self._broken:
            await trio.lowlevel.checkpoint()
            raise StoreBroken("no change is taken any more")
        pending = _Pending(change)
        self._queue.append(pending)
        self._work.set()
        await pending.done.wait()
        if isinstance(pending.outcome, Exception):
            raise pending.outcome
        assert pending.outcome is not None
        return pending.outcome

    def submit(self, change: Change) -> None:
        if not self._broken:
            self._queue.append(_Pending(change))
            self._work.set()

    async def run(self) -> None:
        """Write what is queued, in its order. Runs for as long as the session lasts."""
        while True:
            await self._work.wait()
            self._work = trio.Event()
            while self._queue:
                if self._chance.random() < 0.3:
                    late_s = self._chance.uniform(0.0, self.faults.commit_delay_max_s)
                    await trio.sleep(late_s)
                if self._queue:
                    self._write(self._queue.popleft())

    def _write(self, pending: _Pending) -> None:
        limit = self.faults.store_breaks_after_count
        if limit is not None and self.disk.commits_count >= limit:
            self._broken = True
        if self._broken:
            pending.outcome = StoreBroken("the disk is full")
            pending.done.set()
            return
        self._before(pending.change)
        try:
            committed = self.disk.apply(pending.change, self._now_ms())
        except ReceiptTaken as taken:
            pending.outcome = taken
        else:
            for listener in self._listeners:
                listener((committed,))
            pending.outcome = committed
            self.after(self.disk.commits_count)
        pending.done.set()
