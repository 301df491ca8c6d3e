"""`--wait` of stop, park, preinitialize and of single instances: what ends the wait, and how."""

import json

import pytest

from tests.cli.fake_management import (
    API_KEY,
    ID,
    TOKEN,
    Says,
    deployment,
    instance,
    operation,
    receipt,
    refusal,
    snapshot,
)

STOP = ("stop", "deployment", "my-model")
PARK = ("park", "deployment", "my-model")
PREINITIALIZE = ("preinitialize", "deployment", "my-model")
STOP_ONE = ("stop", "instance", "my-model/0")
START_ONE = ("start", "instance", "my-model/0")
OPEN, DONE = [operation("running")], [operation("succeeded")]

CASES = {
    STOP: ("ready", "stopping", "stopped", "my-model is stopped"),
    PARK: ("ready", "parking", "parked", "my-model is parked"),
    PREINITIALIZE: ("stopped", "starting", "parked", "my-model is parked"),
    STOP_ONE: ("ready", "stopping", "stopped", "my-model/0 is stopped"),
    START_ONE: ("stopped", "starting", "ready", "my-model/0 is ready"),
}


def at(state, operations=(), *, error=None, kind="x", **changes):
    """One instance in this state; after a stop was asked for where it stops."""
    stops = state in ("stopping", "stopped")
    latest = {"id": operation("x")["id"], "kind": kind, "state": "failed", "reason": error}
    more = {} if error is None else {"latest_operation": latest}
    row = deployment(
        desired_state="stopped" if stops else "ready",
        instances=[instance(0, state, operator_stopped=stops, **more)],
        observed_state=state,
        **more,
    )
    return snapshot({**row, **changes}, operations=operations)


@pytest.mark.parametrize(("words", "case"), CASES.items(), ids=" ".join)
def test_it_ends_with_0_once_it_is_done(management, bench, words, case):
    before, during, after, said = case
    moving = at(during, OPEN)
    management.snapshots = [at(before), moving, moving, at(after, DONE)]

    ran = bench.run(*words, "--wait")

    assert ran.status == 0, ran.err
    assert ran.out.startswith(f"{said}\n")
    assert len(management.changes) == 1
    assert set(bench.clock.slept) == {0.5}
    (line,) = ran.waits
    assert during in line
    assert "(since " in line
    assert " at the latest)" in line


@pytest.mark.parametrize(("words", "case"), CASES.items(), ids=" ".join)
def test_it_shows_the_receipt_and_the_states(management, bench, words, case):
    before, _, after, _ = case
    management.snapshots = [at(before), at(after, DONE)]
    answer = receipt(instance=0) if "instance" in words else receipt()
    management.answers = [Says(202, answer)]

    ran = bench.run(*words, "--wait", "--json")

    shown = {"observed_state": after}
    if "instance" not in words:
        shown |= {"ready_instances": 0, "desired_instances": 1}
    assert ran.value == {**answer, **shown}


@pytest.mark.parametrize(("words", "case"), CASES.items(), ids=" ".join)
def test_what_is_not_done_in_time_ends_it(management, bench, words, case):
    before, during, _, _ = case
    timeouts = {
        "stop_ms": 20_000,
        "request_deadline_ms": 20_000,
        "initialize_ms": 20_000,
    }
    moving = at(during, OPEN, timeouts=timeouts)
    management.snapshots = [at(before, timeouts=timeouts), moving]

    ran = bench.run(*words, "--wait")

    assert ran.status == (10 if words is START_ONE else 13)
    assert bench.clock.now_s == 30  # 10 s after the deadline its outcome is known
    assert during in ran.errors[0]
    assert ran.out == ""


@pytest.mark.parametrize("words", [PARK, PREINITIALIZE, START_ONE], ids=" ".join)
def test_what_failed_ends_it_with_the_reason(management, bench, words):
    before = CASES[words][0]
    ended = at("failed", [operation("failed")], error="launch_failed: exit 1", kind="park")
    management.snapshots = [at(before), ended]

    ran = bench.run(*words, "--wait")

    assert ran.status == 13
    assert ran.errors[0].startswith("error [operation_failed]: my-model")
    assert "launch_failed: exit 1" in ran.errors[0]


