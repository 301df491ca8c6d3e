"""Clients of a world: they enter gates, wait in queues and leave, as the data plane does."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from typing import Any

import attrs
import trio

from capyctl.control.directory import Directory
from capyctl.domain.errors import InferenceRefusal
from capyctl.domain.ids import DeploymentId
from capyctl.gates.admission import Admission, NotAdmitted
from capyctl.gates.lease import Lease
from capyctl.messages.deployment import DemandArose
from capyctl.messages.instance import LeaseUnproven
from capyctl.simulation.engine import Engine, EngineState
from capyctl.simulation.faults import Faults

WAIT_S_MAX = 1800.0


@attrs.define(eq=False)
class Client:
    """One request in a queue. Implements `gates.admission.Waiter`."""

    since_s: float
    body_bytes: int = 1000
    answer: Lease | InferenceRefusal | None = None
    answered: trio.Event = attrs.field(factory=trio.Event)

    def grant(self, lease: Lease) -> None:
        self._answer(lease)

    def refuse(self, refusal: InferenceRefusal) -> None:
        self._answer(refusal)

    def _answer(self, answer: Lease | InferenceRefusal) -> None:
        assert self.answer is None, "a waiter was answered twice"
        self.answer = answer
        self.answered.set()


@attrs.define(eq=False)
class Requests:
    """All clients of one daemon's life."""

    directory: Directory
    find: Callable[[Lease], Engine | None]
    """The engine that a lease leads to; None when the way there is closed."""
    tell: Callable[[Any, Any], None]
    chance: random.Random
    faults: Faults
    entered: Callable[[Lease, Engine], None]
    """Looks at each lease when it is taken."""
    outcomes: Counter[str] = attrs.field(factory=Counter)
    waiting: set[int] = attrs.field(factory=set)

    async def one(self, deployment: DeploymentId) -> str:
        """A whole request; what became of it: ``served``, ``late`` or the refusal's code."""
        outcome = await self._one(self.directory.admission(deployment), deployment)
        self.outcomes[outcome] += 1
        return outcome

    async def _one(self, admission: Admission, deployment: DeploymentId) -> str:
        client = Client(since_s=trio.current_time())
        try:
            lease = admission.try_enter(client.since_s)
            if lease is None:
                if admission.enqueue(client):
                    self._nudge(deployment)
                lease = await self._wait(admission, client)
        except NotAdmitted as refused:
            if refused.nudge_due:
                self._nudge(deployment)
            return refused.refusal.code
        if lease is None:
            answer = client.answer
            return answer.code if isinstance(answer, InferenceRefusal) else "late"
        return await self._served(admission, lease)

    def _nudge(self, deployment: DeploymentId) -> None:
        ref = self.directory.deployment_refs.get(deployment)
        if ref is not None:
            self.tell(ref, DemandArose())

    async def _wait(self, admission: Admission, client: Client) -> Lease | None:
        with trio.move_on_after(WAIT_S_MAX):
            await client.answered.wait()
        if client.answer is None:
            assert admission.withdraw(client), "neither answered nor waiting"
        return client.answer if isinstance(client.answer, Lease) else None

    async def _served(self, admission: Admission, lease: Lease) -> str:
        engine = self.find(lease)
        if engine is None:
            await trio.lowlevel.checkpoint()
            admission.leave(lease, trio.current_time(), unproven=False)
            return "engine_error"
        self.entered(lease, engine)
        engine.requests_count += 1
        unproven = engine.state is EngineState.GONE
        try:
            with trio.move_on_after(self._length_s()) as length:
                await engine.gone.wait()
            unproven = not length.cancelled_caught or self._rolls(self.faults.unproven_chance)
            if unproven and engine.state is not EngineState.GONE:
                await self._linger(engine, admission, lease)
                return "served"
        finally:
            engine.requests_count -= 1
            if not lease.closed:
                admission.leave(lease, trio.current_time(), unproven=unproven)
                if unproven:
                    self._tell_unproven(lease)
        return "served"

    async def _linger(self, engine: Engine, admission: Admission, lease: Lease) -> None:
        """The client is gone; the engine works on for a while."""
        admission.leave(lease, trio.current_time(), unproven=True)
        self._tell_unproven(lease)
        with trio.move_on_after(self.chance.uniform(1.0, 20.0)):
            await engine.gone.wait()

    def _tell_unproven(self, lease: Lease) -> None:
        ref = self.directory.instance_refs.get(lease.instance)
        if ref is not None:
            self.tell(ref, LeaseUnproven(generation=lease.generation, why="client left"))

    def _rolls(self, chance: float) -> bool:
        return self.chance.random() < chance

    def _length_s(self) -> float:
        if self._rolls(self.faults.slow_request_chance):
            return self.chance.uniform(30.0, 200.0)
        return self.chance.uniform(0.2, 15.0)
