"""One switch in any order of news: it only goes forward, and its window closes once and in time."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from capyctl.domain.ids import InstanceId, SwitchId
from capyctl.domain.victims import Victim
from capyctl.machines.switch import (
    OVER,
    SwitchEvent,
    SwitchState,
    VictimGone,
    VictimStayed,
    advance,
    open_switch,
    window_left_s,
)
from tests.machines import making

P = SwitchState
VICTIMS = tuple(InstanceId(making.DEPLOYMENT, index) for index in (1, 2, 3))
STRANGER = InstanceId(making.DEPLOYMENT, 9)
WINDOW_S = 2.0
ORDER = (P.PLANNED, P.ADMISSION_CLOSED, P.RELEASED, P.COMPLETED, P.FAILED)


class SwitchLife(RuleBasedStateMachine):
    """A switch as its turn leads it: the window is looked at again and again until it is over."""

    def __init__(self) -> None:
        super().__init__()
        self.now_s = 100.0
        self.last_used_s = 100.0
        self.in_use = True
        self.closed_at_s: float | None = None
        self.gone: list[InstanceId] = []
        self.opened_at_s = self.now_s
        self.switch = open_switch(
            id=SwitchId("W"),
            target=making.ONE,
            ask="a",
            host=making.HOST,
            victims=tuple(Victim(instance=v, stop=False, windowed=True) for v in VICTIMS),
            explicit=False,
        )

    def happens(self, happened: object) -> None:
        before = self.switch
        self.switch = advance(before, happened)
        assert ORDER.index(self.switch.state) >= ORDER.index(before.state), "it went back"
        if before.state in OVER:
            assert self.switch is before
        if before.state is P.PLANNED and self.switch.state is not P.PLANNED:
            assert self.closed_at_s is None, "its window was opened again"
            self.closed_at_s = self.now_s

    # -- the window --------------------------------------------------------------------------

    @rule(use=st.booleans())
    def requests_come_and_go(self, use: bool) -> None:
        if self.switch.state is P.PLANNED:
            self.in_use = use
            self.last_used_s = self.now_s

    @precondition(lambda self: self.switch.state is P.PLANNED)
    @rule(step_s=st.sampled_from([0.1, 0.5, 1.9, 2.0]))
    def time_passes(self, step_s: float) -> None:
        """Up to where its timer rings."""
        left_s = self.left_s()
        assert 0.0 <= left_s <= WINDOW_S
        self.now_s += min(step_s, left_s)
        if self.left_s() <= 0.0:
            self.happens(SwitchEvent.WINDOW_OVER)

    def left_s(self) -> float:
        last_s = self.now_s if self.in_use else self.last_used_s
        return window_left_s(self.now_s, self.opened_at_s, last_s, window_s=WINDOW_S)

    # -- the victims and the target ----------------------------------------------------------

    @rule(who=st.sampled_from([*VICTIMS, STRANGER]), how=st.sampled_from(["parked", "stopped"]))
    def gone_away(self, who: InstanceId, how: str) -> None:
        left = self.switch.left
        self.happens(VictimGone(who, how))
        if who in left and self.switch.state is not P.FAILED:
            self.gone.append(who)

    @precondition(lambda self: self.switch.state is not P.PLANNED)
    @rule(who=st.sampled_from([*VICTIMS, STRANGER]))
    def stays(self, who: InstanceId) -> None:
        over = self.switch.state in OVER
        left = self.switch.left
        self.happens(VictimStayed(who, "busy"))
        if not over:
            assert (self.switch.state is P.FAILED) is (who in left)

    @precondition(lambda self: self.switch.state is P.RELEASED)
    @rule(
        what=st.sampled_from(
            [SwitchEvent.TARGET_UP, SwitchEvent.TARGET_GONE, SwitchEvent.TOO_LITTLE]
        )
    )
    def target(self, what: SwitchEvent) -> None:
        self.happens(what)

    # -- what holds at every moment ----------------------------------------------------------

    @invariant()
    def the_window_is_never_longer_than_a_window(self) -> None:
        assert self.now_s <= self.opened_at_s + WINDOW_S
        if self.closed_at_s is not None:
            assert self.switch.state is not P.PLANNED

    @invariant()
    def there_is_room_once_the_last_victim_has_gone(self) -> None:
        if self.switch.state in (P.PLANNED, P.ADMISSION_CLOSED):
            assert self.switch.left
        if self.switch.state in (P.RELEASED, P.COMPLETED):
            assert not self.switch.left

    @invariant()
    def each_victim_gives_way_once(self) -> None:
        told = [one for one, _ in self.switch.released]
        assert len(set(told)) == len(told)
        assert {*told, *self.switch.left} == set(VICTIMS)
        if self.switch.state is not P.FAILED:
            assert told == self.gone

    @invariant()
    def a_failure_says_why(self) -> None:
        assert (self.switch.failed_because is not None) is (self.switch.state is P.FAILED)


TestSwitchLife = pytest.mark.slow(SwitchLife.TestCase)
TestSwitchLife.settings = settings(max_examples=100, stateful_step_count=30, deadline=None)
