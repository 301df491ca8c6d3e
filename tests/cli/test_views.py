"""Tables and records of what runs."""

import json

import pytest

from tests.cli.fake_management import (
    API_KEY,
    ID,
    TOKEN,
    Says,
    deployment,
    instance,
    refusal,
    snapshot,
)

CONTROLS = {"enabled": True, "warning": "sleep endpoints are mounted"}


def test_deployments_are_listed_by_name(management, bench):
    rows = [instance(0, "ready"), instance(1, "starting", host_id="other")]
    management.snapshots = [
        snapshot(
            deployment("ready", name="zebra", instances=rows),
            deployment(
                "queued", id="x", name="ant", instances=[instance(0, "queued", host_id=None)]
            ),
        )
    ]

    ran = bench.run("list", "deployments")

    assert ran.out.splitlines() == [
        "NAME   STATE   READY  REVISION  HOSTS",
        "ant    queued  0/1    3         -",
        "zebra  ready   1/2    3         box, other",
    ]


def test_an_empty_list_is_its_head(management, bench):
    management.snapshots = [snapshot()]

    assert bench.run("list", "deployments").out == "NAME  STATE  READY  REVISION  HOSTS\n"


def test_sleep_endpoints_are_mentioned_once(management, bench):
    management.snapshots = [
        snapshot(
            deployment(name="a", development_controls=CONTROLS),
            deployment(id="x", name="b", development_controls=CONTROLS),
        )
    ]

    lines = bench.run("list", "deployments").out.splitlines()

    assert lines[-1] == "note: a, b: sleep endpoints are mounted"
    assert len(lines) == 4


def test_json_is_one_line_where_it_is_piped(management, bench):
    ran = bench.run("list", "deployments", "--json")

    assert ran.out.count("\n") == 1
    assert ran.value == {"deployments": [deployment()]}
    assert bench.run("--format", "json", "list", "deployments").out == ran.out


def test_status_of_the_role(management, bench):
    (bench.state_root / "run/inference-address").write_text("0.0.0.0:8443\n")
    management.snapshots = [snapshot(deployment("ready"), deployment("parked", id="x", name="b"))]

    ran = bench.run("status")

    assert ran.out.splitlines()[:4] == [
        "capyctl serves 2 deployments: 1 parked, 1 ready",
        f"  Management       {management.address}",
        "  Inference        0.0.0.0:8443",
        f"  State directory  {bench.state_root}",
    ]
    assert "NAME      STATE   READY  REVISION  HOSTS" in ran.out


@pytest.mark.parametrize(
    ("address", "said"),
    [
        ("0.0.0.0:8443", True),
        ("[::]:8443", True),
        ("127.0.0.1:8443", False),
        ("[::1]:8443", False),
    ],
)
def test_status_says_that_inference_asks_for_no_key(management, bench, address, said):
    (bench.state_root / "run/inference-address").write_text(f"{address}\n")
    (bench.state_root / "run/inference-authentication").write_text("none\n")

    lines = bench.run("status").out.splitlines()
    found = json.loads(bench.run("status", "--json").out)

    assert f"  Inference        {address} (no key)" in lines
    assert (f"inference: unauthenticated on {address}" in lines) is said
    assert (found["inference"], found["inference_authentication"]) == (address, "none")


def machine(name, reason=None, **changes):
    away = {} if reason is None else {"ineligible_reason": reason}
    return {"name": name, "state": "online", "eligible": reason is None, **away, **changes}


@pytest.mark.parametrize(
    ("machines", "said"),
    [
        ([machine("a")], None),
        ([machine("a", "draining", draining=True)], "0 of 1 take models: a draining"),
        (
            [machine("a"), machine("b", "offline"), machine("c", "draining", draining=True)],
            "1 of 3 take models: b offline, c draining",
        ),
    ],
)
def test_status_names_machines_that_take_nothing(management, bench, machines, said):
    management.reads["/management/v1/hosts"] = Says(200, {"hosts": machines})

    lines = bench.run("status").out.splitlines()

    assert [line for line in lines if line.startswith("  Machines")] == (
        [] if said is None else [f"  Machines         {said}"]
    )


@pytest.mark.parametrize(
    ("kind", "said"),
    [("server", ["draining: a; `capyctl undrain host NAME` ends that"]), ("standalone", [])],
)
def test_status_of_a_server_tells_how_a_drain_ends(management, bench, kind, said):
    """A machine alone has it in its reason."""
    if kind == "server":
        identity = bench.state_root / "identity"
        (identity / "credentials").unlink()
        held = json.dumps({"api_key": API_KEY, "admin_token": TOKEN})
        (identity / "server-credentials.json").write_text(held)
    drained = machine("a", "draining", draining=True)
    management.reads["/management/v1/hosts"] = Says(200, {"hosts": [{"host_id": "h", **drained}]})

    ran = bench.run("status")
    found = json.loads(bench.run("status", "--json").out)

    assert [line for line in ran.out.splitlines() if line.startswith("draining:")] == said
    assert found["hosts"] == [drained]


