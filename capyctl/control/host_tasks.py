"""What an instance has under way on its host: calls that take time, and answer as messages."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, TypeAlias

import attrs
import trio

from capyctl.contracts.engines import EngineBroken as Broken
from capyctl.contracts.engines import ParkRefused
from capyctl.contracts.host import EndOutcome, Host, LaunchRefused
from capyctl.contracts.hosts import CapabilityMissing, HostFailed
from capyctl.domain.devices import EngineSample
from capyctl.domain.launches import LaunchOrder, LaunchRecord
from capyctl.gates.gate import Gate
from capyctl.messages import instance as m

PROOF_PAUSES_S = (1.0, 2.0, 5.0, 10.0, 30.0, 60.0)
"""Pauses between further attempts to prove that an engine is gone; the last one repeats."""
SETTLE_POLL_S = 1.0
HOST_FAILED = "host_failed"
AGAIN_S = 5.0
"""Pause before a call is made again that its host could not carry out."""

Spawn: TypeAlias = Callable[..., trio.CancelScope]
Say: TypeAlias = Callable[[m.InstanceMessage], None]
"""How a task tells its instance what came of it."""


@attrs.frozen(kw_only=True)
class Answer:
    """What a task told, and in which era: after `HostTasks.drop` it does not count any more."""

    era: int
    host: Host
    message: m.InstanceMessage


class HostTasks:
    """Of one instance's actor. At most one step (probe, park, wake) and one end at a time."""

    def __init__(self, spawn: Spawn, tell: Callable[[Answer], None], gate: Gate) -> None:
        self._spawn = spawn
        self._tell = tell
        self._gate = gate
        self._era = 0
        self._scopes: set[trio.CancelScope] = set()
        self._step: trio.CancelScope | None = None
        self._end: trio.CancelScope | None = None
        self._settling: LaunchRecord | None = None

    def take(self, answer: Answer) -> m.InstanceMessage | None:
        """What was answered; None when the task had been given up before it was read.

        A latch that was made meanwhile is ended: nobody waits for it.
        """
        if answer.era == self._era:
            return answer.message
        if isinstance(answer.message, m.LaunchPrepared):
            self._spawn(answer.host.discard, answer.message.record)
        return None

    def drop(self) -> None:
        """Give up everything; processes are left alone."""
        self._era += 1
        for scope in self._scopes:
            scope.cancel()
        self._scopes.clear()
        self._step = self._end = self._settling = None

    def _run(self, host: Host, fn: Callable[..., Awaitable[None]], *args: Any) -> trio.CancelScope:
        era = self._era

        def say(message: m.InstanceMessage) -> None:
            self._tell(Answer(era=era, host=host, message=message))

        async def run() -> None:
            try:
                await fn(host, say, *args)
            finally:
                self._scopes.discard(scope)

        scope = self._spawn(run)
        self._scopes.add(scope)
        return scope

    # -- launches ----------------------------------------------------------------------------

    def prepare(self, host: Host, order: LaunchOrder) -> None:
        self._run(host, _prepare, order)

    def discard(self, host: Host, record: LaunchRecord) -> None:
        self._run(host, _discard, record)

    def watch(self, host: Host, record: LaunchRecord, *, opens: bool) -> None:
        """``opens``: its latch is opened first."""
        self._run(host, _watch, record, opens)

    def end(self, host: Host, record: LaunchRecord, grace_s: float, idle_s: float) -> None:
        """An end that is under way is given up for this one."""
        if self._end is not None:
            self._end.cancel()
        self._end = self._run(host, _end_until_gone, record, grace_s, idle_s)

    # -- steps -------------------------------------------------------------------------------

    def cancel_step(self) -> None:
        if self._step is not None:
            self._step.cancel()
            self._step = None

    def probe(
        self, host: Host, record: LaunchRecord, order: LaunchOrder | None, within_s: float
    ) -> None:
        """``order``: None for an engine that was found again."""
        self.cancel_step()
        self._step = self._run(host, _probe, record, order, within_s)

    def park(self, host: Host, record: LaunchRecord, within_s: float, growth_limit: str) -> None:
        self.cancel_step()
        self._step = self._run(host, _park, record, within_s, growth_limit)

    def wake(self, host: Host, record: LaunchRecord, within_s: float) -> None:
        self.cancel_step()
        self._step = self._run(host, _wake, record, within_s)

    # -- slots -------------------------------------------------------------------------------

    def settle_unproven(self, host: Host, record: LaunchRecord) -> None:
        """A slot whose request's end was not seen comes back once the engine shows idle."""
        if self._settling is None and self._gate.unproven_count:
            self._settling = record
            self._run(host, self._settle, record)

    async def _settle(self, host: Host, _: Say, record: LaunchRecord) -> None:
        try:
            while self._gate.unproven_count > 0:
                await trio.sleep(SETTLE_POLL_S)
                sample = await _sampled(host, record)
                running = None if sample is None else sample.running + sample.waiting
                if running is not None and running <= self._gate.lease_count:
                    self._gate.settle_unproven()
        finally:
            if self._settling is record:
                self._settling = None


async def _sampled(host: Host, record: LaunchRecord) -> EngineSample | None:
    try:
        return await host.sample_engine(record)
    except (HostFailed, CapabilityMissing):
        return None


