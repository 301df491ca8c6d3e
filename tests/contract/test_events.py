"""The event stream: cursors, frames byte for byte, what each change tells, and the limits."""

from __future__ import annotations

import re
import time

import pytest

from tests.contract.fleet import fresh_key
from tests.contract.rows import ULID
from tests.contract.speaking import canonical
from tests.contract.streaming import Stream, frames_after

BAD = {
    "no-sequence": f"{ULID}:",
    "no-ulid": ":1",
    "no-colon": f"{ULID}1",
    "name": "latest",
    "empty": "",
    "lower-case": f"{ULID.lower()}:1",
    "leading-zero": f"{ULID}:01",
    "negative": f"{ULID}:-1",
    "float": f"{ULID}:1.0",
    "two-colons": f"{ULID}:1:2",
    "space": f"{ULID}:1%20",
    "plus": f"{ULID}:+1",
    "too-large": f"{ULID}:9223372036854775808",
    "far-too-large": f"{ULID}:{'9' * 200}",
    "broken-escape": f"{ULID}:1%2",
    "not-utf-8": f"{ULID}:1%FF",
}
STEPS = re.compile(
    "initialize_|owned_launch|ready_committed|reconcile|ordinary_|park_|parked_|restore|residency_"
)
COMMITTED = {
    "ready_committed",
    "initialize_failed_released",
    "reconciled_committed",
    "ordinary_cleanup_completed",
    "parked_committed",
    "park_refused",
    "restored_committed",
    "restore_refused",
}


@pytest.fixture
def cursor(target):
    return target.ask("GET", "/snapshot").json()["cursor"]


def cursor_now(fleet):
    return fleet.snapshot()["cursor"]


# -- where a stream starts -----------------------------------------------------------------------


@pytest.mark.parametrize("after", BAD.values(), ids=BAD)
def test_a_malformed_cursor_is_400(target, after):
    answer = target.ask("GET", f"/events?after={after}")

    assert (answer.status, answer.code) == (400, "invalid_cursor")


@pytest.mark.parametrize("id", [v for k, v in BAD.items() if "%" not in v], ids=str)
def test_a_malformed_last_event_id_is_400(target, id):
    answer = target.ask("GET", "/events", headers=[("Last-Event-ID", id)])

    assert (answer.status, answer.code) == (400, "invalid_cursor")


@pytest.mark.parametrize("query", ["?x=1", "?after", "?After={c}", "?after={c}&x=1", "?after={c}&"])
def test_any_other_query_is_400(target, cursor, query):
    assert target.ask("GET", f"/events{query.format(c=cursor)}").code == "invalid_cursor"


def test_a_cursor_twice_is_400(target, cursor):
    answer = target.ask("GET", f"/events?after={cursor}&after={cursor}")

    assert answer.code == "invalid_cursor"


def test_two_last_event_ids_are_400(target, cursor):
    headers = [("Last-Event-ID", cursor)] * 2

    assert target.ask("GET", "/events", headers=headers).code == "invalid_cursor"


def test_two_different_points_are_400(target, cursor):
    headers = [("Last-Event-ID", f"{cursor.partition(':')[0]}:0")]

    assert target.ask("GET", f"/events?after={cursor}", headers=headers).code == "invalid_cursor"


def test_a_point_in_the_future_is_400(target, cursor):
    incarnation, _, seq = cursor.partition(":")
    ahead = f"{incarnation}:{int(seq) + 1_000_000}"

    assert target.ask("GET", f"/events?after={ahead}").code == "invalid_cursor"


@pytest.mark.parametrize("seq", ["0", "1", "9223372036854775807"])
def test_another_incarnation_is_410_and_asks_for_a_snapshot(target, seq):
    answer = target.ask("GET", f"/events?after={ULID}:{seq}")

    assert (answer.status, answer.code) == (410, "cursor_expired")
    assert answer.json()["error"]["details"] == {"resnapshot_required": True}


@pytest.mark.parametrize("how", ["query", "escaped-query", "header", "both"])
def test_a_stream_starts_after_its_cursor(stopped, how):
    fleet, id = stopped
    after = cursor_now(fleet)
    fleet.act(id, "stop", index=0)
    other = fleet.create()
    query = {"escaped-query": f"?after={after.replace(':', '%3A')}", "header": ""}.get(
        how, f"?after={after}"
    )
    headers = [("Last-Event-ID", after)] if how in ("header", "both") else []

    with Stream(fleet.target, query, headers) as stream:
        frames = stream.until(lambda frame: frame.fields["deployment_id"] == other)

    first = int(after.partition(":")[2]) + 1
    assert [frame.seq for frame in frames] == list(range(first, first + len(frames)))


def test_without_a_cursor_it_starts_at_the_oldest(target, cursor):
    frames = frames_after(target, None, cursor)

    assert frames[0].id == f"{cursor.partition(':')[0]}:1"
    assert frames[0].kind in ("coordinator_session_started", "host_resource_policy_bootstrapped")


