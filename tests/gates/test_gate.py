"""One gate: why it is closed, what it counts, when it says that it is empty."""

import pytest

from capyctl.domain.ids import DeploymentId, InstanceId
from capyctl.domain.launches import Endpoint
from capyctl.gates.gate import EngineLoad, Gate

WHO = InstanceId(DeploymentId("01J00000000000000000000000"), 0)
ENDPOINT = Endpoint(host="127.0.0.1", port=9000, key=None, served_name="m")


def open_gate() -> Gate:
    gate = Gate(WHO)
    gate.open_for(ENDPOINT, 1)
    return gate


def test_new_gate_is_closed_until_an_endpoint_is_set():
    gate = Gate(WHO)
    assert not gate.is_open
    assert gate.closed_for == ("starting",)

    gate.reopen("starting")
    assert not gate.is_open

    gate.open_for(ENDPOINT, 3)
    assert gate.is_open
    assert gate.closed_for == ()
    assert gate.generation == 3


def test_opens_only_when_the_last_reason_is_gone():
    gate = open_gate()
    gate.close("switch")
    gate.close("host_session")
    assert gate.closed_for == ("switch", "host_session")

    gate.reopen("switch")
    assert not gate.is_open
    gate.reopen("host_session")
    assert gate.is_open


def test_a_launch_ends_its_own_reasons_and_no_others():
    gate = open_gate()
    gate.close("park")
    gate.close("engine_exit")
    gate.close("host_session")

    gate.open_for(ENDPOINT, 2)
    assert gate.closed_for == ("host_session",)


def test_reopening_for_a_reason_that_is_not_there_changes_nothing():
    gate = open_gate()
    gate.close("stop")
    gate.reopen("switch")
    assert gate.closed_for == ("stop",)


def test_empty_is_reported_once_and_only_when_closed():
    gate = open_gate()
    gate.count_in()
    calls: list[str] = []
    gate.close("park")
    gate.watch_empty(lambda: calls.append("empty"))
    assert calls == []

    gate.count_out(5.0, unproven=False)
    gate.report_if_empty()
    gate.report_if_empty()
    gate.close("stop")
    assert calls == ["empty"]


def test_watching_a_closed_empty_gate_reports_at_once():
    gate = open_gate()
    gate.close("park")
    calls: list[str] = []
    gate.watch_empty(lambda: calls.append("empty"))
    assert calls == ["empty"]


def test_closing_an_empty_gate_reports_to_an_earlier_watch():
    gate = open_gate()
    calls: list[str] = []
    gate.watch_empty(lambda: calls.append("empty"))
    assert calls == []
    gate.close("switch")
    assert calls == ["empty"]


def test_opening_drops_the_watch():
    """A drain that is given up must not report the emptiness of a later one."""
    gate = open_gate()
    gate.count_in()
    gate.close("switch")
    calls: list[str] = []
    gate.watch_empty(lambda: calls.append("empty"))
    gate.reopen("switch")
    gate.close("park")
    gate.count_out(1.0, unproven=False)
    gate.report_if_empty()
    assert calls == []


def test_unproven_requests_keep_the_gate_from_being_empty():
    gate = open_gate()
    gate.count_in()
    gate.close("park")
    calls: list[str] = []
    gate.watch_empty(lambda: calls.append("empty"))
    gate.count_out(1.0, unproven=True)
    gate.report_if_empty()
    assert calls == []
    assert gate.held_count == 1

    assert gate.settle_unproven() == 1
    assert calls == ["empty"]
    assert gate.settle_unproven() == 0


def test_entering_a_closed_gate_is_a_bug():
    gate = Gate(WHO)
    with pytest.raises(AssertionError, match="closed gate"):
        gate.count_in()


@pytest.mark.parametrize(
    ("kv_used_ratio", "penalty"),
    [(0.0, 0), (0.8, 0), (0.81, 1), (0.825, 1), (0.85, 2), (0.9, 4), (1.0, 8), (1.7, 8)],
)
def test_penalty_of_a_full_kv_cache(kv_used_ratio, penalty):
    load = EngineLoad(request_count=0, kv_used_ratio=kv_used_ratio, fresh_until_s=1.0)
    assert load.penalty() == penalty


def test_score_takes_the_larger_count_and_forgets_old_samples():
    gate = open_gate()
    gate.count_in()
    gate.load = EngineLoad(request_count=5, kv_used_ratio=0.9, fresh_until_s=10.0)
    assert gate.score(10.0) == 9
    assert gate.score(10.1) == 1
    gate.load = EngineLoad(request_count=0, fresh_until_s=10.0)
    assert gate.score(10.0) == 1
