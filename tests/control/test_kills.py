"""Ends for want of memory: told by the kernel's count, and only while it is fresh."""

import attrs
import pytest

from capyctl.control.kills import RECENT_S, MemoryKills, may_be_killed
from capyctl.domain.devices import MemorySample
from capyctl.domain.identity import ExitStatus


def look(at_s, count):
    return MemorySample(at_s=at_s, available_bytes={}, oom_kill_count=count)


@pytest.mark.parametrize(
    ("looks", "now", "recent"),
    [
        ([look(0, 3), look(1, 3)], look(2, 4), True),
        ([look(0, 3), look(1, 4)], look(2, 4), True),
        ([look(0, 3), look(1, 3)], look(2, 3), False),
        ([], look(2, 4), False),
        ([look(0, 3)], look(RECENT_S + 1, 4), False),
        ([look(0, 3), look(1, 4), look(20, 4)], look(21, 4), False),
        ([look(0, None)], look(1, 4), False),
        ([look(0, 3)], look(1, None), False),
    ],
)
def test_a_rise_within_the_last_seconds_counts(looks, now, recent):
    kills = MemoryKills()
    for one in looks:
        kills.note(one)

    assert kills.recent(now) is recent


@pytest.mark.parametrize(
    ("status", "possible"),
    [
        (ExitStatus(exit_code=-9), True),
        (ExitStatus(exit_code=137), True),
        (ExitStatus(exit_code=0), True),
        (ExitStatus(exit_code=None, worker_pid=5), True),
        (ExitStatus(exit_code=1), False),
        (ExitStatus(exit_code=-15), False),
        (ExitStatus(exit_code=None), False),
    ],
)
def test_only_some_ends_can_be_such(status, possible):
    assert may_be_killed(status) is possible


def test_it_is_said_beside_how_it_ended():
    status = ExitStatus(exit_code=-9)

    assert str(status) == "signal 9"
    told = str(attrs.evolve(status, out_of_memory=True))
    assert told == "signal 9: the kernel ended it for want of memory"