def test_every_id_is_a_cursor_to_go_on_from(target, cursor):
    frames = frames_after(target, None, cursor)
    middle = len(frames) // 2

    rest = frames_after(target, frames[middle].id, cursor)

    assert rest == frames[middle + 1 :]


# -- how it is written ---------------------------------------------------------------------------


def test_the_stream_is_event_stream_without_a_length(target):
    with Stream(target) as stream:
        answer = stream.opening

    assert answer.values("content-type") == ["text/event-stream"]
    assert answer.values("content-length") == []


def test_a_frame_is_written_as_the_page_prints_it(stopped):
    fleet, _ = stopped
    after = cursor_now(fleet)
    id = fleet.create()
    with Stream(fleet.target, f"?after={after}") as stream:
        block = stream.block()

    found = re.fullmatch(rb"id: ([^\n]+)\nevent: ([a-z_]+)\ndata: ([^\n]+)\n\n", block)
    assert found is not None
    assert found[1].decode() == f"{after.partition(':')[0]}:{int(after.partition(':')[2]) + 1}"
    assert found[2] == b"managed_configuration_accepted"
    assert found[3].startswith(
        f'{{"api_version":"1","deployment_id":"{id}","operation_id":'.encode()
    )


def test_data_is_compact_json_with_sorted_keys(target, cursor):
    for frame in frames_after(target, None, cursor):
        assert canonical(frame.fields) == frame.text.encode()
        assert list(frame.fields) == [
            "api_version",
            "deployment_id",
            "operation_id",
            "payload",
            "recorded_at_ms",
        ]


def test_integers_in_payloads_are_strings_but_for_the_instance(target, cursor):
    for frame in frames_after(target, None, cursor):
        assert re.fullmatch("[0-9]{13}", frame.fields["recorded_at_ms"])
        for name, value in frame.payload.items():
            is_number = isinstance(value, int | float) and not isinstance(value, bool)
            assert is_number is (name == "instance"), (frame.kind, name)


def test_a_lifecycle_event_has_these_fields(target, cursor):
    for frame in frames_after(target, None, cursor):
        if STEPS.match(frame.kind):
            assert frame.payload.keys() == {
                "transition",
                "operation_id",
                "deployment_id",
                "instance",
                "from",
                "to",
                "step_id",
                "session_epoch",
                "committed_epoch",
            }
            assert frame.payload["operation_id"] == frame.fields["operation_id"]
            assert frame.payload["deployment_id"] == frame.fields["deployment_id"]
            assert (frame.payload["committed_epoch"] is not None) is (frame.kind in COMMITTED)


# -- what is told --------------------------------------------------------------------------------


def test_a_create_and_a_replace_are_told(fleet):
    after, document = cursor_now(fleet), fleet.document()
    created = fleet.send_create(document).json()
    replaced = fleet.send_replace(created["deployment_id"], document, revision=1).json()

    frames = frames_after(fleet.target, after, cursor_now(fleet))

    told = [frame for frame in frames if frame.kind == "managed_configuration_accepted"]
    assert [frame.fields["operation_id"] for frame in told] == [
        created["operation_id"],
        replaced["operation_id"],
    ]
    assert [frame.payload["revision"] for frame in told] == ["1", "2"]
    assert told[0].payload.keys() == {
        "operation_id",
        "deployment_id",
        "revision",
        "generation",
        "session_epoch",
    }


def test_a_delete_is_told(fleet):
    id = fleet.create()
    after = cursor_now(fleet)
    receipt = fleet.act(id, "delete").json()

    (frame,) = frames_after(fleet.target, after, cursor_now(fleet))

    assert frame.kind == "deployment_deleted"
    assert frame.fields["operation_id"] == receipt["operation_id"]
    assert frame.payload.keys() == {"operation_id", "deployment_id", "revision", "session_epoch"}


def test_every_state_of_a_life_is_told_and_each_begins_where_the_last_ended(fleet):
    id = fleet.create()
    after = cursor_now(fleet)
    receipts = {}
    for action, state in [
        ("start", "ready"),
        ("park", "parked"),
        ("start", "ready"),
        ("stop", "stopped"),
    ]:
        receipts[f"{action}-{state}-{len(receipts)}"] = fleet.accept(id, action)["operation_id"]
        fleet.wait_state(id, state)

    frames = frames_after(fleet.target, after, cursor_now(fleet))

    steps = [frame for frame in frames if frame.fields["deployment_id"] == id]
    states = ["stopped"]
    for frame in steps:
        assert frame.payload["from"] == states[-1], frame
        if frame.payload["to"] != states[-1]:
            states.append(frame.payload["to"])
    assert states == [
        "stopped",
        "queued",
        "starting",
        "ready",
        "parking",
        "parked",
        "waking",
        "ready",
        "stopping",
        "stopped",
    ]
    kinds = [frame.kind for frame in steps]
    for kind in ("ready_committed", "parked_committed", "restored_committed"):
        assert kinds.count(kind) == 1
    assert [kind for kind in kinds if kind.startswith("ordinary_cleanup")] == [
        "ordinary_cleanup_accepted",
        "ordinary_cleanup_armed",
        "ordinary_cleanup_completed",
    ]
    named = {frame.kind: frame.fields["operation_id"] for frame in steps}
    assert list(receipts.values()) == [
        named["ready_committed"],
        named["parked_committed"],
        named["restored_committed"],
        named["ordinary_cleanup_completed"],
    ]


