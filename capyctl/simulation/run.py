"""Run one world: first unkind, for safety; then kind, for liveness. A seed decides everything."""

from __future__ import annotations

import hashlib
import math
import random
import traceback
from collections import Counter

import attrs
import trio
from trio.testing import MockClock

from actors import ActorGone, RestartsExceeded
from capyctl.contracts.store import StoreBroken
from capyctl.domain.ids import DeploymentId
from capyctl.domain.units import GIB
from capyctl.machines.deployment import GOING_DOWN, PARKING, Deployment
from capyctl.machines.idling import IdlePolicy
from capyctl.messages.deployment import ActionKind
from capyctl.simulation.checks import Checks, Violation
from capyctl.simulation.coverage import EdgeName, counting
from capyctl.simulation.faults import Faults, draw_faults
from capyctl.simulation.machine import CARD_BYTES, draw_shape
from capyctl.simulation.names import WorldClock, WorldIds
from capyctl.simulation.operator import Operator, Sent, send_twice
from capyctl.simulation.outside import OneMachine, Outside
from capyctl.simulation.seeding import part, seeded_scheduler
from capyctl.simulation.session import Lasting, Session, open_session
from capyctl.simulation.sim_host import SimHost
from capyctl.simulation.sim_store import Disk, InjectedFailure

STEPS_COUNT = 40
VIRTUAL_S_MAX = 200_000.0
SETTLE_S_MAX = 4_000.0
"""From the last fault on: longer than any deadline, window and pause of a world."""
SETTLE_S = 200.0
"""From the last fault to the first calm request: what was broken has been cleared away."""
QUIET_S_MAX = 1_000.0
"""Longer than an engine may take for a park that began while it was broken."""
POLL_S = 20.0
TRIES_MAX = 5
TRY_AGAIN_S = 60.0
CARD_GIB = CARD_BYTES // GIB
SAMPLE_PERIODS_S = (1.0, 5.0, 10.0, 10.0, 10.0)
"""Looks at memory; most of them far apart, since each costs as much as a commit."""


@attrs.frozen(kw_only=True)
class Outcome:
    """What a world came to."""

    digest: str
    """Of everything that happened, in its order: equal for equal seeds."""
    reached: Counter[EdgeName]
    served_count: int
    sessions_count: int
    trace: tuple[str, ...] = attrs.field(repr=False)


def _gib(deployment: Deployment) -> int:
    return int(deployment.spec.engine_part)


def _told(faults: Faults) -> str:
    """What is wrong in this world, shortly."""
    calm = attrs.asdict(Faults())
    return str({k: v for k, v in attrs.asdict(faults).items() if v != calm[k]} or "no faults")


