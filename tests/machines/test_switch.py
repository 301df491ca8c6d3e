"""One switch: every happening in every state, and when its window closes."""

from __future__ import annotations

import attrs
import pytest

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
    switch_event,
    window_left_s,
)
from tests.machines import making

A, B = InstanceId(making.DEPLOYMENT, 1), InstanceId(making.DEPLOYMENT, 2)
P = SwitchState


def switch(state: SwitchState = P.PLANNED, *left: InstanceId):
    opened = open_switch(
        id=SwitchId("W"),
        target=making.ONE,
        ask="a",
        host=making.HOST,
        victims=tuple(Victim(instance=v, stop=False, windowed=True) for v in (A, B)),
        explicit=False,
    )
    return attrs.evolve(opened, state=state, left=frozenset(left))


def test_it_opens_with_all_victims_left():
    assert open_switch(
        id=SwitchId("W"),
        target=making.ONE,
        ask="a",
        host=making.HOST,
        victims=switch().victims,
        explicit=False,
    ).left == {A, B}


@pytest.mark.parametrize(
    ("before", "left", "happened", "after"),
    [
        (P.PLANNED, (A, B), SwitchEvent.WINDOW_OVER, P.ADMISSION_CLOSED),
        (P.ADMISSION_CLOSED, (A, B), SwitchEvent.WINDOW_OVER, P.ADMISSION_CLOSED),
        (P.ADMISSION_CLOSED, (A, B), VictimGone(A), P.ADMISSION_CLOSED),
        (P.ADMISSION_CLOSED, (A,), VictimGone(A), P.RELEASED),
        (P.PLANNED, (A,), VictimGone(A), P.RELEASED),
        (P.ADMISSION_CLOSED, (A,), VictimStayed(A, "busy"), P.FAILED),
        (P.ADMISSION_CLOSED, (A,), VictimStayed(B, "gone already"), P.ADMISSION_CLOSED),
        (P.RELEASED, (), SwitchEvent.TARGET_UP, P.COMPLETED),
        (P.PLANNED, (A,), SwitchEvent.TARGET_UP, P.COMPLETED),
        (P.RELEASED, (), SwitchEvent.TARGET_GONE, P.FAILED),
        (P.ADMISSION_CLOSED, (A,), SwitchEvent.TARGET_GONE, P.FAILED),
        (P.RELEASED, (), SwitchEvent.TOO_LITTLE, P.FAILED),
    ],
)
def test_each_happening(before, left, happened, after):
    assert advance(switch(before, *left), happened).state is after


@pytest.mark.parametrize("state", sorted(OVER, key=lambda s: s.value))
@pytest.mark.parametrize("happened", [*SwitchEvent, VictimGone(A), VictimStayed(A, "x")])
def test_what_is_over_stays_over(state, happened):
    over = switch(state, A)

    assert advance(over, happened) is over


def test_a_failed_switch_names_who_stayed_and_why():
    failed = advance(switch(P.ADMISSION_CLOSED, A), VictimStayed(A, "3 requests still ran"))

    assert failed.failed_because == f"{A} did not give way: 3 requests still ran"
    assert switch_event(failed).payload["detail"] == failed.failed_because
    assert switch_event(failed).kind == "switch_failed"


@pytest.mark.parametrize(
    ("now_s", "last_used_s", "left_s"),
    [
        (10.0, 10.0, 2.0),  # in use: as long as it may
        (11.0, 11.0, 1.0),  # still in use: it never begins again
        (10.5, 9.0, 0.5),  # quiet since before it opened
        (10.0, 7.0, 0.0),  # quiet for longer than a window
        (12.5, 12.5, 0.0),  # over, whatever runs
    ],
)
def test_the_window_ends_early_and_never_late(now_s, last_used_s, left_s):
    assert window_left_s(now_s, 10.0, last_used_s, window_s=2.0) == left_s
