"""How a server stands with a host: every state and event, and what releases come to."""

from __future__ import annotations

import itertools

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from capyctl.domain.hosts import Compatibility
from capyctl.machines.link import (
    REDIAL_MAX_S,
    TABLE,
    Agreed,
    CloseSession,
    Dismissed,
    Greeted,
    Heard,
    Looked,
    Parted,
    Silence,
    Standing,
    StandingState,
    TellLost,
    TellOnline,
    TellSuspended,
    advance,
    is_rivalled,
    negotiate,
    redial_pause_s,
)

S = StandingState
SILENCE = Silence(suspend_after_s=5.0, lost_after_s=30.0)
EVENTS = (Greeted, Agreed, Heard, Parted, Looked, Dismissed)


def standing(state: StandingState, **changes) -> Standing:
    """Last heard at 100 s; session 1, of process A, where there is one."""
    live = state is S.LIVE
    one = Standing(
        state=state,
        silence=SILENCE,
        heard_at_s=100.0,
        session=1 if live else None,
        agreed=live,
        greeted_epoch="A" if state is not S.AWAITED else None,
        epoch="A" if state is not S.AWAITED else None,
    )
    return attrs.evolve(one, **changes)


def test_every_event_has_an_edge_in_every_state():
    assert {(state, event) for state, row in TABLE.items() for event in row} == set(
        itertools.product(S, EVENTS)
    )


@pytest.mark.parametrize(
    ("before", "event", "after", "effects"),
    [
        (standing(S.AWAITED), Greeted(1, "A", 101.0), S.AWAITED, ()),
        (standing(S.LIVE), Greeted(2, "A", 101.0), S.ADRIFT, (CloseSession(1, "replaced"),)),
        (standing(S.ADRIFT), Greeted(2, "A", 101.0), S.ADRIFT, ()),
        (
            standing(S.ADRIFT, session=1),
            Greeted(2, "A", 101.0),
            S.ADRIFT,
            (CloseSession(1, "replaced"),),
        ),
        (standing(S.SUSPENDED), Greeted(2, "A", 101.0), S.SUSPENDED, ()),
        (standing(S.LOST), Greeted(2, "A", 101.0), S.LOST, ()),
        # The first session, one after a loss, and one of another process are fresh.
        (
            standing(S.AWAITED, session=1, greeted_epoch="A"),
            Agreed(1, 101.0),
            S.LIVE,
            (TellOnline(True),),
        ),
        (standing(S.LOST, session=1), Agreed(1, 101.0), S.LIVE, (TellOnline(True),)),
        (standing(S.ADRIFT, session=1), Agreed(1, 101.0), S.LIVE, (TellOnline(False),)),
        (standing(S.SUSPENDED, session=1), Agreed(1, 101.0), S.LIVE, (TellOnline(False),)),
        (
            standing(S.ADRIFT, session=1, greeted_epoch="B"),
            Agreed(1, 101.0),
            S.LIVE,
            (TellOnline(True),),
        ),
        (standing(S.LIVE), Agreed(1, 101.0), S.LIVE, ()),
        # Silence.
        (standing(S.LIVE), Looked(104.9), S.LIVE, ()),
        (
            standing(S.LIVE),
            Looked(105.0),
            S.SUSPENDED,
            (TellSuspended(), CloseSession(1, "silent")),
        ),
        (standing(S.ADRIFT), Looked(104.9), S.ADRIFT, ()),
        (standing(S.ADRIFT), Looked(105.0), S.SUSPENDED, (TellSuspended(),)),
        (standing(S.SUSPENDED), Looked(129.9), S.SUSPENDED, ()),
        (standing(S.SUSPENDED), Looked(130.0), S.LOST, (TellLost(),)),
        (
            standing(S.SUSPENDED, session=1),
            Looked(130.0),
            S.LOST,
            (TellLost(), CloseSession(1, "silent")),
        ),
        (standing(S.AWAITED), Looked(129.9), S.AWAITED, ()),
        (standing(S.AWAITED), Looked(130.0), S.LOST, (TellLost(),)),
        (standing(S.LOST), Looked(1e9), S.LOST, ()),
        # The end of a session is no news.
        (standing(S.LIVE), Parted(1), S.ADRIFT, ()),
        (standing(S.SUSPENDED, session=1), Parted(1), S.SUSPENDED, ()),
        (standing(S.LOST, session=1), Parted(1), S.LOST, ()),
        (standing(S.AWAITED, session=1), Parted(1), S.AWAITED, ()),
        # Sent away.
        (standing(S.LIVE), Dismissed(), S.LOST, (TellLost(), CloseSession(1, "host_revoked"))),
        (standing(S.AWAITED), Dismissed(), S.LOST, (TellLost(),)),
        (standing(S.LOST), Dismissed(), S.LOST, ()),
    ],
)
def test_what_happens_leads_where_it_should(before, event, after, effects):
    step = advance(before, event)

    assert (step.data.state, step.effects) == (after, effects)


