"""Actions on deployments and instances, and `delete --stop`, which is two of them."""

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

DELETE = ("delete", "deployment", "my-model", "--stop")
READY = snapshot(deployment("ready"))
STOPPING = snapshot(deployment("stopping"), operations=[operation("running")])
STOPPED = snapshot(deployment("stopped"), operations=[operation("succeeded")])


@pytest.mark.parametrize(
    ("action", "window_ms", "said"),
    [
        ("stop", 900_000, "Stop of my-model accepted"),
        ("park", 900_000, "Park of my-model accepted"),
        ("delete", 900_000, "Deleted my-model"),
        ("preinitialize", 1_800_000, "Preinitialization of my-model accepted"),
        ("start", 610_000, "Start of my-model accepted"),
    ],
)
@pytest.mark.parametrize("target", ["my-model", ID])
def test_an_action_goes_to_the_id_with_revision_and_deadline(
    management, bench, action, window_ms, said, target
):
    ran = bench.run(action, "deployment", target)

    (sent,) = management.changes
    assert ran.status == 0
    assert ran.out.startswith(said)
    assert (sent.method, sent.path) == ("POST", f"/management/v1/deployments/{ID}/actions")
    assert sent.fields == {
        "action": action,
        "expected_revision": 3,
        "deadline_ms": BEGAN_MS + window_ms,
    }


def test_a_receipt_is_shown_as_it_came(management, bench):
    management.answers = [Says(202, receipt(joined=True))]

    assert bench.run("stop", "deployment", "my-model", "--json").value == receipt(joined=True)


def test_a_name_that_nothing_has_is_told_with_the_names_there_are(management, bench):
    ran = bench.run("stop", "deployment", "you-model")

    assert ran.status == 2
    assert ran.errors == [
        "error [not_found]: there is no deployment you-model; deployments: my-model"
    ]
    assert management.changes == []


def test_an_id_goes_before_a_name(management, bench):
    other = "01M5E0MPXN61STKHGZ6BTEFVM4"
    management.snapshots = [snapshot(deployment(name=other), deployment(id=other, name="b"))]

    bench.run("stop", "deployment", other)

    assert other in management.changes[0].path


@pytest.mark.parametrize("action", ["start", "stop"])
def test_one_instance_is_named_by_its_index(management, bench, action):
    management.answers = [Says(202, receipt(instance=2, operation_id=None))]

    ran = bench.run(action, "instance", "my-model/2")

    (sent,) = management.changes
    assert ran.status == 0
    assert sent.path == f"/management/v1/deployments/{ID}/instances/2/actions"
    assert set(sent.fields) == {"action", "expected_revision", "deadline_ms"}
    assert "none: nothing was running" in ran.out


def test_an_instance_can_be_started_at_the_cost_of_others(management, bench):
    bench.run("start", "instance", "my-model/0", "--evict")

    assert management.changes[0].fields["evict"] is True


@pytest.mark.parametrize(
    "text", ["my-model", "my-model/", "/1", "my-model/01", "my-model/64", "a/x"]
)
def test_an_instance_needs_deployment_and_index(management, bench, text):
    ran = bench.run("stop", "instance", text)

    assert ran.status == 2
    assert management.received == []


def test_delete_with_stop_stops_waits_and_deletes(management, bench):
    management.snapshots = [READY, STOPPING, STOPPING, STOPPED]

    ran = bench.run(*DELETE, "--json")

    stop, delete = management.changes
    assert ran.status == 0
    assert ran.value == {**receipt(), "deleted": True}
    assert (stop.fields["action"], delete.fields["action"]) == ("stop", "delete")
    assert (stop.key, delete.key) == (f"{ran.request_id}-stop", f"{ran.request_id}-delete")
    assert bench.clock.slept == [0.25, 0.25]
    assert ran.waits[0].startswith("waiting: my-model stopping, instance 0 stopping (since ")


def test_delete_with_stop_waits_for_open_operations_as_well(management, bench):
    open_one = snapshot(deployment("stopped"), operations=[operation("running")])
    management.snapshots = [READY, open_one, STOPPED]

    assert bench.run(*DELETE).status == 0
    assert bench.clock.slept == [0.25]


def test_a_stop_that_is_under_way_will_do(management, bench):
    management.answers = [refusal("lifecycle_conflict", 409)]
    management.snapshots = [STOPPING, STOPPED]

    assert bench.run(*DELETE).status == 0
    assert len(management.changes) == 2


def test_another_refusal_of_the_stop_ends_it(management, bench):
    management.answers = [refusal("revision_conflict", 409)]

    assert bench.run(*DELETE).status == 2
    assert len(management.changes) == 1


def test_a_stop_that_does_not_finish_deletes_nothing_and_says_how_to_go_on(management, bench):
    timeouts = {"stop_ms": 5_000}
    stopping = snapshot(
        deployment("stopping", timeouts=timeouts), operations=[operation("running")]
    )
    management.snapshots = [stopping]

    ran = bench.run(*DELETE, "--json")

    assert ran.status == 0
    assert bench.clock.now_s == 15
    assert {**ran.value, "message": ""} == {
        "deleted": False,
        "cleanup": "pending",
        "deployment_id": ID,
        "host_state": "online",
        "request_id": ran.request_id,
        "operations": [operation("running")["id"]],
        "message": "",
    }
    assert f"--request-id {ran.request_id}" in ran.value["message"]
    assert len(management.changes) == 1


def test_a_delete_that_was_left_pending_goes_on_with_its_identity(management, bench):
    timeouts = {"stop_ms": 1_000}
    stopping = snapshot(deployment("stopping", timeouts=timeouts))
    management.snapshots = [stopping]
    first = bench.run(*DELETE)
    management.snapshots = [snapshot(deployment("stopped", timeouts=timeouts))]

    again = bench.run(*DELETE, "--request-id", first.request_id, "--json")

    stop, stop_again, delete = management.changes
    assert again.value["deleted"] is True
    assert stop == stop_again
    assert delete.fields["action"] == "delete"


def test_a_failed_instance_needs_no_stop(management, bench):
    rows = [instance(0, "failed")]
    management.snapshots = [snapshot(deployment("failed", instances=rows))]

    assert bench.run(*DELETE).status == 0
