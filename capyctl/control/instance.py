"""The instance actor: performs what the instance's machine decides, and decides nothing."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, assert_never

import attrs
import trio

from actors import Actor, Ref
from capyctl.contracts.engines import EngineBroken as Broken
from capyctl.contracts.engines import ParkRefused
from capyctl.contracts.host import EndOutcome, Host, LaunchRefused
from capyctl.contracts.store import Change, StoreBroken
from capyctl.control.books import reserve_for
from capyctl.control.surroundings import World
from capyctl.domain.ids import HostId, InstanceId
from capyctl.domain.launches import LaunchOrder, LaunchRecord
from capyctl.domain.operations import OperationKind, OperationState
from capyctl.machines import instance as e
from capyctl.machines.instance import Instance
from capyctl.machines.instance_table import step
from capyctl.machines.resume import resume
from capyctl.machines.table import Step
from capyctl.messages import instance as m
from capyctl.messages.deployment import InstanceChanged
from capyctl.messages.placement import AskPark, Charge, EvictionFailed, Free, Withdraw

PROOF_PAUSES_S = (1.0, 2.0, 5.0, 10.0, 30.0, 60.0)
"""Pauses between further attempts to prove that an engine is gone; the last one repeats."""
SETTLE_POLL_S = 1.0
_STARTS = (OperationKind.INITIALIZE, OperationKind.RESTORE)


@attrs.frozen(kw_only=True)
class InstanceNeeds:
    """Beside the world: who this instance talks to."""

    world: World
    placement: Ref[Any]
    deployment: Ref[Any]


class InstanceActor(Actor[m.InstanceMessage]):
    """One copy of a model. Its record in the store is its whole memory."""

    def __init__(self, id: InstanceId, needs: InstanceNeeds, *, first: bool) -> None:
        super().__init__(f"instance/{id}", capacity=512)
        self.id = id
        self._needs = needs
        self._world = needs.world
        self._first = first
        self._gate = needs.world.directory.gate(id)
        self.one = needs.world.directory.instance(id)
        self._step_scope: trio.CancelScope | None = None
        self._end_scope: trio.CancelScope | None = None
        self._settling = False

    async def on_start(self) -> None:
        self.one = self._world.directory.instance(self.id)
        record = self.one.launch
        running = record is None or self._host.is_running(record)
        moment = self._world.moment()
        await self._take(resume(self.one, moment, same_daemon=not self._first, running=running))
        if self._gate.unproven_count:
            self._settle_unproven()
        if not self._first:
            # What lay in the mailbox is lost: have accepted work told again.
            self._world.tell(
                self._needs.deployment,
                InstanceChanged(instance=self.id, cause=None, restarted=True),
            )

    async def handle(self, message: m.InstanceMessage) -> None:
        if isinstance(message, m.LeaseUnproven):
            self._settle_unproven()
            return
        if self._is_stale(message):
            return
        if isinstance(message, m.DrainTimedOut):
            message = attrs.evolve(message, open_count=self._gate.held_count)
        await self._take(step(self.one, message, self._world.moment()))

    def _is_stale(self, message: m.InstanceMessage) -> bool:
        """Work that has ended since it was told, or a gate that was entered again since."""
        if isinstance(message, m.GateEmpty):
            return self._gate.held_count > 0
        if isinstance(message, m.Start | m.Park | m.Stop):
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
                | e.ChargePhase()
                | e.AskParkRoom()
                | e.FreeMemory()
            ):
                self._perform_memory(effect)
            case e.EvictionOver(reason):
                self._tell_placement(EvictionFailed(instance=self.id, reason=reason))
            case e.Prepare(order):
                self.spawn(self._prepare, order)
            case e.Discard(record):
                self.spawn(self._discard, record)
            case e.Run(record, order, within_s):
                self.spawn(self._watch, record, partial(self._host.run, record))
                self._in_step(self._probe, record, order, within_s)
            case e.Watch(record):
                self.spawn(self._watch, record, None)
            case e.Prove(record, within_s):
                self._in_step(self._probe, record, None, within_s)
            case e.OpenGate(record, generation):
                self._gate.open_for(self._host.endpoint(record), generation)
            case e.CloseGate(reason):
                self._gate.close(reason)
            case e.ReopenGate(reason):
                self.timers.cancel("drain")
                self._gate.reopen(reason)
            case e.Drain(within_s):
                self._drain(self._world.drain_s if within_s is None else within_s)
            case e.ParkEngine(record, within_s):
                self._in_step(self._park, record, within_s)
            case e.WakeEngine(record, within_s):
                self._in_step(self._wake, record, within_s)
            case e.EndEngine(record, grace_s, idle_s):
                self._end(record, grace_s, idle_s)
            case e.CancelTasks():
                self._cancel_step()
            case e.RetryAfter() | e.DeadlineAt() | e.NoDeadline():
                self._perform_time(effect)
            case e.Begin():
                raise AssertionError("a start begins where its step is taken")
            case _:
                assert_never(effect)

    def _perform_memory(
        self,
        effect: e.AskMemory | e.WithdrawMemory | e.ChargePhase | e.AskParkRoom | e.FreeMemory,
    ) -> None:
        match effect:
            case e.AskMemory():
                self._tell_placement(reserve_for(self.one))
            case e.WithdrawMemory(ask):
                self._tell_placement(Withdraw(ask=ask, instance=self.id))
            case e.ChargePhase(held):
                charges = held.charges
                self._tell_placement(Charge(instance=self.id, phase=held.phase, charges=charges))
            case e.AskParkRoom(ask, parked):
                self._tell_placement(AskPark(ask=ask, instance=self.id, parked=parked))
            case e.FreeMemory(why):
                self._cancel_step()
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
        assert self.one.held is not None, f"{self.id} has no host"
        return self._world.hosts[HostId(self.one.held.candidate.host)]

    def _tell_placement(self, message: object) -> None:
        self._world.tell(self._needs.placement, message)

    def _tell_self(self, message: m.InstanceMessage) -> None:
        self._world.tell(self.ref, message)

    def _in_step(self, fn: Callable[..., Awaitable[None]], *args: Any) -> None:
        self._cancel_step()
        self._step_scope = self.spawn(fn, *args)

    def _cancel_step(self) -> None:
        if self._step_scope is not None:
            self._step_scope.cancel()
            self._step_scope = None

    async def _prepare(self, order: LaunchOrder) -> None:
        host = self._host
        try:
            record = await host.prepare(order)
        except LaunchRefused as refused:
            self._tell_self(
                m.LaunchNotPrepared(
                    launch=order.launch,
                    code=refused.code,
                    detail=refused.detail,
                    permanent=refused.permanent,
                )
            )
        else:
            self._tell_self(m.LaunchPrepared(record=record))

    async def _discard(self, record: LaunchRecord) -> None:
        await self._host.discard(record)
        self._tell_self(m.LaunchDiscarded(launch=record.launch))

    async def _watch(self, record: LaunchRecord, run: Callable[[], Awaitable[None]] | None) -> None:
        """Open the latch, if there is one, and tell when the engine has ended.

        A latch that cannot be opened may have been opened before: by the daemon, or the
        incarnation, that was there before us. Then the engine runs, and is ours.
        """
        host = self._host
        how: str | None = None
        try:
            if run is not None:
                await run()
        except LaunchRefused as refused:
            how = None if host.is_running(record) else refused.detail
        if how is None:
            how = str(await host.wait_exit(record))
        self._tell_self(m.EngineExited(launch=record.launch, how=how))

    async def _probe(
        self, record: LaunchRecord, order: LaunchOrder | None, within_s: float
    ) -> None:
        answer: m.InstanceMessage = m.StepTimedOut(launch=record.launch)
        try:
            with trio.move_on_after(within_s):
                canary = await self._host.wait_ready(record, order)
                if order is None:
                    answer = m.EngineProved(launch=record.launch)
                else:
                    peak = self._host.start_peak(record)
                    answer = m.EngineAnswered(launch=record.launch, canary=canary, peak=peak)
        except LaunchRefused as refused:
            answer = m.EngineUnfit(launch=record.launch, code=refused.code, detail=refused.detail)
        self._tell_self(answer)

    def _drain(self, within_s: float) -> None:
        launch = self.one.launch_id
        assert launch is not None
        self.timers.set("drain", within_s, m.DrainTimedOut(launch=launch))
        self._gate.watch_empty(lambda: self._drained(launch))

    def _drained(self, launch: Any) -> None:
        self.timers.cancel("drain")
        self._tell_self(m.GateEmpty(launch=launch))

    async def _park(self, record: LaunchRecord, within_s: float) -> None:
        answer: m.InstanceMessage = m.StepTimedOut(launch=record.launch)
        try:
            with trio.move_on_after(within_s):
                proof = await self._host.park(record)
                answer = m.EngineParked(
                    launch=record.launch,
                    residue=proof.residue,
                    attributed=proof.attributed,
                    growth_limit=self._world.parked_growth_limit,
                )
        except ParkRefused as refused:
            answer = m.EngineNotParked(launch=record.launch, reason=str(refused))
        except Broken as broken:
            answer = m.EngineBroken(launch=record.launch, code=broken.code, detail=broken.detail)
        self._tell_self(answer)

    async def _wake(self, record: LaunchRecord, within_s: float) -> None:
        answer: m.InstanceMessage = m.StepTimedOut(launch=record.launch)
        try:
            with trio.move_on_after(within_s):
                await self._host.wake(record)
                answer = m.EngineWoken(launch=record.launch)
        except Broken as broken:
            answer = m.EngineBroken(launch=record.launch, code=broken.code, detail=broken.detail)
        self._tell_self(answer)

    def _end(self, record: LaunchRecord, grace_s: float, idle_s: float) -> None:
        if self._end_scope is not None:
            self._end_scope.cancel()
        self._end_scope = self.spawn(self._end_until_gone, record, grace_s, idle_s)

    async def _end_until_gone(self, record: LaunchRecord, grace_s: float, idle_s: float) -> None:
        """End it; while that cannot be proven, say so once and keep trying."""
        host = self._host
        outcome = await host.end(record, grace_s=grace_s, idle_s=idle_s)
        attempt = 0
        if outcome is not EndOutcome.GONE:
            busy = outcome is EndOutcome.BUSY
            why = (
                f"it still answered requests after {idle_s:.0f} s and was not signalled"
                if busy
                else "it was killed, and its processes could not be shown to be gone"
            )
            self._tell_self(m.EndUnproven(launch=record.launch, detail=why))
        while outcome is not EndOutcome.GONE:
            await trio.sleep(PROOF_PAUSES_S[min(attempt, len(PROOF_PAUSES_S) - 1)])
            attempt += 1
            outcome = await host.end(record, grace_s=grace_s, idle_s=idle_s)
        self._tell_self(m.GroupGone(launch=record.launch))

    def _settle_unproven(self) -> None:
        """A slot whose request's end was not seen comes back once the engine shows idle."""
        if self._settling or self.one.launch is None:
            return
        self._settling = True
        self.spawn(self._settle, self.one.launch)

    async def _settle(self, record: LaunchRecord) -> None:
        host = self._host
        try:
            while self._gate.unproven_count > 0 and self.one.launch == record:
                await trio.sleep(SETTLE_POLL_S)
                sample = await host.sample_engine(record)
                running = None if sample is None else sample.running + sample.waiting
                if running is not None and running <= self._gate.lease_count:
                    self._gate.settle_unproven()
        finally:
            self._settling = False