@pytest.mark.parametrize(("words", "case"), CASES.items(), ids=" ".join)
def test_what_was_deleted_meanwhile_ends_it(management, bench, words, case):
    management.snapshots = [at(case[0]), snapshot()]

    assert bench.run(*words, "--wait").status == 2


@pytest.mark.parametrize(("words", "case"), CASES.items(), ids=" ".join)
def test_a_refusal_is_not_waited_out(management, bench, words, case):
    management.snapshots = [at(case[0])]
    management.answers = [refusal("lifecycle_conflict", 409)]

    assert bench.run(*words, "--wait").status == 2
    assert bench.clock.slept == []


@pytest.mark.parametrize(("words", "case"), CASES.items(), ids=" ".join)
def test_a_repeated_wait_asks_for_nothing_new(management, bench, words, case):
    before, _, after, _ = case
    management.snapshots = [at(before), at(after, DONE)]
    first = bench.run(*words, "--wait")

    again = bench.run(*words, "--wait", "--request-id", first.request_id)

    asked, repeated = management.changes
    assert again.status == 0
    assert asked == repeated


@pytest.mark.parametrize("words", [STOP, PARK], ids=" ".join)
def test_every_instance_is_waited_for(management, bench, words):
    """The operation of the answer is that of the first instance alone."""
    before, during, after, _ = CASES[words]

    def rows(*states):
        held = [instance(i, state, operator_stopped=True) for i, state in enumerate(states)]
        row = deployment(desired_state="stopped", instances=held)
        return snapshot(row, operations=DONE)

    management.snapshots = [
        rows(before, before),
        rows(after, during),
        rows(after, during),
        rows(after, after),
    ]

    ran = bench.run(*words, "--wait")

    assert ran.status == 0
    assert f"instance 1 {during}" in ran.waits[0]


def test_an_instance_that_has_more_to_stop_is_waited_for(management, bench):
    """Its operation is open, whatever state it shows."""
    management.snapshots = [at("ready"), at("stopped", OPEN), at("stopped", DONE)]

    ran = bench.run(*STOP, "--wait")

    assert ran.status == 0
    assert bench.clock.slept == [0.5]


@pytest.mark.parametrize("words", [STOP, STOP_ONE], ids=" ".join)
def test_a_stop_of_what_is_stopped_is_nothing_to_wait_for(management, bench, words):
    management.snapshots = [at("stopped")]
    management.answers = [Says(202, receipt(operation_id=None))]

    ran = bench.run(*words, "--wait")

    assert ran.status == 0
    assert ran.waits == []


@pytest.mark.parametrize("words", [STOP, STOP_ONE], ids=" ".join)
def test_a_stop_that_a_start_undid_is_over(management, bench, words):
    again = at("starting", [operation("running", id="another")])
    management.snapshots = [at("ready"), at("stopping", OPEN), again]

    ran = bench.run(*words, "--wait")

    assert ran.status == 13
    assert "was started again" in ran.errors[0]


def test_a_park_of_some_leaves_those_that_a_request_woke(management, bench):
    def rows(*states, operations=()):
        held = [instance(i, state) for i, state in enumerate(states)]
        return snapshot(deployment(instances=held), operations=operations)

    management.snapshots = [rows("ready", "ready"), rows("waking", "parked", operations=DONE)]

    ran = bench.run(*PARK, "--wait")

    assert ran.status == 0
    assert ran.out.startswith("my-model was parked\n")


def test_a_stop_on_a_host_that_is_away_is_pending(management, bench):
    identity = bench.state_root / "identity"
    (identity / "credentials").unlink()
    held = {"api_key": API_KEY, "admin_token": TOKEN}
    (identity / "server-credentials.json").write_text(json.dumps(held))
    away = {"host_id": "box", "name": "a", "state": "offline"}
    management.reads["/management/v1/hosts"] = Says(200, {"hosts": [away]})
    management.snapshots = [at("ready"), at("uncertain", OPEN, desired_state="stopped")]

    ran = bench.run(*STOP, "--wait")

    assert ran.status == 25
    assert ran.errors == [
        "error [still_stopping]: my-model is not stopped yet: host a is offline; the stop is "
        "pending until it is back"
    ]


def test_it_goes_to_the_deployment_by_its_id(management, bench):
    management.snapshots = [at("ready"), at("stopped", DONE)]

    bench.run("stop", "deployment", ID, "--wait")

    assert ID in management.changes[0].path