def test_status_of_a_role_that_cannot_tell_of_machines_now(management, bench):
    management.reads["/management/v1/hosts"] = refusal("queue_full", 429)

    ran = bench.run("status")

    assert ran.status == 0
    assert "Machines" not in ran.out


def test_status_says_what_was_chosen_and_why(management, bench):
    chosen = {
        "context": {"length": 8192, "running_limit": 2, "warning": "it does not fit"},
        "parsers": {
            "tool_call_parser": {"name": "hermes", "source": "model_family"},
            "reasoning_parser": {"name": None, "source": "off"},
        },
    }
    management.snapshots = [snapshot(deployment("ready", **chosen))]

    lines = bench.run("status", "deployment", "my-model").out.splitlines()

    assert "Context: 8192 tokens; 2 requests at once (state cache); it does not fit" in lines
    assert "Parsers: tools hermes (model_family), reasoning none (off)" in lines


def test_status_of_one_deployment(management, bench):
    latest = {
        "id": "o",
        "kind": "initialize",
        "state": "pending",
        "reason": "insufficient_device_memory: needs 13.2 GiB of gpu0 memory, 1.6 GiB available",
        "hint": "Stop another model.",
    }
    digest = {"state": "recorded", "digest": "sha256:00", "weights_bytes": 10 << 30}
    management.snapshots = [
        snapshot(deployment("queued", latest_operation=latest, checkpoint_digest=digest))
    ]

    ran = bench.run("status", "deployment", "my-model")

    assert ran.out.splitlines() == [
        "NAME      STATE   READY  REVISION  STARTUP  INITIALIZE  LAST OPERATION",
        "my-model  queued  0/1    3         -        610 s       start pending",
        "",
        "INSTANCE  HOST  STATE   LIFECYCLE  DEVICES  LAST ERROR",
        "0         box   queued  active     gpu0     -",
        "",
        f"Deployment ID: {ID}",
        "Checkpoint: recorded, sha256:00, 10.0 GiB of weights",
        "Waiting: insufficient_device_memory: needs 13.2 GiB of gpu0 memory, 1.6 GiB available",
        "Hint: Stop another model.",
        "Timeouts: start 610 s, wake 65 s, stop 900 s",
    ]


def test_status_says_that_requests_are_refused(management, bench):
    management.snapshots = [snapshot(deployment("stopped", admission_enabled=False))]

    lines = bench.run("status", "deployment", "my-model").out.splitlines()

    assert (
        "Requests: refused, it was stopped by hand; `capyctl start deployment my-model` ends that"
    ) in lines


def test_status_says_what_an_unusable_checkpoint_means(management, bench):
    digest = {"state": "pending", "diagnostic": "invalid_root"}
    management.snapshots = [snapshot(deployment("stopped", checkpoint_digest=digest))]

    out = bench.run("status", "deployment", "my-model").out

    assert "Checkpoint: pending, invalid_root: its path does not exist" in out


def test_status_says_what_is_wrong_with_a_checkpoint_in_the_machines_words(management, bench):
    digest = {"state": "unusable", "diagnostic": "checkpoint_unusable", "detail": "no cache."}
    management.snapshots = [snapshot(deployment("stopped", checkpoint_digest=digest))]

    lines = bench.run("status", "deployment", "my-model").out.splitlines()

    assert "Checkpoint: unusable, checkpoint_unusable: no cache." in lines


def test_status_in_json_is_the_record(management, bench):
    assert bench.run("status", "deployment", ID, "--json").value == deployment()


def test_watching_shows_changes_until_it_is_interrupted(management, bench):
    states = ["queued", "queued", "starting", "ready"]
    management.snapshots = [snapshot(deployment(state)) for state in states]

    def interrupt_at_the_end():
        if bench.clock.now_s >= 5:
            raise KeyboardInterrupt

    bench.clock.on_sleep = interrupt_at_the_end
    ran = bench.run("status", "deployment", "my-model", "--watch", "--json")

    assert ran.status == 0
    shown = [json.loads(line)["observed_state"] for line in ran.out.splitlines()]
    assert shown == ["queued", "starting", "ready"]


def test_inspect_shows_everything(management, bench):
    ran = bench.run("inspect", "deployment", "my-model")

    assert "timeouts:\n  request_deadline_ms: 1800000\n" in ran.out
    assert "instances:\n  [0]\n    index: 0\n    host_id: box\n" in ran.out


def test_the_effective_configuration_is_asked_for_by_name(management, bench):
    path = "/management/v1/deployments/my%20model%2F/effective-config"
    management.reads = {path: Says(200, {"revision": 1, "effective": {"a": "[redacted]"}})}

    ran = bench.run("inspect", "deployment", "my model/", "--effective-config")

    assert ran.out == "revision: 1\neffective:\n  a: [redacted]\n"


def test_what_is_not_there_is_not_found(management, bench):
    assert bench.run("inspect", "deployment", "x").status == 2
    assert bench.run("inspect", "deployment", "x", "--effective-config").status == 2


def test_a_refused_read_is_an_error(management, bench):
    management.snapshots = [refusal("unauthenticated", 401)]

    ran = bench.run("list", "deployments")

    assert (ran.status, ran.errors) == (3, ["error [unauthorized]: because"])