class Simulation:
    """One world. ``Simulation(seed).run()`` is all that is needed to see a failure again."""

    def __init__(self, seed: int, *, faults: Faults | None = None) -> None:
        self.seed = seed
        chance = part(seed, "shape")
        self.faults = draw_faults(chance) if faults is None else faults
        self.drawn = _told(self.faults)
        self.shape = draw_shape(chance)
        self.idle = chance.choice([IdlePolicy(), IdlePolicy(), IdlePolicy(ready_s=60, parked_s=90)])
        self.chance = part(seed, "world")
        self.script = part(seed, "script")
        self.disk = Disk()
        self.checks = Checks(self.disk, self.fail)
        self.clock, self.ids = WorldClock(), WorldIds()
        self.operator = self.make_operator(part(seed, "operator"))
        self.reached: Counter[EdgeName] = Counter()
        self.session: Session | None = None
        self.served_count = self.sessions_count = 0
        self.problem: str | None = None
        self._scope = trio.CancelScope()
        self._up = trio.Event()
        self._finished = False

    def run(self) -> Outcome:
        """Run to the end.

        Raises:
            Violation: what was wrong, with the seed.
        """
        with seeded_scheduler(self.seed), counting(self.reached):
            try:
                trio.run(self._bounded, clock=MockClock(autojump_threshold=0))
            except Exception:
                self.problem = self.problem or traceback.format_exc()
        if self.problem is not None:
            raise Violation(f"seed {self.seed}: {self.problem}\n{self.drawn}")
        trace = tuple(self.checks.trace)
        return Outcome(
            digest=hashlib.sha256("\n".join(trace).encode()).hexdigest(),
            reached=self.reached,
            served_count=self.served_count,
            sessions_count=self.sessions_count,
            trace=trace,
        )

    def fail(self, problem: str) -> None:
        if self.problem is None:
            self.problem = f"at {trio.current_time():.3f} s: {problem}"
            self.checks.note(f"VIOLATION {problem}")
        self._scope.cancel()

    async def _bounded(self) -> None:
        with trio.move_on_after(VIRTUAL_S_MAX) as bound, self._scope:
            async with trio.open_nursery() as nursery:
                self.outside = self.make_outside(nursery)
                self.checks.machines = list(self.outside.machines)
                nursery.start_soon(self._daemons)
                await self.begin()
                await self._unkind()
                await self._kind()
                nursery.cancel_scope.cancel()
        if bound.cancelled_caught:
            self.fail("the world did not end")

    def make_operator(self, chance: random.Random) -> Operator:
        return Operator(chance, self.clock, self.ids)

    def make_outside(self, nursery: trio.Nursery) -> Outside:
        """The machine that daemons run on."""
        host = SimHost(self.shape, self.chance, self.faults, nursery, self.checks.engine_changed)
        period_s = part(self.seed, "sampler").choice(SAMPLE_PERIODS_S)
        return OneMachine(host, sample_period_s=period_s)

    async def begin(self) -> None:
        """Before anything happens."""

    async def settle(self) -> None:
        """Faults are over: what an operator does about what they left behind."""

    # -- daemons -----------------------------------------------------------------------------

    async def _daemons(self) -> None:
        """One daemon after the other; a short pause between two."""
        lasting = Lasting(
            disk=self.disk,
            outside=self.outside,
            clock=self.clock,
            ids=self.ids,
            checks=self.checks,
            chance=self.chance,
            idle=self.idle,
        )
        while True:
            self.sessions_count += 1
            self.checks.note(f"session {self.sessions_count}")
            try:
                async with open_session(lasting, self.faults) as session:
                    self.session = session
                    self._arrange_end(session)
                    self._up.set()
                    await session.over.wait()
            except* (RestartsExceeded, StoreBroken, ActorGone, InjectedFailure):
                if self.session is not None:
                    self.session.end()
            self.session = None
            if self.disk.commits_count >= (self.faults.store_breaks_after_count or math.inf):
                # Somebody made room on the disk.
                self.faults = attrs.evolve(self.faults, store_breaks_after_count=None)
            if self._up.is_set():
                self._up = trio.Event()
            await trio.sleep(self.chance.uniform(0.0, 20.0))

    def _arrange_end(self, session: Session) -> None:
        """This daemon's end: at some commit, in the middle of whatever goes on then."""
        if self.faults.restarts_count == 0 or self.sessions_count > self.faults.restarts_count:
            return
        last = self.disk.commits_count + self.chance.randint(1, 60)
        session.store.after = lambda count: session.end() if count == last else None

    async def daemon(self) -> Session:
        """The one that runs now, or the next one."""
        await self._up.wait()
        session = self.session
        assert session is not None
        return session

    # -- what happens ------------------------------------------------------------------------

    async def _unkind(self) -> None:
        """Whatever happens, nothing bad does."""
        for _ in range(STEPS_COUNT):
            session = await self.daemon()
            if session.store.broken:
                session.end()
                await trio.sleep(30)
                continue
            for _ in range(self.script.choice([1, 1, 2, 4])):
                self.something(session)
            await trio.sleep(self.script.choice([0.0, 0.5, 2.0, 5.0, 30.0, 90.0]))
            self.look()

    def look(self) -> None:
        """What must hold between two steps."""
        self.checks.all_held()

    def something(self, session: Session) -> None:
        known = list(session.directory.deployments)
        if known and self.script.random() < 0.5:
            wanted = self.script.choice(known)
            for _ in range(self.script.choice([1, 1, 2, 6])):
                session.clients.start_soon(self._request, session, wanted)
            return
        sent = self.operator.draw(session.directory)
        if sent is None:
            return
        if self.script.random() < 0.1:
            session.clients.start_soon(send_twice, self.operator, session.desk, sent)
        else:
            session.clients.start_soon(self.operator.send, session.desk, sent)

    async def _request(self, session: Session, deployment: DeploymentId) -> None:
        outcome = await session.requests.one(deployment)
        self.checks.note(f"request for {deployment}: {outcome}")
        if outcome == "served":
            self.served_count += 1

    async def _kind(self) -> None:
        """With the faults off, everything that is told to stop comes to nothing."""
        self.faults = Faults()
        for machine in self.outside.machines:
            machine.calm()
        if self.session is not None:
            self.session.calm()
            if self.session.store.broken:
                self.session.end()
                await trio.sleep(1)
        await self.settle()
        await self._everybody_is_served()
        await self._stop_all()
        await self._until_nothing_is_left()
        await self._delete_all()

    async def _everybody_is_served(self) -> None:
        """Each model that fits is started when it is asked for, whatever happened before."""
        session = await self.daemon()
        await trio.sleep(SETTLE_S)
        await self._until_nothing_moves(session)
        held = any(d.spec.warm or d.spec.explicit for d in session.directory.deployments.values())
        for target in list(session.directory.deployments):
            outcome = await self._served(session, target)
            deployment = session.directory.deployments[target]
            if outcome != "served" and self.fits(deployment) and not held:
                self.fail(f"{target} is not served: {outcome}")

    async def _until_nothing_moves(self, session: Session) -> None:
        """What is on its way down keeps its memory until it is there."""
        for _ in range(int(QUIET_S_MAX / POLL_S)):
            ones = [o for mine in session.directory.instances.values() for o in mine.values()]
            if not any(one.state in GOING_DOWN or one.state in PARKING for one in ones):
                return
            await trio.sleep(POLL_S)

    def fits(self, deployment: Deployment) -> bool:
        return deployment.resolved is not None and _gib(deployment) <= CARD_GIB

    def _start(self, session: Session, target: DeploymentId) -> Sent:
        revision = session.directory.deployments[target].revision
        start = ActionKind.START
        return self.operator.act(target, start, revision, index=0, evict=True, patient=True)

    async def _served(self, session: Session, target: DeploymentId) -> str:
        """The last outcome of a few tries: an engine that was broken before may fail the first."""
        outcome = ""
        for _ in range(TRIES_MAX):
            started = await self.operator.send(session.desk, self._start(session, target))
            outcome = await session.requests.one(target)
            self.checks.note(f"calm request for {target}: {started}, {outcome}")
            if outcome in ("served", "late", "deployment_inactive"):
                return outcome
            await trio.sleep(TRY_AGAIN_S)
        return outcome

    async def _stop_all(self) -> None:
        session = await self.daemon()
        for target, deployment in list(session.directory.deployments.items()):
            sent = self.operator.act(target, ActionKind.STOP, deployment.revision)
            answer = await self.operator.send(session.desk, sent)
            if answer not in ("accepted", "not_found", "revision_conflict"):
                self.fail(f"a stop was answered {answer}")

    async def _until_nothing_is_left(self) -> None:
        session = await self.daemon()
        left: list[str] = []
        for _ in range(int(SETTLE_S_MAX / POLL_S)):
            await trio.sleep(POLL_S)
            left = self.checks.nothing_is_left(session.directory, session.control.books)
            if not left:
                return
            if any(not d.operator_stopped for d in session.directory.deployments.values()):
                await self._stop_all()
        self.fail("not everything ends: " + "; ".join(left))

    async def _delete_all(self) -> None:
        session = await self.daemon()
        for target, deployment in list(session.directory.deployments.items()):
            sent = self.operator.act(target, ActionKind.DELETE, deployment.revision)
            answer = await self.operator.send(session.desk, sent)
            if answer != "accepted":
                self.fail(f"the deletion of {deployment} was answered {answer}")
        await trio.sleep(POLL_S)
        if self.disk.deployments or self.disk.instances:
            self.fail(f"stored after all was deleted: {self.disk.deployments}")
