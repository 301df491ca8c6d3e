"""`start --wait`: what it waits for, in which order, and how it ends."""

import time

import pytest

from tests.cli.fake_management import (
    BEGAN_MS,
    ID,
    Says,
    deployment,
    instance,
    operation,
    receipt,
    refusal,
    snapshot,
)

WAIT = ("start", "deployment", "my-model", "--wait")
READY = snapshot(deployment("ready"), operations=[operation("succeeded")])


def pending(**digest):
    return snapshot(deployment(checkpoint_digest={"state": "pending", **digest}))


def failed(latest, **changes):
    row = deployment("stopped", latest_operation=latest, **changes)
    return snapshot(row, operations=[operation("pending")])


def test_it_waits_for_the_digest_then_starts_then_waits_until_ready(management, bench):
    management.snapshots = [
        pending(),
        pending(),
        pending(),
        snapshot(deployment()),
        snapshot(deployment("queued"), operations=[operation("pending")]),
        snapshot(deployment("starting"), operations=[operation("running")]),
        READY,
    ]

    ran = bench.run(*WAIT)

    assert ran.status == 0
    assert ran.out.startswith("my-model is ready\n")
    assert [line.split(" (")[0] for line in ran.waits] == [
        "waiting: checkpoint digest of my-model being measured",
        "waiting: my-model 0/1 ready, instance 0 queued",
        "waiting: my-model 0/1 ready, instance 0 starting",
    ]
    assert len(management.changes) == 1
    # The deadline counts from the start, not from when the waiting began.
    assert management.changes[0].fields["deadline_ms"] == BEGAN_MS + 1000 + 610_000
    assert set(bench.clock.slept) == {0.5}


def test_it_says_since_when_and_until_when(management, bench):
    management.snapshots = [pending(), pending(), snapshot(deployment()), READY]

    (line,) = bench.run(*WAIT).waits

    since, until = (
        time.strftime("%H:%M:%S", time.localtime(at_ms / 1000))
        for at_ms in (BEGAN_MS, BEGAN_MS + 610_000)
    )
    assert line.endswith(f"being measured (since {since}, until {until} at the latest)")


def test_a_model_that_is_ready_is_nothing_to_wait_for(management, bench):
    management.snapshots = [snapshot(deployment("ready"))]
    management.answers = [refusal("runtime_retained", 409)]

    ran = bench.run("--json", *WAIT)

    assert ran.status == 0
    assert (ran.value["observed_state"], ran.value["operation_id"]) == ("ready", None)
    assert ran.waits == []
    assert bench.clock.slept == []


def test_that_it_was_ready_already_is_said(management, bench):
    management.snapshots = [snapshot(deployment("ready"))]
    management.answers = [refusal("runtime_retained", 409)]

    assert bench.run(*WAIT).out.startswith("my-model is already ready\n")


def test_without_waiting_a_start_of_what_runs_is_refused(management, bench):
    management.snapshots = [snapshot(deployment("ready"))]
    management.answers = [refusal("runtime_retained", 409)]

    ran = bench.run("start", "deployment", "my-model")

    assert (ran.status, ran.out) == (2, "")
    assert ran.errors[0].startswith("error [runtime_retained]: ")


@pytest.mark.parametrize(
    ("source", "what"),
    [
        (
            {"state": "downloading", "bytes_done": 5, "bytes_total": 9},
            "model source of my-model being downloaded and verified, 5 of 9 bytes",
        ),
        (
            {"state": "pending", "bytes_done": 0, "bytes_total": 0},
            "model source of my-model being downloaded and verified, 0 bytes so far",
        ),
        (
            {"state": "failed", "bytes_done": 5, "bytes_total": 9, "reason": "unreachable: x"},
            "model source of my-model being downloaded and verified, 5 of 9 bytes (unreachable: x)",
        ),
    ],
)
def test_it_waits_for_downloads(management, bench, source, what):
    coming = snapshot(deployment(model_sources=[source]))
    management.snapshots = [coming, coming, snapshot(deployment()), READY]

    ran = bench.run(*WAIT)

    assert ran.status == 0
    assert what in ran.waits[0]


