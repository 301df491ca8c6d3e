"""The instance actor: performs what the instance's machine decides, and decides nothing."""

from __future__ import annotations

from typing import Any, TypeAlias, assert_never

import attrs

from actors import Actor, Ref
from capyctl.contracts.host import Host
from capyctl.contracts.store import Change, StoreBroken
from capyctl.control.books import reserve_for
from capyctl.control.host_tasks import Answer, HostTasks
from capyctl.control.sessions import SessionState
from capyctl.control.surroundings import World
from capyctl.domain.ids import InstanceId
from capyctl.domain.operations import OperationKind, OperationState
from capyctl.machines import instance as e
from capyctl.machines.instance import Instance
from capyctl.machines.instance_table import step
from capyctl.machines.resume import resume
from capyctl.machines.starting import HOST_GATE
from capyctl.machines.table import Step
from capyctl.messages import instance as m
from capyctl.messages.deployment import InstanceChanged
from capyctl.messages.placement import AskPark, Charge, EvictionFailed, Free, Widen, Withdraw

OnHost: TypeAlias = (
    e.Prepare | e.Discard | e.Run | e.Watch | e.Prove | e.ParkEngine | e.WakeEngine | e.EndEngine
)
_STARTS = (OperationKind.INITIALIZE, OperationKind.RESTORE)


@attrs.frozen(kw_only=True)
class InstanceNeeds:
    """Beside the world: who this instance talks to."""

    world: World
    placement: Ref[Any]
    deployment: Ref[Any]


