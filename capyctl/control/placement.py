"""The placement actor: the one owner of the live ledger, and of each host's turn to switch.

Requests are looked at in the order they came. One that fits is granted; one that may evict
opens a switch when its host has none; the others wait, told why with figures.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, assert_never

from actors import Actor, Ref
from capyctl.control.books import Books, Turn, Waiting, park_questions
from capyctl.control.surroundings import World
from capyctl.control.turns import Turns
from capyctl.domain.ids import InstanceId, SwitchId
from capyctl.domain.specs import Phase
from capyctl.ledger.ledger import Entry, charge, free, hold, promise_park, withdraw
from capyctl.ledger.plan import Fits, FitsAfter, NoRoom, Wanted, commit, plan
from capyctl.ledger.reasons import why_no_room, why_not_parked
from capyctl.ledger.victims import Occupant, full_name, parked_shortage
from capyctl.machines.switch import WINDOW_S, SwitchEvent, SwitchState, stopped
from capyctl.messages import placement as m
from capyctl.messages.deployment import FitAnswered
from capyctl.messages.instance import (
    NoParkRoom,
    ParkRoom,
    Reserved,
    ReserveRefused,
    ReserveWaits,
)

ROUNDS_MAX = 3


class PlacementActor(Actor[m.PlacementMessage]):
    """Grants memory. What it keeps is in its books, which outlive it."""

    def __init__(
        self,
        world: World,
        books: Books,
        *,
        instance_ref: Callable[[InstanceId], Ref[Any] | None],
        first: bool,
        window_s: float = WINDOW_S,
    ) -> None:
        super().__init__("placement", capacity=8192)
        self._world = world
        self._books = books
        self._instance_ref = instance_ref
        self._first = first
        self._turns = Turns(books, world, self.timers, self._tell, window_s=window_s)

    async def on_start(self) -> None:
        if not self._first:
            self._books.reconcile(self._world.directory)
            self._turns.set_timers_again()
            for question in park_questions(self._world.directory):
                self._park_room(question)
            await self._serve_line()

    async def handle(self, message: m.PlacementMessage) -> None:
        match message:
            case m.Reserve():
                self._books.line[message.ask] = Waiting(reserve=message)
            case m.Withdraw():
                await self._withdraw(message)
            case m.Charge():
                await self._charge(message)
            case m.AskPark():
                self._park_room(message)
            case m.Free():
                await self._freed(message)
            case m.EvictionFailed():
                await self._turns.victim_stayed(message.instance, message.reason)
            case m.Occupy():
                await self._occupied(message)
            case m.AskFit():
                self._answer_fit(message)
            case m.WindowOver():
                await self._turns.window_over(message.switch)
            case m.SwitchTimedOut():
                await self._turns.timed_out(message.switch)
            case m.Sampled():
                self._books.look(message.host, message.sample)
            case _:
                assert_never(message)
        self._refuse_after_failed_switches()
        await self._serve_line()

    # -- what is known of those who hold memory ----------------------------------------------

    def _occupants(self) -> dict[InstanceId, Occupant]:
        return {
            id: self._occupant(id, known)
            for id, known in self._books.occupancy.items()
            if id in self._books.ledger.entries
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
            grown=known.grown,
        )

    async def _occupied(self, message: m.Occupy) -> None:
        if message.gone:
            # What it held it gave back itself; this may come after its index is used anew.
            self._books.occupancy.pop(message.instance, None)
            return
        self._books.occupancy[message.instance] = message

    # -- grants ------------------------------------------------------------------------------

    async def _serve_line(self) -> None:
        for ask, waiting in list(self._books.line.items()):
            if ask not in self._books.line:
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
        mine = self._books.turn_of(ask)
        if mine is not None and mine.switch.state is SwitchState.ADMISSION_CLOSED:
            return  # Its victims are on their way out.
        beside = None if mine is not None else self._promised(reserve)
        found = plan(
            self._books.ledger,
            wanted,
            self._occupants(),
            may_evict=mine is None and self._may_switch(waiting),
            foreign=self._books.foreign,
            beside=beside,
        )
        match found:
            case Fits():
                self._grant(ask, reserve, wanted, found)
                if mine is not None and mine.switch.state is SwitchState.PLANNED:
                    # Room came by itself before anybody was moved.
                    await self._turns.step(mine, SwitchEvent.TARGET_UP)
            case FitsAfter():
                if found.candidate.host not in self._books.turns:
                    await self._switch(ask, waiting, wanted, found)
            case NoRoom():
                if mine is None:
                    self._no_room(ask, waiting, found)

    def _may_switch(self, waiting: Waiting) -> bool:
        """An operator's start that had its rounds waits in line; a request is refused then."""
        if not waiting.reserve.may_evict:
            return False
        return waiting.reserve.for_request or waiting.rounds_count < ROUNDS_MAX

    def _promised(self, reserve: m.Reserve) -> Entry | None:
        """The charge of a turn under way on a host this request could go to."""
        for candidate in reserve.candidates:
            turn = self._books.turns.get(candidate.host)
            if turn is not None and turn.entry.instance not in self._granted(turn):
                return turn.entry
        return None

    def _granted(self, turn: Turn) -> tuple[InstanceId, ...]:
        entry = self._books.ledger.entries.get(turn.switch.target)
        granted = entry is not None and entry.ask == turn.switch.ask
        return (turn.switch.target,) if granted else ()

    async def _switch(self, ask: str, waiting: Waiting, wanted: Wanted, found: FitsAfter) -> None:
        """Another round of making room, within the rounds that a request has."""
        waiting.rounds_count += 1
        if waiting.reserve.for_request and waiting.rounds_count > ROUNDS_MAX:
            why = f"no room after {ROUNDS_MAX} rounds of moving idle models"
            self._refuse(ask, waiting.reserve, "insufficient_resources", why)
            return
        waiting.switch = waiting.reserve.switch or SwitchId(self._world.ids.ulid())
        await self._turns.open(ask, waiting, wanted, found)

    def _refuse_after_failed_switches(self) -> None:
        """A request whose switch failed is answered; an operator's start stays in line."""
        for ask, why in self._turns.take_failed():
            waiting = self._books.line.get(ask)
            if waiting is not None and waiting.reserve.for_request:
                self._refuse(ask, waiting.reserve, "switch_failed", why)

    def _grant(self, ask: str, reserve: m.Reserve, wanted: Wanted, found: Fits) -> None:
        booked = commit(self._books.ledger, wanted, found, ask=ask)
        assert booked is not None, "planned and committed without a message between"
        self._books.ledger = booked
        del self._books.line[ask]
        self._tell(reserve.instance, Reserved(ask=ask, candidate=found.candidate))

    def _no_room(self, ask: str, waiting: Waiting, found: NoRoom) -> None:
        reserve = waiting.reserve
        why = why_no_room(found, self._name)
        if reserve.for_request and found.hopeless:
            self._refuse(ask, reserve, "insufficient_resources", why)
            return
        if waiting.told != why:
            waiting.told = why
            self._world.log("memory_is_waited_for", instance=str(reserve.instance), reason=why)
            self._tell(reserve.instance, ReserveWaits(ask=ask, reason=why))

    def _name(self, instance: InstanceId) -> str:
        """What people call an instance: its deployment, and its index where it has several."""
        deployment = self._world.directory.deployments.get(instance.deployment)
        if deployment is None:
            return str(instance)
        many = deployment.spec.instances > 1
        return f"{deployment.spec.name}/{instance.index}" if many else deployment.spec.name

    def _refuse(self, ask: str, reserve: m.Reserve, code: str, reason: str) -> None:
        del self._books.line[ask]
        self._world.log(
            "memory_is_refused", instance=str(reserve.instance), code=code, reason=reason
        )
        self._tell(reserve.instance, ReserveRefused(ask=ask, code=code, reason=reason))

    def _answer_fit(self, message: m.AskFit) -> None:
        """Would these fit together? Books on a copy; the live ledger is not touched."""
        trial, fitting, victims = self._books.ledger, [], []
        short: str | None = None
        whole_hosts = True
        occupants = self._occupants()
        for question in message.questions:
            wanted = Wanted(
                instance=InstanceId(message.deployment, question.index),
                phase=question.phase,
                candidates=question.candidates,
            )
            found = plan(
                trial, wanted, occupants, may_evict=message.evict, foreign=self._books.foreign
            )
            if isinstance(found, NoRoom):
                evict = "" if message.evict else "; `--evict` would move idle models out of the way"
                why = why_no_room(found, self._name)
                short = short or f"Instance {question.index}: {why}{evict}"
                whole_hosts = whole_hosts and found.empty_host
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
            code="startup_requires_empty_host" if short and whole_hosts else "capacity_blocked",
            victims=tuple(victims),
            switch=SwitchId(self._world.ids.ulid()) if victims else None,
        )
        ref = self._world.directory.deployment_refs.get(message.deployment)
        if ref is not None:
            self._world.tell(ref, answer)

    # -- changes of those who hold memory ----------------------------------------------------

    async def _withdraw(self, message: m.Withdraw) -> None:
        self._books.line.pop(message.ask, None)
        self._books.ledger = withdraw(self._books.ledger, message.instance, message.ask)
        turn = self._books.turn_of(message.ask)
        if turn is not None:
            await self._turns.step(turn, SwitchEvent.TARGET_GONE)

    async def _charge(self, message: m.Charge) -> None:
        if message.instance not in self._books.ledger.entries:
            return
        self._note_release(message.instance)
        self._books.ledger = charge(
            self._books.ledger, message.instance, message.phase, message.charges
        )
        if message.phase is Phase.PARKED:
            await self._turns.victim_gone(message.instance, "parked")
        elif message.phase is Phase.READY:
            await self._turns.target(message.instance, SwitchEvent.TARGET_UP)

    def _park_room(self, message: m.AskPark) -> None:
        """Room for a parked model is promised before anything is told to park."""
        entry = self._books.ledger.entries.get(message.instance)
        if entry is None:
            return
        short = parked_shortage(self._books.ledger, entry, message.parked)
        if short is None:
            self._books.ledger = promise_park(self._books.ledger, message.instance, message.parked)
            self._tell(message.instance, ParkRoom(ask=message.ask))
            return
        why = why_not_parked(short, self._name)
        self._world.log("park_has_no_room", instance=str(message.instance), reason=why)
        refused = NoParkRoom(ask=message.ask, reason=why, full=full_name(short))
        self._tell(message.instance, refused)

    async def _freed(self, message: m.Free) -> None:
        instance = message.instance
        self._note_release(instance)
        self._books.ledger = free(self._books.ledger, instance)
        await self._turns.victim_gone(instance, stopped(message.why))
        await self._turns.target(instance, SwitchEvent.TARGET_GONE)

    def _note_release(self, instance: InstanceId) -> None:
        entry = self._books.ledger.entries.get(instance)
        if entry is not None:
            self._books.released_at_s[entry.host] = self._world.clock.monotonic_s()

    def _tell(self, instance: InstanceId, message: object) -> None:
        ref = self._instance_ref(instance)
        if ref is not None:
            self._world.tell(ref, message)