def test_files_that_will_not_come_end_it_at_once(management, bench):
    failed = {"state": "failed", "reason": "unauthorized: no", "terminal": True}
    gone = deployment(
        model_sources=[failed],
        checkpoint_digest={"state": "pending", "diagnostic": "unauthorized"},
    )
    management.snapshots = [snapshot(gone)]

    ran = bench.run(*WAIT)

    assert ran.status == 2
    assert ran.errors[0].startswith("error [model_source_failed]: ")
    assert "unauthorized: no" in ran.errors[0]
    assert management.changes == []


def test_it_waits_for_an_earlier_stop(management, bench):
    stopping = snapshot(deployment("stopping"))
    management.snapshots = [stopping, stopping, snapshot(deployment()), READY]

    ran = bench.run(*WAIT)

    assert ran.status == 0
    assert "an earlier stop of my-model finishing" in ran.waits[0]


@pytest.mark.parametrize("diagnostic", ["invalid_root", "unsafe_file", "too_large", "unauthorized"])
def test_a_checkpoint_that_stays_unmeasurable_ends_it_at_once(management, bench, diagnostic):
    management.snapshots = [pending(diagnostic=diagnostic)]

    ran = bench.run(*WAIT)

    assert ran.status == 2
    assert ran.errors[0].startswith("error [checkpoint_unusable]: ")
    assert diagnostic in ran.errors[0]
    assert management.changes == []
    assert bench.clock.slept == []


REVOKED = {"host_id": "b", "outcome": "refused", "diagnostic": "revoked"}


@pytest.mark.parametrize(
    ("digest", "others"),
    [
        ({"diagnostic": "invalid_root"}, [{"host_id": "a", "outcome": "resolved"}]),
        ({}, []),
        ({}, [{"host_id": "a", "outcome": "refused", "diagnostic": "checkpoint_unusable"}]),
    ],
)
def test_what_only_a_revoked_machine_has_is_refused_by_the_role(management, bench, digest, others):
    row = deployment(checkpoint_digest={"state": "pending", **digest}, hosts=[REVOKED, *others])
    management.snapshots = [snapshot(row)]
    management.answers = [refusal("host_ineligible", 503, retryable=True, message="b: revoked")]

    ran = bench.run(*WAIT)

    assert ran.status == 15
    assert ran.errors == ["error [host_ineligible]: b: revoked"]
    assert bench.clock.slept == []


def test_another_machine_than_the_revoked_one_is_waited_for(management, bench):
    rows = [REVOKED, {"host_id": "a", "outcome": "resolved"}]
    management.snapshots = [
        snapshot(deployment(checkpoint_digest={"state": "pending"}, hosts=rows)),
        snapshot(deployment(checkpoint_digest={"state": "pending"}, hosts=rows)),
        snapshot(deployment()),
        READY,
    ]

    ran = bench.run(*WAIT)

    assert ran.status == 0
    assert ran.waits[0].startswith("waiting: checkpoint digest of my-model being measured")


def test_other_diagnostics_are_waited_out(management, bench):
    changed = pending(diagnostic="changed")
    management.snapshots = [changed, changed, snapshot(deployment()), READY]

    assert bench.run(*WAIT).status == 0


def test_a_digest_that_never_comes_ends_without_a_start(management, bench):
    management.snapshots = [pending()]

    ran = bench.run(*WAIT, "--initialize-timeout", "20s")

    assert ran.status == 10
    assert "nothing was started; still waiting: checkpoint digest" in ran.errors[0]
    assert bench.clock.now_s == 20
    assert management.changes == []


def test_a_stop_that_is_finishing_is_asked_again_with_a_new_deadline(management, bench):
    still = refusal("still_stopping", 503, retryable=True)
    management.answers = [still, still, still]
    management.snapshots = [*[snapshot(deployment())] * 5, READY]

    ran = bench.run(*WAIT)

    deadlines = [one.fields["deadline_ms"] for one in management.changes]
    assert ran.status == 0
    assert bench.clock.slept[:3] == [0.25, 0.5, 1.0]
    assert deadlines == [BEGAN_MS + 610_000 + added for added in (0, 250, 750, 1750)]
    assert len({one.key for one in management.changes}) == 1