def test_a_failed_launch_is_told(fleet, simulated):
    fleet.checkpoint("dies")
    id = fleet.create(model="dies")
    after = cursor_now(fleet)
    receipt = fleet.accept(id, "start")
    fleet.wait_state(id, "failed")

    frames = frames_after(fleet.target, after, cursor_now(fleet))

    told = next(frame for frame in frames if frame.kind == "initialize_failed_released")
    assert told.fields["operation_id"] == receipt["operation_id"]
    assert (told.payload["transition"], told.payload["to"]) == ("launch_failed", "failed")


@pytest.mark.parametrize("refused", ["revision", "deadline", "rules", "document"])
def test_a_refused_change_tells_nothing(stopped, refused):
    fleet, id = stopped
    fleet.wait_measured()
    before = cursor_now(fleet)
    if refused == "document":
        fleet.send_create(fleet.document(colour="red"))
    else:
        changes = {
            "revision": {"expected_revision": 9},
            "deadline": {"deadline_ms": 1},
            "rules": {"action": "park"},
        }[refused]
        answer = fleet.send_action(id, {**fleet.action(id, "stop"), **changes})
        assert answer.status >= 400

    assert cursor_now(fleet) == before


def test_a_replay_tells_nothing(stopped):
    fleet, id = stopped
    body, key = fleet.action(id, "stop"), fresh_key()
    fleet.send_action(id, body, key=key)
    fleet.wait_measured()
    before = cursor_now(fleet)

    fleet.send_action(id, body, key=key)

    assert cursor_now(fleet) == before


def test_the_events_arrive_at_what_the_snapshot_shows(fleet):
    """Replayed from the oldest event: deployments, revisions and states of instances."""
    id = fleet.ready(instances=2)
    fleet.accept(id, "stop", index=1)
    fleet.wait(id, lambda row: row["instances"][1]["observed_state"] == "stopped", what="stopped")
    snapshot = fleet.snapshot()
    revisions, states = {}, {}
    for frame in frames_after(fleet.target, None, snapshot["cursor"]):
        if frame.kind == "managed_configuration_accepted":
            revisions[frame.fields["deployment_id"]] = frame.payload["revision"]
        elif frame.kind == "deployment_deleted":
            del revisions[frame.fields["deployment_id"]]
        elif STEPS.match(frame.kind):
            place = (frame.fields["deployment_id"], frame.payload["instance"])
            assert states.get(place, "stopped") == frame.payload["from"], frame
            states[place] = frame.payload["to"]

    assert revisions == {row["id"]: row["revision"] for row in snapshot["deployments"]}
    for row in snapshot["deployments"]:
        for one in row["instances"]:
            told = states.get((row["id"], one["index"]), "stopped")
            assert told == one["observed_state"]


# -- as it goes on -------------------------------------------------------------------------------


def test_an_event_comes_as_it_is_committed(stopped):
    fleet, _ = stopped
    with Stream(fleet.target, f"?after={cursor_now(fleet)}") as stream:
        id = fleet.create()
        began = time.monotonic()

        frame = stream.frame()

    assert frame.fields["deployment_id"] == id
    assert time.monotonic() - began < 10.0, "pushed, not left to the next heartbeat"


def test_every_stream_hears_the_same(stopped):
    fleet, _ = stopped
    after = cursor_now(fleet)
    with Stream(fleet.target, f"?after={after}") as one, Stream(fleet.target) as other:
        fleet.create()
        first = one.frame()

        assert other.until(lambda frame: frame.id == first.id)[-1] == first


def test_sixteen_streams_and_the_seventeenth_is_429(stopped):
    fleet, _ = stopped
    query = f"?after={cursor_now(fleet)}"
    streams = [Stream(fleet.target, query) for _ in range(16)]
    try:
        with Stream(fleet.target, query) as seventeenth:
            refused = seventeenth.opening
        snapshot = fleet.target.ask("GET", "/snapshot")
        fleet.create()
        heard = {stream.frame().id for stream in streams}
    finally:
        for stream in streams:
            stream.__exit__()

    assert [stream.opening.status for stream in streams] == [200] * 16
    assert (refused.status, refused.code) == (429, "queue_full")
    assert snapshot.status == 200
    assert len(heard) == 1
    wait_for_a_place(fleet.target, query)


def wait_for_a_place(target, query):
    until = time.monotonic() + 30.0
    while True:
        with Stream(target, query) as stream:
            if stream.opening.status == 200:
                return
        assert time.monotonic() < until


def test_a_heartbeat_comes_after_15_quiet_seconds(target, cursor):
    with Stream(target, f"?after={cursor}", within_s=30.0) as stream:
        began = time.monotonic()
        block = stream.block()

    assert block == b": heartbeat\n\n"
    assert 14.5 <= time.monotonic() - began <= 25.0