@pytest.mark.parametrize("state", S)
@pytest.mark.parametrize("event", [Agreed(1, 101.0), Heard(1, 101.0), Parted(1)])
def test_what_an_older_session_says_changes_nothing(state, event):
    newer = advance(standing(state), Greeted(2, "A", 100.5)).data

    assert advance(newer, event).data == newer


@pytest.mark.parametrize("state", S)
def test_hearing_puts_silence_off(state):
    one = standing(state, session=1)

    assert advance(one, Heard(1, 120.0)).data.heard_at_s == 120.0


EVENT_STRATEGY = st.one_of(
    st.builds(lambda n, e: ("greet", n, e), st.integers(0, 9), st.sampled_from("AB")),
    st.builds(lambda n: ("agree", n, ""), st.integers(0, 9)),
    st.builds(lambda n: ("hear", n, ""), st.integers(0, 9)),
    st.builds(lambda n: ("part", n, ""), st.integers(0, 9)),
    st.builds(lambda s: ("wait", s, ""), st.integers(1, 40)),
    st.just(("dismiss", 0, "")),
)


@given(st.lists(EVENT_STRATEGY, max_size=40))
def test_whatever_happens_news_alternate_and_one_session_is_open(happenings):
    """Sessions are numbered as they greet; a late one may speak at any time."""
    one, now_s, greeted, open_sessions, told = standing(S.AWAITED), 100.0, 0, set(), "nothing"
    for what, number, epoch in happenings:
        if what == "greet":
            greeted += 1
            open_sessions.add(greeted)
            event = Greeted(greeted, epoch, now_s)
        elif what == "wait":
            now_s += number
            event = Looked(now_s)
        else:
            session = number % (greeted + 1)
            event = {
                "agree": Agreed(session, now_s),
                "hear": Heard(session, now_s),
                "part": Parted(session),
                "dismiss": Dismissed(),
            }[what]
            if what == "part":
                open_sessions.discard(session)
        step = advance(one, event)
        one = step.data
        for effect in step.effects:
            match effect:
                case CloseSession(session=session):
                    open_sessions.discard(session)
                case TellOnline(fresh):
                    assert fresh or told in ("online", "suspended")
                    told = "online"
                case TellSuspended():
                    assert told == "online"
                    told = "suspended"
                case TellLost():
                    assert told != "lost"
                    told = "lost"
        assert open_sessions == (set() if one.session is None else {one.session})


# -- releases -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("protocol", "host", "server", "compatibility", "code"),
    [
        (1, "0.4.9", "0.4.0", Compatibility.SUPPORTED, None),
        (1, "0.3.0", "0.4.0", Compatibility.UPGRADE_RECOMMENDED, None),
        (1, "0.2.0", "0.4.0", Compatibility.UPGRADE_REQUIRED, None),
        (1, "0.9.0", "1.0.0", Compatibility.UPGRADE_REQUIRED, None),
        (1, "unknown", "1.0.0", Compatibility.UPGRADE_REQUIRED, None),
        (1, "0.5.0", "0.4.0", Compatibility.SERVER_BEHIND, "server_upgrade_required"),
        (1, "1.0.0", "0.4.0", Compatibility.SERVER_BEHIND, "server_upgrade_required"),
        (2, "0.4.0", "0.4.0", Compatibility.SERVER_BEHIND, "server_upgrade_required"),
        (0, "0.4.0", "0.4.0", Compatibility.UPGRADE_REQUIRED, "host_upgrade_required"),
    ],
)
def test_releases_beside_each_other(protocol, host, server, compatibility, code):
    greeting = negotiate(protocol=protocol, host_version=host, server_version=server)

    assert (greeting.compatibility, greeting.code) == (compatibility, code)
    assert (greeting.message != "") == (code is not None)


def test_dials_slow_down_and_are_spread_by_chance():
    longest = [redial_pause_s(attempt, 1.0) for attempt in range(8)]

    assert longest == [0.25, 0.5, 1.0, 2.0, 4.0, 5.0, 5.0, 5.0]
    assert redial_pause_s(3, 0.0) == 1.0
    assert redial_pause_s(10**6, 1.0) == REDIAL_MAX_S


@pytest.mark.parametrize(
    ("state", "epoch", "at_s", "rivalled"),
    [
        (S.LIVE, "B", 100.0, True),
        (S.LIVE, "B", 102.4, True),
        (S.LIVE, "B", 102.5, False),
        (S.LIVE, "A", 100.0, False),
        (S.ADRIFT, "B", 100.0, False),
    ],
)
def test_another_process_is_a_rival_while_the_first_is_heard(state, epoch, at_s, rivalled):
    assert is_rivalled(standing(state), epoch, at_s) is rivalled