def test_a_stop_that_never_finishes_is_told_by_its_code(management, bench):
    management.answers = [refusal("still_stopping", 503, retryable=True)] * 400
    timeouts = {"initialize_ms": 10_000, "stop_ms": 30_000}
    management.snapshots = [snapshot(deployment(timeouts=timeouts))]

    ran = bench.run(*WAIT)

    assert ran.status == 25
    assert 30 <= bench.clock.now_s < 36


def test_a_digest_that_is_measured_again_is_waited_for(management, bench):
    management.answers = [refusal("checkpoint_digest_pending", 503, retryable=True)]
    management.snapshots = [snapshot(deployment()), snapshot(deployment()), pending(), READY]

    assert bench.run(*WAIT).status == 0
    assert len(management.changes) == 2


def test_a_start_that_gave_up_ends_it(management, bench):
    latest = {
        "id": "x",
        "kind": "initialize",
        "state": "pending",
        "reason": "gave up: launch failed",
        "hint": "Read the engine's log.",
        "given_up": True,
    }
    management.snapshots = [snapshot(deployment()), snapshot(deployment()), failed(latest)]

    ran = bench.run(*WAIT)

    assert ran.status == 13
    assert ran.errors == [
        "error [operation_failed]: my-model was not started: gave up: launch failed. "
        "Read the engine's log."
    ]


@pytest.mark.parametrize(
    "error",
    [
        "placement: no_host_fits",
        "insufficient_device_memory: needs 13.2 GiB of gpu0 memory, 1.6 GiB available",
        "insufficient_memory: needs 109.0 GiB of system memory",
    ],
)
def test_a_failure_for_want_of_memory_has_a_status_of_its_own(management, bench, error):
    rows = [instance(0, "failed", last_error=error)]
    latest = {"id": "x", "kind": "initialize", "state": "failed", "reason": error}
    management.snapshots = [
        snapshot(deployment()),
        snapshot(deployment()),
        failed(latest, instances=rows),
    ]

    ran = bench.run(*WAIT)

    assert ran.status == 4
    assert ran.errors[0].startswith("error [insufficient_resources]: ")


def test_a_start_that_is_not_ready_by_its_deadline_times_out(management, bench):
    slow = snapshot(deployment("starting"), operations=[operation("running")])
    management.snapshots = [snapshot(deployment()), snapshot(deployment()), slow]

    ran = bench.run(*WAIT, "--initialize-timeout", "20s")

    assert ran.status == 10
    assert bench.clock.now_s == 30  # 10 s after the deadline its outcome is known
    assert "instance 0 starting" in ran.errors[0]


def test_a_start_that_waits_for_room_until_its_deadline_lacks_memory(management, bench):
    rows = [instance(0, "queued", last_error="placement: insufficient_capacity")]
    queued = snapshot(deployment("queued", instances=rows), operations=[operation("pending")])
    management.snapshots = [snapshot(deployment()), snapshot(deployment()), queued]

    assert bench.run(*WAIT, "--initialize-timeout", "20s").status == 4


def test_every_instance_has_to_serve(management, bench):
    def rows(second):
        return deployment("ready", instances=[instance(0, "ready"), instance(1, second)])

    done = [operation("succeeded")]
    management.snapshots = [
        snapshot(rows("stopped")),
        snapshot(rows("stopped")),
        snapshot(rows("starting"), operations=done),
        snapshot(rows("ready"), operations=done),
    ]

    ran = bench.run(*WAIT)

    assert ran.status == 0
    assert "my-model 1/2 ready, instance 1 starting" in ran.waits[0]


def test_an_instance_that_an_operator_stopped_is_not_waited_for(management, bench):
    rows = [instance(0, "ready"), instance(1, "stopped", operator_stopped=True)]
    management.snapshots = [snapshot(deployment("ready", instances=rows))]

    assert bench.run(*WAIT).status == 0


