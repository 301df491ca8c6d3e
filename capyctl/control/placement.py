"""The placement actor: the one owner of the live ledger, and of each host's turn to switch.

Requests are looked at in the order they came. One that fits is granted; one that may evict
opens a switch when its host has none; the others wait, told why with figures.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, assert_never

import attrs

from actors import Actor, Ref
from capyctl.contracts.store import Change, StoreBroken
from capyctl.control.surroundings import World
from capyctl.domain.devices import MemorySample
from capyctl.domain.ids import HostId, InstanceId, SwitchId
from capyctl.domain.operations import OperationKind
from capyctl.domain.specs import Phase
from capyctl.ledger.ledger import (
    Entry,
    Foreign,
    Ledger,
    charge,
    foreign_bytes,
    free,
    hold,
    open_ledger,
    withdraw,
)
from capyctl.ledger.plan import Fits, FitsAfter, NoRoom, Wanted, commit, plan
from capyctl.ledger.victims import Occupant
from capyctl.machines import switch as sw
from capyctl.machines.instance import Instance
from capyctl.machines.setting_off import new_operation
from capyctl.machines.switch import Switch, SwitchEvent, SwitchState
from capyctl.messages import placement as m
from capyctl.messages.deployment import FitAnswered
from capyctl.messages.instance import Evict, Reserved, ReserveRefused, ReserveWaits

ROUNDS_MAX = 3
SWITCH_S_MAX = 660.0
"""A drain of 30 s, then at most 600 s to park or stop, and some slack."""
EVICTION_S = 900.0
WINDOW_POLL_S_MIN = 0.001


@attrs.define(eq=False)
class Waiting:
    """One request in line."""

    reserve: m.Reserve
    rounds_count: int = 0
    told: str | None = None


@attrs.define(eq=False)
class Turn:
    """A host's switch under way, and when it began."""

    switch: Switch
    opened_at_s: float
    entry: Entry
    """What its target will be charged."""