class InstanceActor(Actor[m.InstanceMessage | Answer]):
    """One copy of a model. Its record in the store is its whole memory."""

    def __init__(self, id: InstanceId, needs: InstanceNeeds, *, first: bool) -> None:
        super().__init__(f"instance/{id}", capacity=512)
        self.id = id
        self._needs = needs
        self._world = needs.world
        self._first = first
        self._gate = needs.world.directory.gate(id)
        self.one = needs.world.directory.instance(id)
        self._tasks = HostTasks(self.spawn, self._tell_self, self._gate)

    async def on_start(self) -> None:
        if not self._first:
            await self._world.landed()
        self.one = self._world.directory.instance(self.id)
        away = self._away()
        moment = self._world.moment()
        step_done = resume(
            self.one,
            moment,
            same_daemon=not self._first,
            running=away is not None or self._runs(),
            away=away,
        )
        await self._take(step_done)
        self._set_host_gate()
        self._settle_unproven()
        if not self._first:
            # What lay in the mailbox is lost: have accepted work told again.
            self._world.tell(
                self._needs.deployment,
                InstanceChanged(instance=self.id, cause=None, restarted=True),
            )
            await self._prove_on_its_host()

    async def _prove_on_its_host(self) -> None:
        """That its host came back as another process may have been among what was lost."""
        host = self.one.host
        record = None if host is None else self._world.directory.hosts.get(host)
        if record is None or self._world.sessions.state(record.id) is not SessionState.ONLINE:
            return
        back = m.HostBack(host=record.id, name=record.name, running=self._runs(), fresh=True)
        await self._take(step(self.one, back, self._world.moment()))

    async def handle(self, message: m.InstanceMessage | Answer) -> None:
        if isinstance(message, Answer):
            answered = self._tasks.take(message)
            if answered is None:
                return
            message = answered
        if isinstance(message, m.LeaseUnproven):
            self._settle_unproven()
            return
        if self._is_stale(message):
            return
        if isinstance(message, m.DrainTimedOut):
            message = attrs.evolve(message, open_count=self._gate.held_count)
        if isinstance(message, m.HostBack) and message.host == self.one.host:
            message = attrs.evolve(message, running=self._runs())
        await self._take(step(self.one, message, self._world.moment()))
        if isinstance(message, m.HostBack):
            self._settle_unproven()

    def _is_stale(self, message: m.InstanceMessage) -> bool:
        """Work that has ended since it was told, or a gate that was entered again since."""
        if isinstance(message, m.GateEmpty):
            return self._gate.held_count > 0
        if isinstance(message, m.Start | m.Park | m.Stop | m.Abandon):
            mine = self._world.directory.open_operations.get(self.id.deployment, {})
            return message.operation.id not in mine
        return False

    async def _take(self, done: Step[Instance]) -> None:
        before = self.one
        if done.data != before or done.operations or done.events:
            change = Change(puts=(done.data, *done.operations), events=done.events)
            try:
                await self._world.store.commit(change)
            except StoreBroken:
                # Nothing may happen that is not durable; what is ready serves on.
                self._world.log("instance_change_not_stored", instance=str(self.id))
                return
            self.one = done.data
            self._tell_deployment(before, done)
        for effect in done.effects:
            if isinstance(effect, e.Begin):
                # At once, so that nothing comes between: what was accepted before stays before.
                await self._take(step(self.one, effect.start, self._world.moment()))
            else:
                self._perform(effect)

    def _tell_deployment(self, before: Instance, done: Step[Instance]) -> None:
        failed = any(
            o.kind in _STARTS and (o.given_up or o.error_code is not None) for o in done.operations
        )
        parks = [o for o in done.operations if o.kind is OperationKind.PARK and not o.open]
        refused = [o.reason or "" for o in parks if o.state is not OperationState.SUCCEEDED]
        self._world.tell(
            self._needs.deployment,
            InstanceChanged(
                instance=self.id,
                cause=self.one.cause,
                ended=tuple(o.id for o in done.operations if not o.open),
                start_failed=failed,
                park_failed=refused[0] if refused else None,
                moved=before.state is not self.one.state,
            ),
        )

    def _perform(self, effect: e.Effect) -> None:
        match effect:
            case (
                e.AskMemory()
                | e.WithdrawMemory()
                | e.WidenMemory()
                | e.ChargePhase()
                | e.AskParkRoom()
                | e.FreeMemory()
            ):
                self._perform_memory(effect)
            case e.EvictionOver(reason):
                self._tell_placement(EvictionFailed(instance=self.id, reason=reason))
            case e.OpenGate(record, generation):
                self._gate.open_for(self._host.endpoint(record), generation)
            case e.CloseGate(reason):
                self._gate.close(reason)
            case e.ReopenGate(reason):
                if reason != HOST_GATE:
                    self.timers.cancel("drain")
                self._gate.reopen(reason)
            case e.Drain(within_s):
                self._drain(self._world.drain_s if within_s is None else within_s)
            case (
                e.Prepare()
                | e.Discard()
                | e.Run()
                | e.Watch()
                | e.Prove()
                | e.ParkEngine()
                | e.WakeEngine()
                | e.EndEngine()
            ):
                self._perform_on_host(effect, self._host)
            case e.CancelTasks():
                self._tasks.cancel_step()
            case e.DropTasks():
                self.timers.cancel("drain")
                self._tasks.drop()
            case e.RetryAfter() | e.DeadlineAt() | e.NoDeadline():
                self._perform_time(effect)
            case e.Begin():
                raise AssertionError("a start begins where its step is taken")
            case _:
                assert_never(effect)

    def _perform_on_host(self, effect: OnHost, host: Host) -> None:
        match effect:
            case e.Prepare(order):
                self._tasks.prepare(host, order)
                lost = self._away()
                if lost is not None:
                    self._tell_self(lost)  # It went between the grant and now.
            case e.Discard(record):
                self._tasks.discard(host, record)
            case e.Run(record, order, within_s):
                self._tasks.watch(host, record, opens=True)
                self._tasks.probe(host, record, order, within_s)
            case e.Watch(record):
                self._tasks.watch(host, record, opens=False)
            case e.Prove(record, within_s):
                self._tasks.probe(host, record, None, within_s)
            case e.ParkEngine(record, within_s):
                assert self.one.host is not None, f"{self.id} has no host"
                limit = self._world.growth_limit_on(self.one.host)
                self._tasks.park(host, record, within_s, limit)
            case e.WakeEngine(record, within_s):
                self._tasks.wake(host, record, within_s)
            case e.EndEngine(record, grace_s, idle_s):
                self._tasks.end(host, record, grace_s, idle_s)

    def _perform_memory(
        self,
        effect: e.AskMemory
        | e.WithdrawMemory
        | e.WidenMemory
        | e.ChargePhase
        | e.AskParkRoom
        | e.FreeMemory,
    ) -> None:
        match effect:
            case e.AskMemory():
                self._tell_placement(reserve_for(self.one))
            case e.WithdrawMemory(ask):
                self._tell_placement(Withdraw(ask=ask, instance=self.id))
            case e.WidenMemory(ask):
                self._tell_placement(Widen(ask=ask, candidates=reserve_for(self.one).candidates))
            case e.ChargePhase(held):
                charges = held.charges
                self._tell_placement(Charge(instance=self.id, phase=held.phase, charges=charges))
            case e.AskParkRoom(ask, parked):
                self._tell_placement(AskPark(ask=ask, instance=self.id, parked=parked))
            case e.FreeMemory(why):
                self._tasks.cancel_step()
                self._gate.settle_unproven()
                self._tell_placement(Free(instance=self.id, why=why))

    def _perform_time(self, effect: e.RetryAfter | e.DeadlineAt | e.NoDeadline) -> None:
        match effect:
            case e.RetryAfter(pause_s):
                self.timers.set("retry", pause_s, m.RetryDue())
            case e.DeadlineAt(operation, at_ms):
                left_s = max(0.0, (at_ms - self._world.clock.wall_ms()) / 1000)
                due = m.DeadlineReached(operation=operation)
                self.timers.set(f"deadline/{operation}", left_s, due)
            case e.NoDeadline(operation):
                self.timers.cancel(f"deadline/{operation}")

    # -- the world, as tasks that come back as messages -------------------------------------

    @property
    def _host(self) -> Host:
        assert self.one.host is not None, f"{self.id} has no host"
        return self._world.hosts[self.one.host]

    def _runs(self) -> bool:
        """False only when its process is certainly gone."""
        record = self.one.launch
        return record is None or self._host.is_running(record)

    def _away(self) -> m.HostLost | None:
        """What it is told when it begins, or is launched, while its host is away."""
        host = self.one.host
        if host is None or not self._world.sessions.is_lost(host):
            return None
        record = self._world.directory.hosts.get(host)
        name = host if record is None else record.name
        return m.HostLost(host=host, why=f"{name} is offline")

    def _set_host_gate(self) -> None:
        """News of the host that lay in the mailbox of an earlier incarnation is lost."""
        host = self.one.host
        if host is None or self._world.sessions.state(host) is SessionState.ONLINE:
            self._gate.reopen(HOST_GATE)
        else:
            self._gate.close(HOST_GATE)

    def _settle_unproven(self) -> None:
        if self.one.launch is not None and self.one.lost is None:
            self._tasks.settle_unproven(self._host, self.one.launch)

    def _tell_placement(self, message: object) -> None:
        self._world.tell(self._needs.placement, message)

    def _tell_self(self, message: m.InstanceMessage | Answer) -> None:
        self._world.tell(self.ref, message)

    def _drain(self, within_s: float) -> None:
        launch = self.one.launch_id
        assert launch is not None
        self.timers.set("drain", within_s, m.DrainTimedOut(launch=launch, within_s=within_s))
        self._gate.watch_empty(lambda: self._drained(launch))

    def _drained(self, launch: Any) -> None:
        self.timers.cancel("drain")
        self._tell_self(m.GateEmpty(launch=launch))