async def _prepare(host: Host, say: Say, order: LaunchOrder) -> None:
    try:
        record = await host.prepare(order)
    except LaunchRefused as refused:
        say(
            m.LaunchNotPrepared(
                launch=order.launch,
                code=refused.code,
                detail=refused.detail,
                permanent=refused.permanent,
            )
        )
    except (HostFailed, CapabilityMissing) as problem:
        lacks = isinstance(problem, CapabilityMissing)
        say(
            m.LaunchNotPrepared(
                launch=order.launch, code=HOST_FAILED, detail=str(problem), permanent=lacks
            )
        )
    else:
        say(m.LaunchPrepared(record=record))


async def _discard(host: Host, say: Say, record: LaunchRecord) -> None:
    while True:
        try:
            await host.discard(record)
            break
        except HostFailed:
            await trio.sleep(AGAIN_S)
    say(m.LaunchDiscarded(launch=record.launch))


async def _watch(host: Host, say: Say, record: LaunchRecord, opens: bool) -> None:
    """Open the latch, if there is one, and tell when the engine has ended.

    A latch that cannot be opened may have been opened before: by the daemon, or the
    incarnation, that was there before us. Then the engine runs, and is ours.
    """
    how: str | None = None
    out_of_memory = False
    try:
        if opens:
            await host.run(record)
    except LaunchRefused as refused:
        how = None if host.is_running(record) else refused.detail
    except HostFailed as failed:
        how = None if host.is_running(record) else str(failed)
    while how is None:
        try:
            status = await host.wait_exit(record)
            how, out_of_memory = str(status), status.out_of_memory
        except HostFailed:
            await trio.sleep(AGAIN_S)
    say(m.EngineExited(launch=record.launch, how=how, out_of_memory=out_of_memory))


async def _probe(
    host: Host, say: Say, record: LaunchRecord, order: LaunchOrder | None, within_s: float
) -> None:
    answer: m.InstanceMessage = m.StepTimedOut(launch=record.launch)
    try:
        with trio.move_on_after(within_s):
            canary = await host.wait_ready(record, order)
            if order is None:
                answer = m.EngineProved(launch=record.launch)
            else:
                peak = host.start_peak(record)
                answer = m.EngineAnswered(launch=record.launch, canary=canary, peak=peak)
    except LaunchRefused as refused:
        answer = m.EngineUnfit(launch=record.launch, code=refused.code, detail=refused.detail)
    except HostFailed as failed:
        answer = m.EngineUnfit(launch=record.launch, code=HOST_FAILED, detail=str(failed))
    say(answer)


async def _park(
    host: Host, say: Say, record: LaunchRecord, within_s: float, growth_limit: str
) -> None:
    answer: m.InstanceMessage = m.StepTimedOut(launch=record.launch)
    try:
        with trio.move_on_after(within_s):
            proof = await host.park(record)
            answer = m.EngineParked(
                launch=record.launch,
                residue=proof.residue,
                attributed=proof.attributed,
                growth_limit=growth_limit,
            )
    except (ParkRefused, CapabilityMissing) as refused:
        answer = m.EngineNotParked(launch=record.launch, reason=str(refused))
    except HostFailed as failed:
        answer = m.EngineBroken(launch=record.launch, code=HOST_FAILED, detail=str(failed))
    except Broken as broken:
        answer = m.EngineBroken(launch=record.launch, code=broken.code, detail=broken.detail)
    say(answer)


async def _wake(host: Host, say: Say, record: LaunchRecord, within_s: float) -> None:
    answer: m.InstanceMessage = m.StepTimedOut(launch=record.launch)
    try:
        with trio.move_on_after(within_s):
            await host.wake(record)
            answer = m.EngineWoken(launch=record.launch)
    except (HostFailed, CapabilityMissing) as failed:
        answer = m.EngineBroken(launch=record.launch, code=HOST_FAILED, detail=str(failed))
    except Broken as broken:
        answer = m.EngineBroken(launch=record.launch, code=broken.code, detail=broken.detail)
    say(answer)


async def _end_until_gone(
    host: Host, say: Say, record: LaunchRecord, grace_s: float, idle_s: float
) -> None:
    """End it; while that cannot be proven, say so once and keep trying."""
    attempt = 0
    while (why := await _not_ended(host, record, grace_s, idle_s)) is not None:
        if attempt == 0:
            say(m.EndUnproven(launch=record.launch, detail=why))
        await trio.sleep(PROOF_PAUSES_S[min(attempt, len(PROOF_PAUSES_S) - 1)])
        attempt += 1
    say(m.GroupGone(launch=record.launch))


async def _not_ended(host: Host, record: LaunchRecord, grace_s: float, idle_s: float) -> str | None:
    """Why it is not shown to be gone; None once it is."""
    try:
        outcome = await host.end(record, grace_s=grace_s, idle_s=idle_s)
    except HostFailed as failed:
        return str(failed)
    match outcome:
        case EndOutcome.GONE:
            return None
        case EndOutcome.BUSY:
            return f"it still answered requests after {idle_s:.0f} s and was not signalled"
        case EndOutcome.UNPROVEN:
            return "it was killed, and its processes could not be shown to be gone"
