"""What must hold in every world at every moment, seen from outside the control plane."""

from __future__ import annotations

import json
from collections.abc import Callable

import attrs
import trio

from capyctl.contracts.store import Change, Committed
from capyctl.control.books import Books
from capyctl.control.directory import Directory
from capyctl.domain.ids import InstanceId
from capyctl.domain.operations import Operation
from capyctl.gates.lease import Lease
from capyctl.machines.deployment import Picture
from capyctl.machines.instance import Instance, InstanceState
from capyctl.machines.observed import observed_instance
from capyctl.simulation.engine import Engine, EngineState
from capyctl.simulation.sim_host import SimHost
from capyctl.simulation.sim_store import Disk

DRAWING = (EngineState.LOADING, EngineState.SERVING, EngineState.PARKED)
SETTLED = (
    InstanceState.STOPPED,
    InstanceState.FAILED,
    InstanceState.READY,
    InstanceState.PARKED,
)


COMMITS_AT_ONCE_MAX = 300
STRAYS_S_MAX = 120.0
"""From an agreement, or a launch, until what nobody knows must be gone."""


class Violation(AssertionError):
    """Something that must never be, was."""


@attrs.define(eq=False)
class Checks:
    """Told of every commit, engine and lease; the first violation ends the world."""

    disk: Disk
    fail: Callable[[str], None]
    machines: list[SimHost] = attrs.field(factory=list)
    books: Books | None = None
    """Of the daemon that runs now."""
    told: dict[InstanceId, str] = attrs.field(factory=dict)
    """Where replaying the events has arrived, instance by instance."""
    changed_at_s: dict[InstanceId, float] = attrs.field(factory=dict)
    trace: list[str] = attrs.field(factory=list)
    _at_s: float = -1.0
    _commits_count: int = 0

    def note(self, text: str) -> None:
        self.trace.append(f"{trio.current_time():.3f} {text}")

    # -- commits -----------------------------------------------------------------------------

    def before_commit(self, change: Change) -> None:
        self._count_commit()
        for record in change.puts:
            if isinstance(record, Operation):
                known = self.disk.operations.get(record.id)
                if known is not None and not known.open:
                    self.fail(f"an operation ended twice: {known} then {record}")
            elif isinstance(record, Instance):
                owner = record.id.deployment
                if owner not in self.disk.deployments:
                    self.fail(f"an instance without a deployment is stored: {record}")

    def _count_commit(self) -> None:
        """Time passes: no rule goes round in circles."""
        now_s = trio.current_time()
        if now_s != self._at_s:
            self._at_s, self._commits_count = now_s, 0
        self._commits_count += 1
        if self._commits_count > COMMITS_AT_ONCE_MAX:
            self.fail(f"{COMMITS_AT_ONCE_MAX} changes at one moment")

    def committed(self, directory: Directory) -> Callable[[tuple[Committed, ...]], None]:
        """A listener for one session: the directory is the disk, events tell what is shown."""

        def look(batch: tuple[Committed, ...]) -> None:
            for done in batch:
                self._replay(done)
                for record in done.change.puts:
                    if isinstance(record, Instance):
                        self._instance(directory, record)

        return look

    def _replay(self, done: Committed) -> None:
        for event in done.events:
            payload = json.loads(event.payload_json)
            self.note(f"{event.seq} {event.kind} {event.payload_json}")
            if "instance" not in payload:
                continue
            id = InstanceId(payload["deployment_id"], payload["instance"])
            if payload["from"] != self.told.get(id, "stopped"):
                self.fail(f"{id} was told {self.told.get(id)}; then from {payload['from']}")
            self.told[id] = payload["to"]
        for gone in done.change.removes:
            self.told.pop(gone, None)

    def _instance(self, directory: Directory, one: Instance) -> None:
        if directory.instance(one.id) != self.disk.instances.get(one.id):
            self.fail(f"the directory shows what is not stored: {directory.instance(one.id)}")
        self.changed_at_s[one.id] = trio.current_time()
        if one.state in SETTLED:
            self._told_is_shown(directory, one)

    def _told_is_shown(self, directory: Directory, one: Instance) -> None:
        operations = directory.open_operations.get(one.id.deployment, {})
        if any(o.instance == one.id.index for o in operations.values()):
            return
        shown = observed_instance(one)
        if self.told.get(one.id, "stopped") != shown:
            self.fail(f"{one.id} shows {shown}, its events say {self.told.get(one.id)}")

    # -- engines -----------------------------------------------------------------------------

    def engine_changed(self, engine: Engine) -> None:
        self.note(f"{engine!r}")
        if engine.state not in DRAWING:
            return
        for machine in self.machines:
            for problem in machine.overbooked():
                self.fail(f"two engines on the same bytes: {problem}: {machine.alive}")
        twins = [e for e in self._alive() if e.instance == engine.instance and e.state in DRAWING]
        if len(twins) > 1:
            self.fail(f"two processes for one instance: {twins}")
        self.is_held(engine)

    def is_held(self, engine: Engine) -> None:
        """No engine without a record that holds memory for it, and a charge in the books."""
        one = self.disk.instances.get(engine.instance)
        if one is None or one.launch_id != engine.record.launch or one.held is None:
            self.fail(f"{engine} runs, and the store has {one}")
        elif self.books is not None and engine.instance not in self.books.ledger.entries:
            self.fail(f"{engine} runs, and the books charge it nothing")

    def all_held(self) -> None:
        for engine in self._alive():
            if engine.state in DRAWING:
                self.is_held(engine)

    def _alive(self) -> list[Engine]:
        return [engine for machine in self.machines for engine in machine.alive]

    def no_strays(self, machine: SimHost, agreed_at_s: float) -> None:
        """A host in touch with its server has no process that the server does not know."""
        if trio.current_time() - agreed_at_s < STRAYS_S_MAX:
            return
        for engine in machine.alive:
            one = self.disk.instances.get(engine.instance)
            known = one is not None and one.launch_id == engine.record.launch
            old_s = trio.current_time() - engine.made_at_s
            if not known and old_s > STRAYS_S_MAX:
                self.fail(f"{engine} is {old_s:.0f} s old, and the server does not know it: {one}")

    # -- requests ----------------------------------------------------------------------------

    def lease_taken(self, lease: Lease, engine: Engine) -> None:
        one = self.disk.instances.get(lease.instance)
        if one is None or one.state is not InstanceState.READY:
            now_s = trio.current_time()
            if one is None or self.changed_at_s.get(one.id) != now_s:
                self.fail(f"a lease on an instance that is not ready: {one}")
        if engine.state in (EngineState.PARKED, EngineState.LATCHED, EngineState.LOADING):
            self.fail(f"a request was let into {engine}")
        if one is not None and one.launch_id != engine.record.launch:
            self.fail(f"a request reached {engine}, and its instance is {one.launch_id}")

    # -- the end -----------------------------------------------------------------------------

    def nothing_is_left(self, directory: Directory, books: Books) -> list[str]:
        """What is still there although everything was stopped."""
        left = [f"{e}" for e in self._alive() if e.state in DRAWING]
        left += [f"charge {entry}" for entry in books.ledger.entries.values()]
        left += [f"in line {waiting}" for waiting in books.line.values()]
        left += [f"turn {turn.switch}" for turn in books.turns.values()]
        left += [f"{o}" for o in self.disk.operations.values() if o.open]
        for admission in directory.admissions.values():
            if admission.waiting_count or admission.running_count:
                left.append(f"{admission!r}")
        for id, deployment in directory.deployments.items():
            mine = directory.instances.get(id, {})
            picture = Picture(deployment=deployment, instances=mine)
            for one in (*picture.active, *picture.retiring):
                if one.state not in (InstanceState.STOPPED, InstanceState.FAILED):
                    left.append(f"{one.id} is {one.state.value}")
        return left
