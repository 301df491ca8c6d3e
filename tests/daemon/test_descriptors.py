"""Idle clients leave a daemon the descriptors that it watches its engines with."""

from __future__ import annotations

import resource

import pytest

from capyctl.daemon.descriptors import fitting, raise_limit
from capyctl.dataplane.plane import Limits

UNBOUNDED = resource.RLIM_INFINITY


@pytest.fixture
def allowed(monkeypatch):
    """The process's limits, soft and hard; in the tests alone."""
    limits = [1024, 1024]
    monkeypatch.setattr(resource, "getrlimit", lambda _: tuple(limits))
    monkeypatch.setattr(resource, "setrlimit", lambda _, both: limits.__setitem__(slice(2), both))
    return limits


@pytest.mark.parametrize(
    ("soft", "hard", "raised"),
    [
        (1024, 524_288, 24_768),
        (1024, UNBOUNDED, 24_768),
        (1024, 4096, 4096),
        (1024, 1024, 1024),
        (65_536, 524_288, 65_536),
        (UNBOUNDED, UNBOUNDED, UNBOUNDED),
    ],
)
def test_the_limit_is_raised_as_far_as_clients_need_and_the_user_may(allowed, soft, hard, raised):
    allowed[:] = [soft, hard]

    raise_limit()

    assert allowed == [raised, hard]


def test_a_limit_that_may_not_be_raised_stays(allowed, monkeypatch):
    def denied(*_):
        raise PermissionError(1, "Operation not permitted")

    allowed[:] = [1024, 524_288]
    monkeypatch.setattr(resource, "setrlimit", denied)

    raise_limit()

    assert allowed == [1024, 524_288]


@pytest.mark.parametrize(
    ("soft", "clients_max"),
    [(2, 1), (192, 1), (1024, 277), (24_768, 8192), (1 << 20, 8192), (UNBOUNDED, 8192)],
)
def test_clients_get_a_third_at_most_with_those_that_are_refused(allowed, soft, clients_max):
    allowed[0] = soft

    assert fitting(Limits()).connections_max == clients_max
