"""Switching: one turn per host. Windows, evictions, and what becomes of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from actors import Timers
from capyctl.contracts.store import Change
from capyctl.control.books import Books, Turn, Waiting
from capyctl.control.outlook import name_of
from capyctl.control.surroundings import World
from capyctl.domain.ids import HostId, InstanceId, SwitchId
from capyctl.domain.operations import OperationKind
from capyctl.domain.victims import Victim
from capyctl.ledger.places import Wanted, entry_for
from capyctl.ledger.plan import FitsAfter
from capyctl.machines import switch as sw
from capyctl.machines.setting_off import new_operation
from capyctl.machines.switch import Switch, SwitchEvent, SwitchState
from capyctl.messages import placement as m
from capyctl.messages.instance import Evict

SWITCH_S_MAX = 660.0
"""A drain of 30 s, then at most 600 s to park or stop, and some slack."""
EVICTION_S = 900.0
ROOM_S_MAX = 15.0
"""How long freed memory may take to be seen free once all victims have gone."""
WINDOW_POLL_S_MIN = 0.001


class Turns:
    """Opens and leads switches for the placement actor, in its own task."""

    def __init__(
        self,
        books: Books,
        world: World,
        timers: Timers[Any],
        tell: Callable[[InstanceId, object], None],
        *,
        window_s: float,
    ) -> None:
        self._books = books
        self._world = world
        self._timers = timers
        self._tell = tell
        self._window_s = window_s
        self._failed: list[tuple[str, str]] = []

    def take_failed(self) -> list[tuple[str, str]]:
        """Requests whose switch failed since the last call, and why."""
        failed, self._failed = self._failed, []
        return failed

    def set_timers_again(self) -> None:
        """After a restart of the actor: its timers went with it."""
        for turn in self._books.turns.values():
            self._set_limit(turn.switch)
            if turn.switch.state is SwitchState.PLANNED:
                over = m.WindowOver(switch=turn.switch.id)
                self._timers.set(f"window/{turn.switch.id}", WINDOW_POLL_S_MIN, over)

    async def open(self, ask: str, waiting: Waiting, wanted: Wanted, found: FitsAfter) -> None:
        """Take the host's turn for this request."""
        host = found.candidate.host
        switch = sw.open_switch(
            id=waiting.switch or SwitchId(self._world.ids.ulid()),
            target=wanted.instance,
            ask=ask,
            host=host,
            victims=found.victims,
            explicit=not waiting.reserve.for_request,
        )
        entry = entry_for(wanted, found.candidate)
        now_s = self._world.clock.monotonic_s()
        turn = Turn(switch=switch, opened_at_s=now_s, entry=entry)
        self._books.turns[host] = turn
        self._set_limit(switch)
        if self._window_left_s(turn) > 0.0:
            self._record(switch)
            await self._window(turn)
            return
        turn.switch = sw.advance(switch, SwitchEvent.WINDOW_OVER)
        self._record(switch, turn.switch)
        self._evict(turn.switch)

    def _set_limit(self, switch: Switch) -> None:
        late = m.SwitchTimedOut(switch=switch.id)
        self._timers.set(f"turn/{switch.id}", SWITCH_S_MAX, late)

    def _window_left_s(self, turn: Turn) -> float:
        """Seconds until the last victim may be closed; 0 once that is now."""
        gates = [self._world.directory.gate(v.instance) for v in turn.switch.victims if v.windowed]
        now_s = self._world.clock.monotonic_s()
        left_s = 0.0
        for gate in gates:
            last_s = now_s if gate.lease_count else gate.last_used_s
            if last_s is not None:
                window_s = self._window_of(turn.switch.host)
                left_s = max(
                    left_s,
                    sw.window_left_s(now_s, turn.opened_at_s, last_s, window_s=window_s),
                )
        return left_s

    def _window_of(self, host: HostId) -> float:
        """Each machine has its own."""
        record = self._world.directory.hosts.get(host)
        if record is None or record.publication is None:
            return self._window_s
        return record.publication.queue.admission_window_s

    async def _window(self, turn: Turn) -> None:
        """Close admission when the window is over, which may be now."""
        left_s = self._window_left_s(turn)
        if left_s <= 0.0:
            await self._close_admission(turn)
            return
        over = m.WindowOver(switch=turn.switch.id)
        self._timers.set(f"window/{turn.switch.id}", max(left_s, WINDOW_POLL_S_MIN), over)

    async def window_over(self, id: SwitchId) -> None:
        """The window's timer rang: look whether it is over, or ran on with new activity."""
        turn = self._turn(id)
        if turn is not None and turn.switch.state is SwitchState.PLANNED:
            await self._window(turn)

    async def _close_admission(self, turn: Turn) -> None:
        await self.step(turn, SwitchEvent.WINDOW_OVER)
        self._evict(turn.switch)

    def _evict(self, switch: Switch) -> None:
        for victim in switch.victims:
            self._tell(victim.instance, self._eviction(switch, victim))

    def _eviction(self, switch: Switch, victim: Victim) -> Evict:
        moment = self._world.moment()
        operation = new_operation(
            victim.instance.deployment,
            victim.instance.index,
            OperationKind.CLEANUP if victim.stop else OperationKind.PARK,
            moment,
            deadline_at_ms=moment.now_ms + round(EVICTION_S * 1000),
        )
        return Evict(switch=switch.id, operation=operation, stop=victim.stop)

    def _turn(self, id: SwitchId) -> Turn | None:
        return next((t for t in self._books.turns.values() if t.switch.id == id), None)

    async def timed_out(self, id: SwitchId) -> None:
        """A victim took longer than a switch may, or the room does not come."""
        turn = self._turn(id)
        if turn is None:
            return
        if not turn.switch.left:
            await self._too_little(turn)
            return
        slow = min(turn.switch.left, key=str)
        why = f"not parked or stopped within {SWITCH_S_MAX:.0f} s"
        await self.step(turn, sw.VictimStayed(slow, why, name_of(slow, self._world.directory)))

    async def _too_little(self, turn: Turn) -> None:
        """All gave way, and there is still no room: the request gets another round."""
        ask = turn.switch.ask
        if ask in self._books.line:
            await self.step(turn, SwitchEvent.TOO_LITTLE)
            self._failed = [failed for failed in self._failed if failed[0] != ask]

    async def victim_gone(self, instance: InstanceId, how: str) -> None:
        """``how``: what is told of it, ``parked`` or ``stopped (no room to park)``."""
        for turn in list(self._books.turns.values()):
            if instance not in turn.switch.left:
                continue
            planned = next(v for v in turn.switch.victims if v.instance == instance)
            told = sw.stopped(planned.why) if how == "stopped" else how
            self._world.log(
                "victim_released", switch=turn.switch.id, victim=str(instance), released=told
            )
            await self.step(turn, sw.VictimGone(instance, told))

    async def victim_stayed(self, instance: InstanceId, reason: str) -> None:
        for turn in list(self._books.turns.values()):
            if instance in turn.switch.left:
                name = name_of(instance, self._world.directory)
                await self.step(turn, sw.VictimStayed(instance, reason, name))

    async def target(self, instance: InstanceId, happened: SwitchEvent) -> None:
        """The instance that a switch was for is up, or gone."""
        for turn in list(self._books.turns.values()):
            granted = turn.switch.target == instance and turn.switch.ask not in self._books.line
            if granted and turn.switch.state is SwitchState.RELEASED:
                await self.step(turn, happened)

    async def step(self, turn: Turn, happened: sw.Happening) -> None:
        """One happening: record where the switch is now; close the turn when it is over."""
        before = turn.switch
        turn.switch = sw.advance(before, happened)
        if turn.switch.state is before.state:
            return
        # All of it before the record: what is kept outlives a failure in there.
        if turn.switch.state is SwitchState.RELEASED:
            late = m.SwitchTimedOut(switch=turn.switch.id)
            self._timers.set(f"turn/{turn.switch.id}", ROOM_S_MAX, late)
        if turn.switch.state in sw.OVER:
            self._close(turn.switch)
        self._record(turn.switch)

    def _close(self, switch: Switch) -> None:
        self._books.turns.pop(switch.host, None)
        self._timers.cancel(f"window/{switch.id}")
        self._timers.cancel(f"turn/{switch.id}")
        if switch.state is SwitchState.FAILED:
            self._failed.append((switch.ask, switch.failed_because or "the switch failed"))

    def _record(self, *reached: Switch) -> None:
        """One switch in the states it came to, as one change.

        Not waited for: whoever is told now has a change of its own to make before it does
        anything, and that comes after this one. So both become durable in one go.
        """
        self._world.store.submit(Change(events=tuple(map(sw.switch_event, reached))))
