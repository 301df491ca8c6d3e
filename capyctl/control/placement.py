"""The placement actor: the one owner of the live ledger, and of each host's turn to switch.

Requests are looked at in the order they came. One that fits is granted; one that may evict
opens a switch when its host has none; the others wait, told why with figures.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, assert_never

import attrs
import trio

from actors import Actor, Ref
from capyctl.contracts.host import Host
from capyctl.control.books import Books, Waiting, park_questions
from capyctl.control.eligibility import eligibility
from capyctl.control.fitting import answer_fit
from capyctl.control.outlook import Outlook
from capyctl.control.surroundings import World
from capyctl.control.turns import Turns
from capyctl.domain.devices import MemorySample
from capyctl.domain.ids import HostId, InstanceId, SwitchId
from capyctl.domain.specs import Phase
from capyctl.ledger.ledger import charge, free, promise_park, withdraw
from capyctl.ledger.places import Wanted
from capyctl.ledger.plan import Fits, FitsAfter, NoRoom, commit
from capyctl.machines.switch import WINDOW_S, SwitchEvent, SwitchState, stopped
from capyctl.messages import placement as m
from capyctl.messages.instance import (
    NoParkRoom,
    ParkRoom,
    Reserved,
    ReserveRefused,
    ReserveWaits,
)

WAITING_COUNT_MAX = 1 << 17
"""At a start each instance tells several things, all at about the same time: three or four wait
for each of 2,000. This is for ten times as many; too few would end the control plane."""
ROUNDS_MAX = 3
LOOK_S = 1.0
"""How long the line of several machines is left alone when nothing is known to have changed:
requests that are served elsewhere let victims go without a word."""
LOOK_SHARE = 9.0
"""Looking at all of it takes at most a tenth of the time."""


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
        super().__init__("placement", capacity=WAITING_COUNT_MAX)
        self._world = world
        self._books = books
        self._instance_ref = instance_ref
        self._first = first
        self._outlook = Outlook(books, world)
        self._turns = Turns(books, world, self.timers, self._tell, window_s=window_s)
        self._look_at_s = 0.0
        self._looking: set[HostId] = set()

    async def on_start(self) -> None:
        if not self._first:
            self._books.reconcile(self._world.directory)
            self._hear_of_hosts()
            self._turns.set_timers_again()
            for question in park_questions(self._world.directory):
                self._park_room(question)
            await self._serve_line()

    def _hear_of_hosts(self) -> None:
        """What was told of machines may have gone down with an earlier incarnation."""
        sessions = self._world.sessions
        sessions.untaken.clear()
        for host, record in self._world.directory.hosts.items():
            self._books.let(eligibility(record, sessions.of(host)))
            if record.publication is not None:
                published = record.publication
                self._books.publish(host, published.shape, published.max_parked_count)

    async def handle(self, message: m.PlacementMessage) -> None:
        touched = self._about(message)
        match message:
            case m.Reserve():
                self._books.line[message.ask] = Waiting(reserve=message)
            case m.Widen():
                self._widen(message)
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
                if self._books.look(message.host, self._newest(message)):
                    touched.add(message.host)
            case m.HostPublished():
                self._books.publish(message.host, message.shape, message.parked_max)
            case m.HostEligible():
                self._books.let(message)
            case _:
                assert_never(message)
        self._refuse_after_failed_switches()
        if isinstance(message, m.HostEligible):
            await self._serve_line()  # Others may have to be told that nothing is left to wait for.
            return
        fresh = message.ask if isinstance(message, m.Reserve | m.Widen) else None
        await self._serve_line(touched | self._about(message), fresh=fresh)

    def _about(self, message: m.PlacementMessage) -> set[HostId]:
        """Machines on which ``message`` may change who fits."""
        match message:
            case m.WindowOver() | m.SwitchTimedOut():
                return set(self._books.turns)
            case m.HostPublished(host=host) | m.HostEligible(host=host):
                return {host}
            case m.Reserve() | m.Widen() | m.AskFit() | m.AskPark() | m.Sampled():
                return set()
            case _:
                entry = self._books.ledger.entries.get(message.instance)
                mine = {h for h, turn in self._books.turns.items() if turn.concerns(message)}
                return mine if entry is None else {entry.host, *mine}

    def _newest(self, told: m.Sampled) -> MemorySample:
        """The look that was told, or one that has come since."""
        sessions = self._world.sessions
        sessions.untaken.discard(told.host)
        latest = sessions.memory.get(told.host, told.sample)
        return max(told.sample, latest, key=lambda one: one.at_s)

    async def _occupied(self, message: m.Occupy) -> None:
        if message.gone:
            # What it held it gave back itself; this may come after its index is used anew.
            self._books.occupancy.pop(message.instance, None)
            return
        self._books.occupancy[message.instance] = message

    # -- grants ------------------------------------------------------------------------------

    async def _serve_line(
        self, touched: set[HostId] | None = None, *, fresh: str | None = None
    ) -> None:
        """Look at requests again, oldest first.

        With several machines, only at what has changed on those of ``touched``, which are the
        only ones where something can fit now that did not; at everything once in a while.
        """
        now_s = self._world.clock.monotonic_s()
        alone = self._books.ledger.hosts_count <= 1
        every = touched is None or alone or now_s >= self._look_at_s
        for ask, waiting in list(self._books.line.items()):
            if ask not in self._books.line:
                continue
            if every or ask == fresh:
                await self._look_at(ask, waiting)
            elif touched:
                await self._look_at(ask, waiting, only=touched)
        if every:
            done_s = self._world.clock.monotonic_s()
            self._look_at_s = done_s + max(LOOK_S, LOOK_SHARE * (done_s - now_s))

    async def _look_at(self, ask: str, waiting: Waiting, only: set[HostId] | None = None) -> None:
        """1. It fits: granted. 2. It may evict and its host is free: a switch. 3. It waits.

        4. A request that can never fit, or had its rounds, is refused.
        ``only``: look at these machines alone; what is elsewhere is as it was.
        """
        reserve = waiting.reserve
        candidates = reserve.candidates
        if only is not None:
            candidates = tuple(c for c in candidates if c.host in only)
            if not candidates:
                return
        wanted = self._outlook.wanted(reserve.instance, reserve.phase, candidates)
        mine = self._books.turn_of(ask)
        if mine is not None and mine.switch.state is SwitchState.ADMISSION_CLOSED:
            return  # Its victims are on their way out.
        may_evict = mine is None and self._may_switch(waiting)
        found = self._outlook.plan(wanted, may_evict=may_evict, mine=mine)
        match found:
            case Fits():
                self._grant(ask, reserve, wanted, found)
                if mine is not None and mine.switch.state is SwitchState.PLANNED:
                    # Room came by itself before anybody was moved.
                    await self._turns.step(mine, SwitchEvent.TARGET_UP)
            case FitsAfter():
                await self._switch(ask, waiting, wanted, found)
            case NoRoom() if only is None and mine is None:
                if not (may_evict and self._outlook.waits_for_a_turn(wanted)):
                    self._no_room(ask, waiting, found)
            case NoRoom():
                return

    def _may_switch(self, waiting: Waiting) -> bool:
        """An operator's start that had its rounds waits in line; a request is refused then."""
        if not waiting.reserve.may_evict:
            return False
        return waiting.reserve.for_request or waiting.rounds_count < ROUNDS_MAX

    async def _switch(self, ask: str, waiting: Waiting, wanted: Wanted, found: FitsAfter) -> None:
        """Another round of making room, within the rounds that a request has."""
        waiting.rounds_count += 1
        if waiting.reserve.for_request and waiting.rounds_count > ROUNDS_MAX:
            why = f"no room after {ROUNDS_MAX} rounds of moving idle models"
            self._refuse(ask, waiting.reserve, "insufficient_resources", why)
            return
        waiting.switch = waiting.reserve.switch or self._fresh_switch()
        await self._turns.open(ask, waiting, wanted, found)

    def _fresh_switch(self) -> SwitchId:
        return SwitchId(self._world.ids.ulid())

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
        why = self._outlook.why(found, reserve.instance)
        if reserve.for_request and found.hopeless:
            self._refuse(ask, reserve, "insufficient_resources", why)
            return
        if reserve.for_request and found.ineligible and not self._outlook.only_silent(found):
            self._refuse(ask, reserve, "host_ineligible", why)
            return
        if waiting.told != why:
            waiting.told = why
            self._world.log("memory_is_waited_for", instance=str(reserve.instance), reason=why)
            self._tell(reserve.instance, ReserveWaits(ask=ask, reason=why))

    def _refuse(self, ask: str, reserve: m.Reserve, code: str, reason: str) -> None:
        del self._books.line[ask]
        self._world.log(
            "memory_is_refused", instance=str(reserve.instance), code=code, reason=reason
        )
        self._tell(reserve.instance, ReserveRefused(ask=ask, code=code, reason=reason))

    def _answer_fit(self, message: m.AskFit) -> None:
        """Would these fit together? The live ledger is not touched."""
        ref = self._world.directory.deployment_refs.get(message.deployment)
        if ref is not None:
            answer = answer_fit(message, self._outlook, self._books.foreign, self._fresh_switch)
            self._world.tell(ref, answer)

    def _widen(self, message: m.Widen) -> None:
        waiting = self._books.line.get(message.ask)
        if waiting is not None:
            waiting.reserve = attrs.evolve(waiting.reserve, candidates=message.candidates)

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
        refused = self._outlook.why_no_park(entry, message.parked)
        if refused is None:
            self._books.ledger = promise_park(self._books.ledger, message.instance, message.parked)
            self._tell(message.instance, ParkRoom(ask=message.ask))
            return
        why, full = refused
        self._world.log("park_has_no_room", instance=str(message.instance), reason=why)
        self._tell(message.instance, NoParkRoom(ask=message.ask, reason=why, full=full))

    async def _freed(self, message: m.Free) -> None:
        instance = message.instance
        self._note_release(instance)
        self._books.ledger = free(self._books.ledger, instance)
        await self._turns.victim_gone(instance, stopped(message.why))
        await self._turns.target(instance, SwitchEvent.TARGET_GONE)

    def _note_release(self, instance: InstanceId) -> None:
        """Memory came free; what was seen of it before tells nothing any more."""
        entry = self._books.ledger.entries.get(instance)
        if entry is None:
            return
        self._books.released_at_s[entry.host] = self._world.clock.monotonic_s()
        if self._books.line and self._books.excess_bytes(entry.host):
            self._look_now(entry.host)

    def _look_now(self, host: HostId) -> None:
        """Somebody waits, and others seemed to hold memory: look before the sampler does."""
        known = self._world.hosts.get(host)
        if known is not None and host not in self._looking:
            self._looking.add(host)
            self.spawn(self._sample, host, known)

    async def _sample(self, host: HostId, known: Host) -> None:
        try:
            with trio.move_on_after(LOOK_S):
                sample = await known.sample()
                self._world.tell(self.ref, m.Sampled(host=host, sample=sample))
        except Exception as problem:
            # Whatever it is: the sampler looks again, and says what is wrong.
            self._world.log("memory_not_sampled", of=host, problem=str(problem))
        finally:
            self._looking.discard(host)

    def _tell(self, instance: InstanceId, message: object) -> None:
        ref = self._instance_ref(instance)
        if ref is not None:
            self._world.tell(ref, message)
