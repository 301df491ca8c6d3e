"""A model of all that surrounds one instance: placement, host, gate, timers, messages in flight.

It performs the effects of the pure machine as its actor does, and lets every answer take as
long as the test likes. Nothing in it decides what is right; the checks do.
"""

from __future__ import annotations

import attrs

from capyctl.domain.ids import LaunchId
from capyctl.domain.operations import Operation
from capyctl.domain.specs import Phase
from capyctl.machines import instance as e
from capyctl.machines.deployment import Deployment, Picture
from capyctl.machines.instance import Instance
from capyctl.machines.instance_table import TABLE, step
from capyctl.machines.observed import observed_instance
from capyctl.machines.recovering import lost_messages
from capyctl.machines.resume import resume
from capyctl.machines.setting_off import Accepted
from capyctl.machines.table import Edge, Moment, Step
from capyctl.messages import instance as m
from tests.machines import making

reached: set[tuple[str, str]] = set()
"""Edges of the table that any life went along: state and message."""


@attrs.define
class Surroundings:
    """Everything but the instance itself."""

    deployment: Deployment = attrs.field(factory=making.deployment)
    one: Instance = attrs.field(factory=lambda: Instance(id=making.ONE))
    operations: dict[str, Operation] = attrs.field(factory=dict)
    told: str = "stopped"
    raced: bool = False
    now_ms: int = making.NOW_MS
    # Host
    latched: set[LaunchId] = attrs.field(factory=set)
    running: set[LaunchId] = attrs.field(factory=set)
    # The actor's tasks
    preparing: list = attrs.field(factory=list)
    discarding: list = attrs.field(factory=list)
    watching: set[LaunchId] = attrs.field(factory=set)
    step_task: tuple | None = None
    ending: object = None
    said_unproven: bool = False
    # Messages in flight, first in first out for each sender
    lanes: dict[str, list] = attrs.field(
        factory=lambda: {"deployment": [], "placement": [], "self": [], "hosts": []}
    )
    # Link to the host: what is so, and what the instance will have been told
    linked: bool = True
    silent: bool = False
    here: bool = True
    to_placement: list = attrs.field(factory=list)
    line: dict[str, Phase] = attrs.field(factory=dict)
    rooms: list[str] = attrs.field(factory=list)
    """Parks that asked for room."""
    booked: tuple | None = None
    # Timers
    deadlines: dict[str, int] = attrs.field(factory=dict)
    retry: bool = False
    drain: LaunchId | None = None
    # Gate
    has_endpoint: bool = False
    closed_for: set[str] = attrs.field(factory=set)
    leases: int = 0
    watch_empty: LaunchId | None = None
    evictions_over: int = 0
    fresh: object = attrs.field(factory=making.fresh_ids)

    def moment(self) -> Moment:
        return Moment(now_ms=self.now_ms, session_epoch=1, fresh=self.fresh)

    def picture(self) -> Picture:
        known = {} if self.one == Instance(id=self.one.id) else {0: self.one}
        unended = {id: o for id, o in self.operations.items() if o.open}
        return Picture(deployment=self.deployment, instances=known, operations=unended)

    # -- commits -----------------------------------------------------------------------------

    def accept(self, accepted: Accepted) -> None:
        """As the deployment's actor: commit, then tell."""
        self.deployment = accepted.deployment
        self._note(accepted.operations, accepted.events, own=False)
        for _, message in accepted.tell:
            self.lanes["deployment"].append(message)

    def feed(self, message: object) -> None:
        """As the instance's actor: one message."""
        if isinstance(message, m.GateEmpty) and self.leases:
            return
        if isinstance(message, m.HostBack):
            message = attrs.evolve(message, running=self.running_now())
        if isinstance(message, m.DrainTimedOut):
            message = attrs.evolve(message, open_count=self.leases)
        before = self.one.state
        known = isinstance(TABLE[before].get(type(message)), Edge)
        done = step(self.one, message, self.moment())
        if known and done != Step(data=self.one):
            reached.add((before.value, type(message).__name__))
        self.take(done)

    def take(self, done: Step[Instance]) -> None:
        self.one = done.data
        self._note(done.operations, done.events, own=True)
        begins = []
        for effect in done.effects:
            if isinstance(effect, e.Begin):
                begins.append(effect.start)
            else:
                self._perform(effect)
        for start in begins:
            self.take(step(self.one, start, self.moment()))

    def _note(self, operations: tuple, events: tuple, *, own: bool) -> None:
        untaken = self.picture().accepted(self.one)
        for operation in operations:
            known = self.operations.get(operation.id)
            assert known is None or known.open, f"{operation} ended before, as {known}"
            self.operations[operation.id] = operation
        if own and untaken:
            self.raced = True
        for event in events:
            if not self.raced:
                assert event.payload["from"] == self.told, (event, self.told)
            self.told = str(event.payload["to"])

    @property
    def shown(self) -> str:
        return observed_instance(self.one, self.picture().accepted(self.one))

    # -- effects -----------------------------------------------------------------------------

    def _perform(self, effect: object) -> None:
        match effect:
            case e.AskMemory(ask, phase):
                self.to_placement.append(("ask", ask, phase))
            case e.WithdrawMemory(ask):
                self.to_placement.append(("withdraw", ask, None))
            case e.ChargePhase(held):
                self.to_placement.append(("charge", None, held.phase))
            case e.AskParkRoom(ask, _):
                self.to_placement.append(("room", ask, None))
            case e.FreeMemory():
                assert not self.latched | self.running, "freed under a process"
                self.step_task = None
                self.to_placement.append(("free", None, None))
            case e.EvictionOver():
                self.evictions_over += 1
            case e.Prepare(order):
                self.preparing.append(order)
                if not self.here:
                    self._tell_loss()
            case e.Discard(record):
                self.discarding.append(record)
            case e.Run(record, _, _):
                self._run(record)
            case e.Watch(record):
                self._watch(record)
            case e.Prove(record, _):
                self.step_task = ("prove", record)
            case e.OpenGate(record, _):
                self.has_endpoint = True
                self.closed_for -= {"park", "stop", "engine_exit", "starting"}
                self._gate_changed()
            case e.CloseGate(reason):
                self.closed_for.add(reason)
                self._report_empty()
            case e.ReopenGate(reason):
                if reason != "host_session":
                    self.drain = None
                self.closed_for.discard(reason)
                self._gate_changed()
            case e.Drain(_):
                self.drain = self.watch_empty = self.one.launch_id
                self._report_empty()
            case e.ParkEngine(record, _):
                assert not self.leases, "parked under requests"
                self.step_task = ("park", record)
            case e.WakeEngine(record, _):
                self.step_task = ("wake", record)
            case e.EndEngine(record, _, _):
                whole = record.launch in self.running
                moved = self.one.cause is m.Cause.SWITCH
                assert not (whole and moved and self.leases), "ended for a switch under requests"
                self.ending, self.said_unproven = record, False
            case e.CancelTasks():
                self.step_task = None
            case e.DropTasks():
                self._drop_tasks()
            case e.RetryAfter():
                self.retry = True
            case e.DeadlineAt(operation, at_ms):
                self.deadlines[operation] = at_ms
            case e.NoDeadline(operation):
                self.deadlines.pop(operation, None)
            case _:
                raise AssertionError(effect)

    def _drop_tasks(self) -> None:
        """Calls that wait are cancelled; answers that are on their way do not count any more."""
        self.preparing.clear()
        self.discarding.clear()
        self.watching.clear()
        self.step_task = self.ending = self.drain = None
        for told in self.lanes["self"]:
            if isinstance(told, m.LaunchPrepared) and self.linked:
                self.latched.discard(told.record.launch)  # Its actor has it discarded.
        gate = [x for x in self.lanes["self"] if isinstance(x, m.GateEmpty)]
        self.lanes["self"][:] = gate

    # -- the link ----------------------------------------------------------------------------

    def fall_silent(self) -> None:
        self.silent = True
        if self.one.held is not None:
            self.lanes["hosts"].append(m.HostSuspended(host=making.HOST))

    def be_lost(self) -> None:
        self.here = False
        self._tell_loss()

    def _tell_loss(self) -> None:
        if self.one.held is not None:
            self.lanes["hosts"].append(making.lost())

    def come_back(self, *, fresh: bool) -> None:
        """The host ends what nobody knows of, then its session is live."""
        self.linked = True
        known = set() if self.one.launch is None else {self.one.launch.launch}
        if fresh:
            for launch in sorted(self.latched):
                self.exited(launch)  # Latches end with the process that made them.
        self.latched &= known | self._being_prepared()
        self.running &= known
        fresh = fresh or not self.here
        self.silent, self.here = False, True
        if self.one.held is not None:
            self.lanes["hosts"].append(making.back(fresh=fresh))

    def _being_prepared(self) -> set[LaunchId]:
        told = [x.record.launch for x in self.lanes["self"] if isinstance(x, m.LaunchPrepared)]
        return set(told)

    def running_now(self) -> bool:
        """Only a process that is certainly gone is said to be."""
        launch = None if self.one.launch is None else self.one.launch.launch
        return launch is None or launch in self.running | self.latched

    def _run(self, record: object) -> None:
        if record.launch in self.latched:
            self.latched.discard(record.launch)
            self.running.add(record.launch)
        self._watch(record)
        self.step_task = ("probe", record)

    def _watch(self, record: object) -> None:
        self.watching.add(record.launch)
        if self.linked and record.launch not in self.running | self.latched:
            self.exited(record.launch)

    @property
    def gate_open(self) -> bool:
        return self.has_endpoint and not self.closed_for

    def _gate_changed(self) -> None:
        if self.gate_open:
            self.watch_empty = None
        self._report_empty()

    def _report_empty(self) -> None:
        if self.watch_empty is not None and not self.gate_open and not self.leases:
            self.lanes["self"].append(m.GateEmpty(launch=self.watch_empty))
            self.watch_empty = self.drain = None

    # -- what the world does -----------------------------------------------------------------

    def exited(self, launch: LaunchId) -> None:
        """The process is gone, told to whoever watches it; across a cut link it is told later."""
        self.running.discard(launch)
        self.latched.discard(launch)
        if launch in self.watching and self.linked:
            self.watching.discard(launch)
            self.lanes["self"].append(m.EngineExited(launch=launch, how="exit code 1"))

    def leave(self) -> None:
        self.leases -= 1
        self._report_empty()

    def placement_reads(self) -> None:
        what, ask, phase = self.to_placement.pop(0)
        if what == "ask":
            self.line[ask] = phase
        elif what == "withdraw":
            self.line.pop(ask, None)
            if self.booked is not None and self.booked[0] == ask:
                self.booked = self.booked[2]
        elif what == "room":
            self.rooms.append(ask)
        elif what == "charge":
            assert self.booked is not None, "charged, but nothing is booked"
            self.booked = (None, phase, None)
        else:
            self.booked = None

    def grant(self, ask: str) -> None:
        phase = self.line.pop(ask)
        self.booked = (ask, phase, self.booked)
        answer = m.Reserved(ask=ask, candidate=making.CANDIDATE)
        self.lanes["placement"].append(answer)

    def answer_room(self, *, full: bool) -> None:
        ask = self.rooms.pop(0)
        answer = m.ParkRoom(ask=ask)
        if full:
            answer = m.NoParkRoom(ask=ask, reason="no room", full="no room to park")
        self.lanes["placement"].append(answer)

    def restart(self, *, same_daemon: bool) -> None:
        """The actor, or the whole daemon, begins anew from what is stored."""
        self.preparing.clear()
        self.discarding.clear()
        self.watching.clear()
        self.step_task = self.ending = self.drain = None
        self.retry = False
        self.deadlines.clear()
        for lane in self.lanes.values():
            lane.clear()
        if not same_daemon:
            self.here = self.linked
            self.latched.clear()
            self.to_placement.clear()
            self.line.clear()
            self.rooms.clear()
            held = self.one.held
            self.booked = None if held is None else (None, held.phase, None)
            self.has_endpoint, self.leases, self.watch_empty = False, 0, None
            self.closed_for.clear()
        else:
            # A latch whose record was lost with the mailbox waits for the daemon's end: no engine.
            known = set() if self.one.launch is None else {self.one.launch.launch}
            self.latched &= known
        away = None if self.here else making.lost()
        running = self.running_now() or not self.linked
        done = resume(self.one, self.moment(), same_daemon=same_daemon, running=running, away=away)
        self.take(done)
        if self.here and "host_session" in self.closed_for and not self.silent:
            self._perform(e.ReopenGate("host_session"))
        for _, message in lost_messages(self.picture()):
            self.lanes["deployment"].append(message)
