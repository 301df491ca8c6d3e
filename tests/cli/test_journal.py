"""What is sent is on disk first, and a repeated request is the same request."""

import json
import stat

import pytest

from capyctl.cli.journal import REQUESTS_KEPT_MAX
from capyctl.cli.ulids import is_ulid, new_ulid
from tests.cli.fake_management import BEGAN_MS, ID, Says, deployment, receipt, refusal, snapshot

START = ("start", "deployment", "my-model")


def record_of(bench, request_id):
    return bench.state_root / "requests" / request_id / "request.json"


def test_the_exact_bytes_are_on_disk_before_they_are_sent(management, bench):
    seen = []
    original = management._say

    def say(received):
        if received.method != "GET":
            (path,) = (bench.state_root / "requests").glob("*/request.json")
            seen.append((json.loads(path.read_text()), received))
        return original(received)

    management._say = say
    ran = bench.run(*START)

    ((held, received),) = seen
    step = held["steps"]["action"]
    assert step["body"].encode() == received.body
    assert (step["key"], step["path"]) == (received.key, received.path)
    assert held["endpoint"] == management.address
    assert "t" * 43 not in json.dumps(held)
    assert received.fields == {
        "action": "start",
        "expected_revision": 3,
        "deadline_ms": BEGAN_MS + 610_000,
    }
    assert ran.err.startswith(f"Request identity: {ran.request_id} (")


def test_the_journal_is_the_owners_alone(management, bench):
    path = record_of(bench, bench.run(*START).request_id)

    modes = [stat.S_IMODE(one.stat().st_mode) for one in (path, path.parent, path.parents[1])]
    assert modes == [0o600, 0o700, 0o700]


def test_a_repeated_request_sends_the_stored_bytes(management, bench):
    management.answers = [Says(drops=True)] * 4
    lost = bench.run(*START)
    bench.clock.now_s += 500
    management.snapshots = [snapshot(deployment(revision="9"))]
    found = bench.run(*START, "--request-id", lost.request_id)

    assert (lost.status, found.status) == (13, 0)
    assert len({one.body for one in management.changes}) == 1
    assert len({one.key for one in management.changes}) == 1


def test_a_repeated_request_is_answered_after_the_deployment_is_gone(management, bench):
    first = bench.run("delete", "deployment", "my-model")
    management.snapshots = [snapshot()]

    again = bench.run("delete", "deployment", "my-model", "--request-id", first.request_id)

    assert again.status == 0


@pytest.mark.parametrize(
    "words",
    [
        ("start", "deployment", "other"),
        ("start", "deployment", "my-model", "--evict"),
        ("stop", "deployment", "my-model"),
        ("start", "instance", "my-model/0"),
    ],
)
def test_an_identity_is_for_one_intent(management, bench, words):
    first = bench.run(*START)

    ran = bench.run(*words, "--request-id", first.request_id)

    assert ran.status == 2
    assert ran.errors[0].startswith("error [idempotency_conflict]: ")
    assert len(management.changes) == 1


def test_an_identity_is_for_one_role(management, bench):
    first = bench.run(*START)
    bench.write_credentials("u" * 43)

    ran = bench.run(*START, "--request-id", first.request_id)

    assert (ran.status, len(management.changes)) == (2, 1)


def test_a_fresh_identity_can_be_given(management, bench):
    identity = new_ulid(BEGAN_MS)

    assert bench.run(*START, "--request-id", identity).status == 0
    assert management.changes[0].key == f"{identity}-action"


@pytest.mark.parametrize("text", ["", "x", "01m5e0mpxn61stkhgz6btefvm3", "../../etc"])
def test_an_identity_is_a_ulid(management, bench, text):
    ran = bench.run(*START, "--request-id", text)

    assert ran.status == 2
    assert management.changes == []


def test_a_damaged_record_is_said(management, bench):
    first = bench.run(*START)
    record_of(bench, first.request_id).write_text("{")

    ran = bench.run(*START, "--request-id", first.request_id)

    assert (ran.status, len(management.changes)) == (13, 1)


def test_nothing_is_sent_that_cannot_be_recorded(management, bench):
    (bench.state_root / "requests").write_text("in the way")

    ran = bench.run(*START)

    assert ran.status == 13
    assert "nothing was sent" in ran.errors[0]
    assert management.changes == []


def test_the_oldest_requests_are_dropped(management, bench):
    folder = bench.state_root / "requests"
    names = [new_ulid(at_ms) for at_ms in range(1, REQUESTS_KEPT_MAX + 3)]
    for name in names:
        (folder / name).mkdir(parents=True)
        (folder / name / "request.json").write_text("{}")

    ran = bench.run(*START)

    left = sorted(one.name for one in folder.iterdir())
    assert left == [*names[3:], ran.request_id]


def test_a_refused_change_may_be_repeated(management, bench):
    management.answers = [refusal("capacity_blocked", 503, retryable=True), Says(202, receipt())]
    first = bench.run(*START)
    again = bench.run(*START, "--request-id", first.request_id)

    assert (first.status, again.status) == (4, 0)
    assert management.changes[0] == management.changes[1]


def test_ulids_sort_by_time_and_are_canonical():
    made = [new_ulid(at_ms) for at_ms in (0, 1, BEGAN_MS, (1 << 48) - 1)]

    assert made == sorted(made)
    assert all(map(is_ulid, made))
    assert made[0].startswith("0000000000")
    assert not is_ulid(ID.lower())
    assert len({new_ulid(BEGAN_MS) for _ in range(100)}) == 100
