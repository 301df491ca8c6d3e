"""Whatever happens to an instance, in whatever order the answers come."""

from __future__ import annotations

import attrs
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)

from capyctl.domain.errors import Refused
from capyctl.domain.units import GIB
from capyctl.machines.actions import decide
from capyctl.machines.deployment import EMPTY
from capyctl.machines.instance import InstanceState as S
from capyctl.machines.resume import resume
from capyctl.machines.start_action import NeedFit
from capyctl.messages import instance as m
from capyctl.messages.deployment import ActionKind, FitAnswered
from tests.machines import making
from tests.machines.living import Surroundings

SETTLED = frozenset({S.STOPPED, S.FAILED, S.READY, S.PARKED})
WAYS = (ActionKind.START, ActionKind.PARK, ActionKind.START)
FAR_STEPS = 30


class InstanceLife(RuleBasedStateMachine):
    def __init__(self):
        super().__init__()
        self.world = Surroundings()
        self.parks_count = 0

    @initialize(way=st.sampled_from([(), WAYS[:1], WAYS[:2], WAYS, WAYS]))
    def come_far(self, way):
        """Trouble rarely lets a life get as far as a park, so most begin there, or at a wake."""
        for action in way:
            self.act(action)
            self.all_goes_well(FAR_STEPS)

    # -- an operator, demand, placement ------------------------------------------------------

    @rule(action=st.sampled_from([ActionKind.START, ActionKind.STOP, ActionKind.PARK]))
    def act(self, action):
        world = self.world
        asked = making.act(action, deadline_at_ms=world.now_ms + 60_000)
        try:
            found = decide(world.picture(), asked, world.moment())
            if isinstance(found, NeedFit):
                fit = FitAnswered(request="r", fitting=(0,), shortage=None)
                found = decide(world.picture(), asked, world.moment(), fit=fit)
        except Refused:
            return
        world.accept(found)

    @precondition(lambda self: self.world.one.state not in EMPTY)
    @rule(stops=st.booleans())
    def evict(self, stops):
        evicted = making.evict(stop=stops)
        deadline_at_ms = self.world.now_ms + 900_000
        operation = attrs.evolve(evicted.operation, deadline_at_ms=deadline_at_ms)
        self.world.lanes["placement"].append(attrs.evolve(evicted, operation=operation))

    @precondition(lambda self: self.world.to_placement)
    @rule()
    def placement_reads(self):
        self.world.placement_reads()

    @precondition(lambda self: self.world.line)
    @rule(data=st.data(), what=st.sampled_from(["grant", "grant", "wait", "refuse"]))
    def placement_answers(self, data, what):
        world = self.world
        ask = data.draw(st.sampled_from(sorted(world.line)))
        if what == "grant":
            world.grant(ask)
        elif what == "wait":
            world.lanes["placement"].append(m.ReserveWaits(ask=ask, reason="full"))
        else:
            del world.line[ask]
            refused = m.ReserveRefused(ask=ask, code="insufficient_resources", reason="full")
            world.lanes["placement"].append(refused)

    @precondition(lambda self: self.world.rooms)
    @rule(full=st.booleans())
    def placement_answers_a_park(self, full):
        self.world.answer_room(full=full)

    # -- the host ----------------------------------------------------------------------------

    @precondition(lambda self: self.world.preparing and self.world.linked)
    @rule(how=st.sampled_from(["ok", "ok", "ok", "later", "never"]))
    def prepared(self, how):
        world = self.world
        order = world.preparing.pop(0)
        if how == "ok":
            world.latched.add(order.launch)
            told = m.LaunchPrepared(record=making.record(order.launch))
        else:
            told = m.LaunchNotPrepared(
                launch=order.launch, code="spawn_failed", detail="x", permanent=how == "never"
            )
        world.lanes["self"].append(told)

    @precondition(lambda self: self.world.discarding and self.world.linked)
    @rule()
    def discarded(self):
        record = self.world.discarding.pop(0)
        self.world.latched.discard(record.launch)
        self.world.lanes["self"].append(m.LaunchDiscarded(launch=record.launch))

    @precondition(lambda self: self.world.step_task is not None)
    @rule(how=st.sampled_from(["ok", "ok", "ok", "refused", "broken", "late"]))
    def step_done(self, how):
        world = self.world
        if not world.linked:
            how = "late"
        what, record = world.step_task
        world.step_task = None
        launch = record.launch
        if record.launch not in world.running and how == "ok":
            how = "broken"
        fine = {
            "probe": m.EngineAnswered(launch=launch, canary="x"),
            "prove": m.EngineProved(launch=launch),
            "park": m.EngineParked(launch=launch, residue=self.residue()),
            "wake": m.EngineWoken(launch=launch),
        }
        if how == "ok":
            told = fine[what]
        elif how == "late":
            told = m.StepTimedOut(launch=launch)
        elif what in ("probe", "prove"):
            told = m.EngineUnfit(launch=launch, code="effective_args_mismatch", detail="x")
        elif how == "refused" and what == "park":
            told = m.EngineNotParked(launch=launch, reason="busy")
        else:
            told = m.EngineBroken(launch=launch, code=f"{what}_failed", detail="x")
        world.lanes["self"].append(told)

    def residue(self):
        """A little more each time, so that it has grown too much after a few parks."""
        self.parks_count += 1
        return {"gpu0": self.parks_count * GIB}

    @precondition(lambda self: self.world.running)
    @rule()
    def engine_exits(self):
        self.world.exited(min(self.world.running))

    @precondition(lambda self: self.world.ending is not None and self.world.linked)
    @rule(gone=st.sampled_from([True, True, False]))
    def ended(self, gone):
        world = self.world
        launch = world.ending.launch
        if not gone:
            if not world.said_unproven:
                world.lanes["self"].append(m.EndUnproven(launch=launch, detail="still there"))
            world.said_unproven = True
            return
        world.latched.discard(launch)
        world.exited(launch)
        world.ending = None
        world.lanes["self"].append(m.GroupGone(launch=launch))

    @rule(count=st.integers(1, 12))
    def all_goes_well(self, count):
        """So that a life gets far: whatever is due next happens, and succeeds."""
        for _ in range(count):
            if not self._one_good_step():
                return

    def _one_good_step(self):
        world = self.world
        for lane in world.lanes.values():
            if lane:
                world.feed(lane.pop(0))
                return True
        if world.to_placement:
            world.placement_reads()
        elif world.line:
            world.grant(min(world.line))
        elif world.rooms:
            world.answer_room(full=False)
        elif not world.linked:
            world.come_back(fresh=False)
        elif world.preparing:
            self.prepared("ok")
        elif world.discarding:
            self.discarded()
        elif world.step_task is not None:
            self.step_done("ok")
        elif world.ending is not None:
            self.ended(True)
        else:
            return False
        return True

    # -- the link to the host ----------------------------------------------------------------

    @precondition(lambda self: self.world.linked)
    @rule(noticed=st.sampled_from(["not yet", "silent", "lost", "lost"]))
    def cut(self, noticed):
        self.world.linked = False
        if noticed != "not yet":
            self.world.fall_silent()
        if noticed == "lost":
            self.world.be_lost()

    @precondition(lambda self: not self.world.linked and not self.world.silent)
    @rule()
    def silent(self):
        self.world.fall_silent()

    @precondition(lambda self: self.world.silent and self.world.here)
    @rule()
    def gone(self):
        self.world.be_lost()

    @precondition(lambda self: not self.world.linked)
    @rule(fresh=st.booleans())
    def back(self, fresh):
        self.world.come_back(fresh=fresh)

    # -- messages, timers, requests ----------------------------------------------------------

    @rule(lane=st.sampled_from(["deployment", "placement", "self", "hosts"]))
    def deliver(self, lane):
        if self.world.lanes[lane]:
            self.world.feed(self.world.lanes[lane].pop(0))

    @precondition(lambda self: self.world.deadlines)
    @rule(data=st.data())
    def deadline(self, data):
        world = self.world
        operation = data.draw(st.sampled_from(sorted(world.deadlines)))
        world.now_ms = max(world.now_ms, world.deadlines.pop(operation))
        world.feed(m.DeadlineReached(operation=operation))

    @precondition(lambda self: self.world.retry)
    @rule()
    def retry(self):
        self.world.retry = False
        self.world.feed(m.RetryDue())

    @precondition(lambda self: self.world.drain is not None)
    @rule()
    def drain_over(self):
        launch, self.world.drain = self.world.drain, None
        self.world.feed(m.DrainTimedOut(launch=launch))

    @precondition(lambda self: self.world.gate_open)
    @rule()
    def enter(self):
        self.world.leases += 1

    @precondition(lambda self: self.world.leases)
    @rule()
    def leave(self):
        self.world.leave()

    @precondition(lambda self: self.world.one.state is not S.STOPPED)
    @rule(same_daemon=st.booleans())
    def restart(self, same_daemon):
        self.world.restart(same_daemon=same_daemon)

    # -- what holds at every moment ----------------------------------------------------------

    @invariant()
    def an_empty_instance_holds_and_owes_nothing(self):
        one = self.world.one
        if one.state in EMPTY:
            assert one.held is None
            assert one.launch is None
            assert one.launch_id is None
            assert one.ask is None
            assert one.then is None
            assert one.operation is None or one.operation.given_up

    @invariant()
    def no_process_without_held_and_booked_memory(self):
        world = self.world
        if world.latched or world.running or world.preparing:
            assert world.one.held is not None
            assert world.booked is not None

    @invariant()
    def never_two_processes(self):
        assert len(self.world.latched | self.world.running) <= 1

    @invariant()
    def an_open_gate_means_ready(self):
        if self.world.gate_open:
            assert self.world.one.state is S.READY

    @invariant()
    def nothing_runs_in_an_engine_that_is_parked(self):
        if self.world.one.state in (S.PARKING, S.PARKED, S.WAKE_QUEUED, S.WAKING):
            assert self.world.leases == 0

    @invariant()
    def open_operations_are_somebodys(self):
        world = self.world
        one = world.one
        kept = {o.id for o in (one.operation, *one.riders) if o is not None}
        if one.then is not None:
            kept.add(one.then.operation.id)
        for lane in world.lanes.values():
            kept |= {
                x.operation.id for x in lane if hasattr(x, "operation") and x.__class__ in WORK
            }
        open_ids = {id for id, o in world.operations.items() if o.open}
        assert open_ids <= kept

    @invariant()
    def kept_operations_are_open(self):
        world, one = self.world, self.world.one
        then = None if one.then is None else one.then.operation
        for operation in (one.operation, *one.riders, then):
            assert operation is None or world.operations.get(operation.id, operation).open

    @invariant()
    def something_is_always_on_its_way(self):
        """No state of transition in which nothing would ever happen again."""
        world = self.world
        one = world.one
        if one.state in SETTLED and one.operation is None and not one.riders and not one.then:
            return
        if one.lost is not None:
            assert not world.here or world.lanes["hosts"], "nobody tells it that its host is back"
            return
        tasks = world.preparing or world.discarding or world.step_task or world.ending
        timers = world.deadlines or world.retry or world.drain
        messages = world.to_placement or world.line or world.rooms or any(world.lanes.values())
        assert tasks or timers or messages or world.watch_empty, one

    @invariant()
    def starts_that_wait_have_their_deadline_set(self):
        one = self.world.one
        waits = one.operation if one.state in (S.QUEUED, S.WAKE_QUEUED, S.FAILED) else None
        then = None if one.then is None else one.then.operation
        for operation in (waits, then):
            assert operation is None or operation.id in self.world.deadlines

    @invariant()
    def what_was_told_is_what_is_shown(self):
        world = self.world
        one = world.one
        untaken = world.picture().accepted(one)
        if world.raced and one.state in SETTLED and not untaken and one.operation is None:
            world.raced = False
        if not world.raced:
            assert world.told == world.shown

    @invariant()
    def what_is_lost_is_uncertain_and_stays_charged(self):
        one = self.world.one
        if one.lost is not None:
            assert one.state is S.UNCERTAIN
            assert one.held is not None
            assert self.world.booked is not None
            assert not self.world.gate_open

    @invariant()
    def a_gate_is_not_closed_for_a_host_that_is_here(self):
        world = self.world
        told = world.lanes["hosts"] or world.silent or world.one.held is None
        if "host_session" in world.closed_for:
            assert told or world.one.lost is not None or not world.here

    @invariant()
    def it_can_begin_again_from_here(self):
        for same_daemon in (True, False):
            for away in (None, making.lost()):
                resume(self.world.one, self.world.moment(), same_daemon=same_daemon, away=away)


WORK = (m.Start, m.Park, m.Stop)

TestInstanceLife = pytest.mark.slow(InstanceLife.TestCase)
TestInstanceLife.settings = settings(max_examples=200, stateful_step_count=60, deadline=None)