class PlacementActor(Actor[m.PlacementMessage]):
    """Grants memory. Its ledger is rebuilt from the instances' records at each start."""

    def __init__(
        self, world: World, *, instance_ref: Callable[[InstanceId], Ref[Any] | None]
    ) -> None:
        super().__init__("placement", capacity=8192)
        self._world = world
        self._instance_ref = instance_ref
        self.ledger = open_ledger(tuple(host.shape() for host in world.hosts.values()))
        self._occupancy: dict[InstanceId, m.Occupy] = {}
        self._line: dict[str, Waiting] = {}
        self._turns: dict[HostId, Turn] = {}
        self._samples: dict[HostId, MemorySample] = {}
        self._released_at_s: dict[HostId, float] = {}

    async def on_start(self) -> None:
        ledger = open_ledger(tuple(host.shape() for host in self._world.hosts.values()))
        for mine in self._world.directory.instances.values():
            for one in mine.values():
                ledger = _booked(ledger, one)
        self.ledger = ledger

    @property
    def turns(self) -> Mapping[HostId, Turn]:
        """Switches under way, one per host at most."""
        return self._turns

    async def handle(self, message: m.PlacementMessage) -> None:
        match message:
            case m.Reserve():
                self._line[message.ask] = Waiting(reserve=message)
            case m.Withdraw():
                await self._withdraw(message)
            case m.Charge():
                await self._charge(message)
            case m.Free():
                await self._freed(message.instance)
            case m.EvictionFailed():
                await self._eviction_failed(message)
            case m.Occupy():
                await self._occupied(message)
            case m.AskFit():
                self._answer_fit(message)
            case m.WindowOver():
                await self._window_over(message.switch)
            case m.SwitchTimedOut():
                await self._switch_timed_out(message.switch)
            case m.Sampled():
                self._samples[message.host] = message.sample
            case _:
                assert_never(message)
        await self._serve_line()

    # -- what is known of those who hold memory ----------------------------------------------

    def _occupants(self) -> dict[InstanceId, Occupant]:
        return {
            id: self._occupant(id, known)
            for id, known in self._occupancy.items()
            if id in self.ledger.entries
        }

    def _occupant(self, id: InstanceId, known: m.Occupy) -> Occupant:
        directory = self._world.directory
        gate = directory.gate(id)
        one = directory.instance(id)
        phases = None if one.held is None else one.held.candidate.charges
        parked = {} if phases is None else dict(phases.parked)
        if one.held is not None and one.held.parked is not None:
            parked = {**parked, **one.held.parked}
        # Someone inside is in use right now: later than any that left.
        last_used_s = gate.last_used_s or 0.0
        if gate.lease_count:
            last_used_s = self._world.clock.monotonic_s()
        return Occupant(
            instance=id,
            state=known.state if known.state == one.state.value else "moving",
            parks=known.parks,
            protected=known.protected,
            waiting=directory.admission(id.deployment).waiting_count > 0,
            ready_elsewhere=known.ready_elsewhere,
            last_used_s=last_used_s,
            parked=parked,
        )

    async def _occupied(self, message: m.Occupy) -> None:
        if message.gone:
            self._occupancy.pop(message.instance, None)
            await self._freed(message.instance)
            return
        self._occupancy[message.instance] = message

    def _foreign(self) -> Foreign:
        """What others hold on the devices; a look from before the last release tells nothing."""
        fresh = {
            host: sample
            for host, sample in self._samples.items()
            if sample.at_s > self._released_at_s.get(host, -1.0)
        }
        return foreign_bytes(self.ledger, fresh)

    # -- grants ------------------------------------------------------------------------------

    async def _serve_line(self) -> None:
        for ask, waiting in list(self._line.items()):
            if ask not in self._line:
                continue
            await self._look_at(ask, waiting)

    async def _look_at(self, ask: str, waiting: Waiting) -> None:
        """1. It fits: granted. 2. It may evict and its host is free: a switch. 3. It waits.

        4. A request that can never fit, or had its rounds, is refused.
        """
        reserve = waiting.reserve
        wanted = Wanted(
            instance=reserve.instance, phase=reserve.phase, candidates=reserve.candidates
        )
        mine = self._turn_of(ask)
        beside = None if mine is not None else self._promised(reserve)
        found = plan(
            self.ledger,
            wanted,
            self._occupants(),
            may_evict=reserve.may_evict and mine is None,
            foreign=self._foreign(),
            beside=beside,
        )
        match found:
            case Fits():
                self._grant(ask, reserve, wanted, found)
            case FitsAfter():
                if found.candidate.host not in self._turns:
                    await self._open_switch(ask, waiting, wanted, found)
            case NoRoom():
                if mine is None:
                    self._no_room(ask, waiting, found)

    def _promised(self, reserve: m.Reserve) -> Entry | None:
        """The charge of a turn under way on a host this request could go to."""
        for candidate in reserve.candidates:
            turn = self._turns.get(candidate.host)
            if turn is not None and turn.entry.instance not in self._granted(turn):
                return turn.entry
        return None

    def _granted(self, turn: Turn) -> tuple[InstanceId, ...]:
        entry = self.ledger.entries.get(turn.switch.target)
        granted = entry is not None and entry.ask == turn.switch.ask
        return (turn.switch.target,) if granted else ()

    def _turn_of(self, ask: str) -> Turn | None:
        return next((t for t in self._turns.values() if t.switch.ask == ask), None)

    def _grant(self, ask: str, reserve: m.Reserve, wanted: Wanted, found: Fits) -> None:
        booked = commit(self.ledger, wanted, found, ask=ask)
        assert booked is not None, "planned and committed without a message between"
        self.ledger = booked
        del self._line[ask]
        self._tell(reserve.instance, Reserved(ask=ask, candidate=found.candidate))

    def _no_room(self, ask: str, waiting: Waiting, found: NoRoom) -> None:
        reserve = waiting.reserve
        if reserve.for_request and found.hopeless:
            self._refuse(ask, reserve, "insufficient_resources", found.reason)
            return
        if waiting.told != found.reason:
            waiting.told = found.reason
            self._tell(reserve.instance, ReserveWaits(ask=ask, reason=found.reason))

    def _refuse(self, ask: str, reserve: m.Reserve, code: str, reason: str) -> None:
        del self._line[ask]
        self._tell(reserve.instance, ReserveRefused(ask=ask, code=code, reason=reason))

    def _answer_fit(self, message: m.AskFit) -> None:
        """Would these fit together? Books on a copy; the live ledger is not touched."""
        trial, fitting, victims = self.ledger, [], []
        short: str | None = None
        occupants = self._occupants()
        for question in message.questions:
            wanted = Wanted(
                instance=InstanceId(message.deployment, question.index),
                phase=question.phase,
                candidates=question.candidates,
            )
            found = plan(trial, wanted, occupants, may_evict=message.evict, foreign=self._foreign())
            if isinstance(found, NoRoom):
                evict = "" if message.evict else "; `--evict` would move idle models out of the way"
                short = short or f"Instance {question.index}: {found.reason}{evict}"
                continue
            if isinstance(found, FitsAfter):
                for victim in found.victims:
                    trial = free(trial, victim.instance)
                    occupants.pop(victim.instance, None)
                    victims.append(victim.instance)
            fitting.append(question.index)
            trial = hold(
                trial,
                Entry(
                    instance=wanted.instance,
                    host=found.candidate.host,
                    phase=question.phase,
                    charges=found.candidate.charges.of(question.phase),
                ),
            )
        answer = FitAnswered(
            request=message.request,
            fitting=tuple(fitting),
            shortage=short,
            victims=tuple(victims),
            switch=SwitchId(self._world.ids.ulid()) if victims else None,
        )
        ref = self._world.directory.deployment_refs.get(message.deployment)
        if ref is not None:
            self._world.tell(ref, answer)

    # -- changes of those who hold memory ----------------------------------------------------

    async def _withdraw(self, message: m.Withdraw) -> None:
        self._line.pop(message.ask, None)
        self.ledger = withdraw(self.ledger, message.instance, message.ask)
        turn = self._turn_of(message.ask)
        if turn is not None:
            await self._step(turn, SwitchEvent.TARGET_GONE)

    async def _charge(self, message: m.Charge) -> None:
        if message.instance not in self.ledger.entries:
            return
        self._note_release(message.instance)
        self.ledger = charge(self.ledger, message.instance, message.phase, message.charges)
        if message.phase in (Phase.PARKED, Phase.PARKING):
            if message.phase is Phase.PARKED:
                await self._victim_gone(message.instance)
            return
        if message.phase is Phase.READY:
            await self._target(message.instance, SwitchEvent.TARGET_UP)

    async def _freed(self, instance: InstanceId) -> None:
        self._note_release(instance)
        self.ledger = free(self.ledger, instance)
        await self._victim_gone(instance)
        await self._target(instance, SwitchEvent.TARGET_GONE)

    def _note_release(self, instance: InstanceId) -> None:
        entry = self.ledger.entries.get(instance)
        if entry is not None:
            self._released_at_s[entry.host] = self._world.clock.monotonic_s()

    async def _target(self, instance: InstanceId, happened: SwitchEvent) -> None:
        for turn in list(self._turns.values()):
            granted = turn.switch.target == instance and turn.switch.ask not in self._line
            if granted and turn.switch.state is SwitchState.RELEASED:
                await self._step(turn, happened)

    async def _victim_gone(self, instance: InstanceId) -> None:
        for turn in list(self._turns.values()):
            if instance in turn.switch.left:
                await self._step(turn, sw.VictimGone(instance))

    async def _eviction_failed(self, message: m.EvictionFailed) -> None:
        for turn in list(self._turns.values()):
            if message.instance in turn.switch.left:
                stayed = sw.VictimStayed(message.instance, message.reason)
                await self._step(turn, stayed)

    # -- switching ---------------------------------------------------------------------------

    async def _open_switch(
        self, ask: str, waiting: Waiting, wanted: Wanted, found: FitsAfter
    ) -> None:
        waiting.rounds_count += 1
        if waiting.reserve.for_request and waiting.rounds_count > ROUNDS_MAX:
            self._refuse(
                ask,
                waiting.reserve,
                "insufficient_resources",
                f"no room after {ROUNDS_MAX} rounds of moving idle models",
            )
            return
        host = found.candidate.host
        switch = sw.open_switch(
            id=waiting.reserve.switch or SwitchId(self._world.ids.ulid()),
            target=wanted.instance,
            ask=ask,
            host=host,
            victims=found.victims,
            explicit=not waiting.reserve.for_request,
        )
        entry = Entry(
            instance=wanted.instance,
            host=host,
            phase=wanted.phase,
            charges=found.candidate.charges.of(wanted.phase),
        )
        now_s = self._world.clock.monotonic_s()
        turn = Turn(switch=switch, opened_at_s=now_s, entry=entry)
        self._turns[host] = turn
        await self._record(switch)
        self.timers.set(f"turn/{switch.id}", SWITCH_S_MAX, m.SwitchTimedOut(switch=switch.id))
        await self._window(turn)

    async def _window(self, turn: Turn) -> None:
        """Close admission when the window is over, which may be now."""
        windowed = [v.instance for v in turn.switch.victims if v.windowed]
        gates = [self._world.directory.gate(i) for i in windowed]
        now_s = self._world.clock.monotonic_s()
        left_s = 0.0
        for gate in gates:
            last_s = now_s if gate.lease_count else gate.last_used_s
            if last_s is not None:
                left_s = max(
                    left_s,
                    sw.window_left_s(now_s, turn.opened_at_s, last_s, window_s=sw.WINDOW_S),
                )
        if left_s <= 0.0:
            await self._close_admission(turn)
            return
        over = m.WindowOver(switch=turn.switch.id)
        self.timers.set(f"window/{turn.switch.id}", max(left_s, WINDOW_POLL_S_MIN), over)

    async def _window_over(self, id: SwitchId) -> None:
        turn = self._turn(id)
        if turn is not None and turn.switch.state is SwitchState.PLANNED:
            await self._window(turn)

    async def _close_admission(self, turn: Turn) -> None:
        moment = self._world.moment()
        deadline_at_ms = moment.now_ms + round(EVICTION_S * 1000)
        await self._step(turn, SwitchEvent.WINDOW_OVER)
        for victim in turn.switch.victims:
            operation = new_operation(
                victim.instance.deployment,
                victim.instance.index,
                OperationKind.CLEANUP if victim.stop else OperationKind.PARK,
                moment,
                deadline_at_ms=deadline_at_ms,
            )
            evict = Evict(switch=turn.switch.id, operation=operation, stop=victim.stop)
            self._tell(victim.instance, evict)

    def _turn(self, id: SwitchId) -> Turn | None:
        return next((t for t in self._turns.values() if t.switch.id == id), None)

    async def _switch_timed_out(self, id: SwitchId) -> None:
        turn = self._turn(id)
        if turn is None or turn.switch.state is SwitchState.RELEASED:
            return
        slow = min(turn.switch.left, key=str)
        why = f"not parked or stopped within {SWITCH_S_MAX:.0f} s"
        await self._step(turn, sw.VictimStayed(slow, why))

    async def _step(self, turn: Turn, happened: sw.Happening) -> None:
        before = turn.switch
        turn.switch = sw.advance(before, happened)
        if turn.switch.state is before.state:
            return
        await self._record(turn.switch)
        if turn.switch.state in sw.OVER:
            self._close_turn(turn)

    def _close_turn(self, turn: Turn) -> None:
        switch = turn.switch
        del self._turns[switch.host]
        self.timers.cancel(f"window/{switch.id}")
        self.timers.cancel(f"turn/{switch.id}")
        waiting = self._line.get(switch.ask)
        failed = switch.state is SwitchState.FAILED and waiting is not None
        if failed and waiting is not None and waiting.reserve.for_request:
            why = switch.failed_because or "the switch failed"
            self._refuse(switch.ask, waiting.reserve, "switch_failed", why)

    async def _record(self, switch: Switch) -> None:
        try:
            await self._world.store.commit(Change(events=(sw.switch_event(switch),)))
        except StoreBroken:
            self._world.log("switch_not_stored", switch=switch.id)

    def _tell(self, instance: InstanceId, message: object) -> None:
        ref = self._instance_ref(instance)
        if ref is not None:
            self._world.tell(ref, message)


def _booked(ledger: Ledger, one: Instance) -> Ledger:
    """The ledger with what a stored instance holds.

    A limit that was lowered below what runs does not make it run less: the pool is widened
    to what is held, and nothing new fits until something leaves.
    """
    if one.held is None:
        return ledger
    host = one.held.candidate.host
    entry = Entry(instance=one.id, host=host, phase=one.held.phase, charges=one.held.charges)
    pools = dict(ledger.pools)
    for name, held_bytes in entry.charges.items():
        domain = pools.get((host, name))
        if domain is None:
            continue
        total = ledger.charged_bytes((host, name)) + held_bytes
        if total > domain.managed_limit_bytes:
            pools[(host, name)] = attrs.evolve(domain, managed_limit_bytes=total)
    return hold(attrs.evolve(ledger, pools=pools), entry)
