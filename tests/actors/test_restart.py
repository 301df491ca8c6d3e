"""How often is too often: the window, exactly, for any history."""

import hypothesis.strategies as st
import pytest
from hypothesis import given

from actors import RestartHistory, RestartLimit


def test_the_limit_is_spent_within_the_window_and_comes_back_after_it():
    history = RestartHistory(RestartLimit(restarts_max=2, window_s=10))

    first = history.after_failure(0)
    second = first.after_failure(5)

    assert second.restarts_at_s == (0, 5)
    assert second.after_failure(9.9) is None
    assert second.after_failure(10).restarts_at_s == (5, 10)


def test_no_restarts_allowed_means_none():
    assert RestartHistory(RestartLimit(restarts_max=0, window_s=1)).after_failure(0) is None


@pytest.mark.parametrize(("restarts_max", "window_s"), [(-1, 1.0), (1, 0.0), (1, -1.0)])
def test_a_limit_that_means_nothing_is_refused(restarts_max, window_s):
    with pytest.raises(ValueError):
        RestartLimit(restarts_max, window_s)


@given(
    restarts_max=st.integers(0, 4),
    window_s=st.integers(1, 20),
    gaps_s=st.lists(st.integers(0, 10), max_size=40),
)
def test_no_window_ever_holds_more_than_the_limit_and_none_is_refused_without_cause(
    restarts_max, window_s, gaps_s
):
    history = RestartHistory(RestartLimit(restarts_max, window_s))
    granted_at_s = []
    now_s = 0
    for gap_s in gaps_s:
        now_s += gap_s
        recent = [at_s for at_s in granted_at_s if at_s > now_s - window_s]
        after = history.after_failure(now_s)
        assert (after is None) == (len(recent) >= restarts_max)
        if after is not None:
            history = after
            granted_at_s.append(now_s)

    assert len(history.restarts_at_s) <= restarts_max