def test_an_instance_that_failed_beside_a_ready_one_fails_the_start(management, bench):
    rows = [instance(0, "ready"), instance(1, "failed", last_error="launch_failed: exit 1")]
    row = deployment("ready", instances=rows)
    management.snapshots = [
        snapshot(deployment()),
        snapshot(deployment()),
        snapshot(row, operations=[operation("succeeded")]),
    ]

    ran = bench.run(*WAIT)

    assert ran.status == 13
    assert "launch_failed: exit 1" in ran.errors[0]


def test_a_start_that_another_one_took_the_place_of_is_waited_for(management, bench):
    """A wake that failed is followed by a clean start."""
    row = deployment(
        "starting", latest_operation={"id": "new", "kind": "initialize", "state": "running"}
    )
    management.snapshots = [
        snapshot(deployment("parked")),
        snapshot(deployment("parked")),
        snapshot(row, operations=[operation("failed"), operation("running", id="new")]),
        READY,
    ]

    assert bench.run(*WAIT).status == 0


def test_a_deployment_deleted_meanwhile_ends_it(management, bench):
    management.snapshots = [snapshot(deployment()), snapshot(deployment()), snapshot()]

    assert bench.run(*WAIT).status == 2


def test_a_busy_or_restarting_role_does_not_end_the_wait(management, bench):
    management.snapshots = [
        snapshot(deployment()),
        snapshot(deployment()),
        refusal("queue_full", 429, retryable=True),
        Says(drops=True),
        Says(502, b"<html>"),
        READY,
    ]

    ran = bench.run(*WAIT)

    assert ran.status == 0
    assert any("is busy: queue_full" in line for line in ran.waits)
    assert any("does not answer" in line for line in ran.waits)


def test_without_wait_it_returns_when_it_is_accepted(management, bench):
    ran = bench.run("start", "deployment", ID)

    assert ran.status == 0
    assert ran.out == (
        "Start of my-model accepted\n  Operation  01M5E0PW0GTNAZM76H039K3YFY\n  Revision   1\n"
    )
    assert ran.waits == []


def test_without_wait_a_pending_digest_is_a_refusal(management, bench):
    management.answers = [refusal("checkpoint_digest_pending", 503, retryable=True)]

    assert bench.run("start", "deployment", "my-model").status == 2
    assert len(management.changes) == 1


def test_evict_is_asked_for_and_its_victims_are_shown(management, bench):
    victims = [f"{ID}/0"]
    management.answers = [Says(202, receipt(victims=victims, switch_id="01S"))]

    ran = bench.run("start", "deployment", "my-model", "--evict", "--json")

    assert management.changes[0].fields["evict"] is True
    assert ran.value["victims"] == victims
    assert ran.value["switch_id"] == "01S"


def test_people_read_names_of_victims(management, bench):
    management.snapshots = [snapshot(deployment(), deployment(id="01OTHER", name="other"))]
    victims = ["01OTHER/0", "01DELETED/1"]
    management.answers = [Says(202, receipt(victims=victims, switch_id="01S"))]

    ran = bench.run("start", "deployment", "my-model", "--evict")

    assert "  Victims    other/0, 01DELETED/1" in ran.out.splitlines()


def test_victims_whose_names_cannot_be_read_have_their_ids(management, bench):
    management.snapshots = [snapshot(deployment()), refusal("internal", 500)]
    management.answers = [Says(202, receipt(victims=["01OTHER/0"]))]

    ran = bench.run("start", "deployment", "my-model", "--evict")

    assert (ran.status, "  Victims    01OTHER/0" in ran.out.splitlines()) == (0, True)


def test_a_start_without_evict_does_not_mention_it(management, bench):
    bench.run("start", "deployment", "my-model")

    assert "evict" not in management.changes[0].fields


def test_the_window_can_be_given(management, bench):
    bench.run("start", "deployment", "my-model", "--initialize-timeout", "90s")

    assert management.changes[0].fields["deadline_ms"] == BEGAN_MS + 90_000


@pytest.mark.parametrize("text", ["90", "0s", "soon", "-1s"])
def test_a_window_is_a_duration(management, bench, text):
    words = ("start", "deployment", "my-model", f"--initialize-timeout={text}")

    assert bench.run(*words).status == 2
    assert management.received == []
