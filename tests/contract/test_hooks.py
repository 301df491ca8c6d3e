"""What HTTP alone cannot bring about: a store that hangs or fails, small limits, a daemon that is
killed between a commit and its answer, and what a refused change leaves in the database."""

from __future__ import annotations

import contextlib
import json
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import attrs
import pytest

from capyctl.api.limits import Limits
from tests.contract.fleet import Fleet, fresh_key, now_ms
from tests.contract.inside import inside
from tests.contract.rows import ULID
from tests.contract.speaking import PREFIX, Answer, Target
from tests.contract.streaming import Stream, frames_after
from tests.e2e.daemon import PROGRAM, Daemon, simulation

# -- the limits ----------------------------------------------------------------------------------


def test_the_limits_are_those_of_the_contract():
    limits = Limits()

    assert (limits.reads_max, limits.loads_max, limits.logs_max) == (2, 2, 2)
    assert (limits.changes_max, limits.evictions_max, limits.streams_max) == (2, 4, 16)
    assert (limits.body_bytes_max, limits.body_s_max, limits.answer_s_max) == (1 << 20, 5.0, 15.0)
    assert (limits.heartbeat_s, limits.stream_s_max, limits.send_s_max) == (15.0, 300.0, 5.0)


async def test_a_change_that_is_not_answered_in_time_is_504_and_found_under_its_key(tmp_path):
    async with inside(tmp_path, answer_s_max=0.3) as here:
        document, key = here.fleet.document(), fresh_key()
        here.store.hold()
        late = await here.run(here.fleet.send_create, document, key=key)
        here.store.let_go()
        found = await here.run(here.fleet.send_create, document, key=key)
        again = await here.run(here.fleet.send_create, document, key=key)
        snapshot = await here.run(here.fleet.snapshot)
        frames = await here.run(frames_after, here.target, None, snapshot["cursor"])

    assert (late.status, late.code) == (504, "deadline_exceeded")
    assert found.status == 202
    assert again.body == found.body
    assert [row["id"] for row in snapshot["deployments"]] == [found.json()["deployment_id"]]
    assert [row["action"] for row in snapshot["operations"]] == ["managed_configuration_create"]
    assert [f.kind for f in frames].count("managed_configuration_accepted") == 1


async def test_two_held_changes_keep_their_places_after_504_and_after_a_hang_up(tmp_path):
    async with inside(tmp_path, answer_s_max=0.3) as here:
        id = await here.run(here.fleet.create)
        action = await here.run(here.fleet.action, id, "stop")
        here.store.hold()
        await here.run(hang_up_on_a_create, here)
        await here.wait_held()
        late = await here.run(here.fleet.send_action, id, action, key="late")
        refused = {
            "create": await here.run(here.fleet.send_create, here.fleet.document()),
            "replace": await here.run(
                here.fleet.send_replace, id, here.fleet.document(), revision=1
            ),
            "action": await here.run(here.fleet.send_action, id, action),
            "instance": await here.run(here.fleet.send_action, id, action, index=0),
        }
        reads = [
            await here.run(here.target.ask, "GET", path)
            for path in ("/snapshot", "/metrics/load", f"/deployments/{id}/effective-config")
        ]
        here.store.let_go()
        replayed = await here.run(until_let_in, here, id, action, "late")
        names = {row["name"] for row in (await here.run(here.fleet.snapshot))["deployments"]}

    assert late.code == "deadline_exceeded"
    assert {name: answer.code for name, answer in refused.items()} == dict.fromkeys(
        refused, "queue_full"
    )
    assert [answer.status for answer in reads] == [200, 200, 200]
    assert replayed.status == 202
    assert "hung-up" in names


def hang_up_on_a_create(here):
    body = json.dumps({"config": here.fleet.document(name="hung-up"), "activate": False}).encode()
    headers = [("Idempotency-Key", "hung-up"), ("Content-Type", "application/json")]
    with here.target.connect() as connection:
        connection.send(
            here.target.request("POST", f"{PREFIX}/deployments", headers=headers, body=body)
        )


def until_let_in(here, id, action, key):
    while (answer := here.fleet.send_action(id, action, key=key)).code == "queue_full":
        pass
    return answer


async def test_four_evicting_starts_at_once_and_the_fifth_is_429(tmp_path):
    async with inside(tmp_path, answer_s_max=0.2, eviction_answer_s_max=0.2) as here:
        ids = [await here.run(here.fleet.create) for _ in range(5)]
        bodies = [await here.run(here.fleet.action, id, "start", evict=True) for id in ids]
        here.store.hold()
        codes = [
            (await here.run(here.fleet.send_action, id, body)).code
            for id, body in zip(ids, bodies, strict=True)
        ]
        other = await here.run(here.target.change, "POST", "/deployments", b"{}")
        here.store.let_go()
        await here.run(here.fleet.clear)

    assert codes == ["deadline_exceeded"] * 4 + ["queue_full"]
    assert other.code == "invalid_request"


async def test_a_store_that_fails_is_500_then_503_and_replays_still_work(tmp_path):
    async with inside(tmp_path) as here:
        document, key = here.fleet.document(), fresh_key()
        first = await here.run(here.fleet.send_create, document, key=key)
        id = first.json()["deployment_id"]
        await here.run(
            here.fleet.wait,
            id,
            lambda row: row["checkpoint_digest"]["state"] != "pending",
            what="measured",
        )
        action = await here.run(here.fleet.action, id, "stop")
        here.store.is_broken = True
        broken = await here.run(here.fleet.send_action, id, action)
        after = [
            await here.run(here.fleet.send_action, id, action),
            await here.run(here.fleet.send_create, here.fleet.document()),
            await here.run(here.fleet.send_replace, id, document, revision=1),
        ]
        replayed = await here.run(here.fleet.send_create, document, key=key)
        read = await here.run(here.target.ask, "GET", "/snapshot")

    assert (broken.status, broken.code) == (500, "internal")
    assert (
        f"The change was not stored: the disk that holds {here.database} is full" in broken.message
    )
    assert b"No space left" not in broken.body, "the error's own words are for the log"
    assert {answer.code for answer in after} == {"reconciliation_required"}
    assert all("is full" in answer.message for answer in after)
    assert replayed.body == first.body
    assert read.status == 200


async def test_a_stream_ends_in_time_without_a_last_frame_and_goes_on_from_its_id(tmp_path):
    async with inside(tmp_path, stream_s_max=0.4) as here:
        cursor = (await here.run(here.fleet.snapshot))["cursor"]
        await here.run(here.fleet.create)
        frames = await here.run(read_to_the_end, here.target, f"?after={cursor}")
        await here.run(here.fleet.create)
        more = await here.run(read_to_the_end, here.target, f"?after={frames[-1].id}")

    seqs = [frame.seq for frame in (*frames, *more)]
    assert seqs == list(range(seqs[0], seqs[0] + len(seqs)))
    assert [f.kind for f in (*frames, *more)].count("managed_configuration_accepted") == 2


def read_to_the_end(target, query):
    frames = []
    with Stream(target, query) as stream, contextlib.suppress(ValueError):
        while True:
            frames.append(stream.frame())
    return frames


async def test_a_quiet_stream_has_a_heartbeat_each_time_it_was_quiet(tmp_path):
    async with inside(tmp_path, heartbeat_s=0.1) as here:
        cursor = (await here.run(here.fleet.snapshot))["cursor"]

        def listen():
            with Stream(here.target, f"?after={cursor}") as stream:
                quiet = [stream.block(), stream.block()]
                here.fleet.create_unmeasured()
                return quiet, stream.frame().kind

        quiet, told = await here.run(listen)

    assert quiet == [b": heartbeat\n\n"] * 2
    assert told == "managed_configuration_accepted"


# -- a refused change leaves nothing -------------------------------------------------------------


def contents(database):
    """Every row of every table."""
    with contextlib.closing(sqlite3.connect(f"file:{database}?mode=ro", uri=True)) as connection:
        tables = [
            name
            for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type='table'")
        ]
        return {name: connection.execute(f"SELECT * FROM {name}").fetchall() for name in tables}


@attrs.frozen(kw_only=True)
class Scene:
    """One deployment of each kind that some refusal needs."""

    fleet: Fleet
    database: Path
    stopped: str
    ready: str
    pending: str
    wrong: str
    vast: str

    @property
    def target(self) -> Target:
        return self.fleet.target

    def send(self, method: str, path: str, body: object, **more: Any) -> Answer:
        return self.target.change(method, path, body, **more)

    def acted(self, id: str, action: str, **changes: Any) -> Answer:
        return self.fleet.send_action(id, {**self.fleet.action(id, action), **changes})

    def created(self, **changes: Any) -> Answer:
        return self.fleet.send_create({**self.fleet.document(), **changes})

    @property
    def taken(self) -> str:
        return str(self.fleet.row(self.stopped)["name"])


@pytest.fixture(scope="module")
def scene(implementation):
    target, models, daemon = implementation
    if daemon is None:
        pytest.skip("the database of another implementation is its own")
    fleet = Fleet(target, models)
    fleet.checkpoint("vast", weights_mib=100 * 1024)
    wrong = {"path": fleet.checkpoint("small"), "content_fingerprint": "sha256:" + "0" * 64}
    made = Scene(
        fleet=fleet,
        database=daemon.state / "srv.sqlite3",
        stopped=fleet.create(),
        ready=fleet.ready(),
        pending=fleet.create_unmeasured(fleet.document(model="not-there")),
        wrong=fleet.create(fleet.document(model=wrong)),
        vast=fleet.create(model="vast"),
    )
    fleet.wait(made.pending, lambda r: "diagnostic" in r["checkpoint_digest"], what="a diagnostic")
    made.fleet.act(made.stopped, "stop", key="used")
    yield made
    fleet.clear()


ACTIONS = f"/deployments/{ULID}/actions"
SOON = {"action": "stop", "expected_revision": 1, "deadline_ms": now_ms() + 600_000}
REFUSALS: dict[str, Callable[[Scene], Answer]] = {
    "unauthenticated": lambda s: s.send("POST", ACTIONS, SOON, bearer=None),
    "forbidden": lambda s: s.send("POST", ACTIONS, SOON, host="example.com"),
    "method_not_allowed": lambda s: s.send("DELETE", f"/deployments/{s.stopped}", {}),
    "body_too_large": lambda s: s.send("POST", "/deployments", b" " * (2 << 20)),
    "invalid_request": lambda s: s.acted(s.stopped, "stop", deadline_ms=1),
    "invalid_config": lambda s: s.created(colour="red"),
    "profile_not_published": lambda s: s.created(engine="nobody"),
    "host_ineligible": lambda s: s.created(host="nowhere"),
    "host_policy_denied": lambda s: s.created(placement={"selector": {"colour": "red"}}),
    "route_conflict": lambda s: s.created(name=s.taken),
    "route_conflict of a replace": lambda s: s.fleet.send_replace(
        s.ready, s.fleet.document(name=s.taken), revision=1
    ),
    "revision_conflict": lambda s: s.acted(s.stopped, "start", expected_revision=9),
    "revision_conflict of a replace": lambda s: s.fleet.send_replace(
        s.stopped, s.fleet.document(), revision=9
    ),
    "not_found": lambda s: s.send("POST", ACTIONS, SOON),
    "not_found of an instance": lambda s: s.fleet.act(s.stopped, "stop", index=9),
    "idempotency_conflict": lambda s: s.fleet.act(s.stopped, "delete", key="used"),
    "lifecycle_conflict": lambda s: s.fleet.act(s.stopped, "park"),
    "unsupported_capability": lambda s: s.fleet.act(s.stopped, "suspend"),
    "unsupported_capability of an instance": lambda s: s.fleet.act(s.stopped, "park", index=0),
    "unsupported_capability of a create": lambda s: s.send(
        "POST", "/deployments", {"config": {}, "activate": True}
    ),
    "runtime_retained": lambda s: s.fleet.act(s.ready, "start"),
    "delete_requires_cleanup": lambda s: s.fleet.act(s.ready, "delete"),
    "checkpoint_digest_pending": lambda s: s.fleet.act(s.pending, "start"),
    "checkpoint_mismatch": lambda s: s.fleet.act(s.wrong, "start"),
    "capacity_blocked": lambda s: s.fleet.act(s.vast, "start"),
    "capacity_blocked with evict": lambda s: s.fleet.act(s.vast, "start", evict=True),
}
"""By code, and where it comes from where that is not all: how to be refused with it."""


@pytest.mark.parametrize("refusal", REFUSALS)
def test_a_refused_change_leaves_every_table_as_it_was(scene, refusal):
    scene.fleet.wait_measured()
    before, cursor = contents(scene.database), scene.fleet.snapshot()["cursor"]

    answer = REFUSALS[refusal](scene)

    assert answer.code == refusal.partition(" ")[0]
    assert contents(scene.database) == before
    assert scene.fleet.snapshot()["cursor"] == cursor


def test_an_accepted_change_is_seen_in_the_tables(scene):
    before = contents(scene.database)

    scene.fleet.act(scene.stopped, "stop")

    changed = {name for name, rows in contents(scene.database).items() if rows != before[name]}
    assert {"operations", "receipts"} <= changed


# -- killed between a commit and its answer ------------------------------------------------------

KILLED = (
    """
import os, signal
from capyctl.store.sqlite_store import SqliteStore
commit = SqliteStore.commit
async def commit_and_die(self, change):
    dying = change.receipt is not None and change.receipt.key.startswith("dying")
    if dying and os.environ["CAPYCTL_TEST_DIES"] == "before":
        os.kill(os.getpid(), signal.SIGKILL)
    done = await commit(self, change)
    if dying and os.environ["CAPYCTL_TEST_DIES"] == "after":
        os.kill(os.getpid(), signal.SIGKILL)
    return done
SqliteStore.commit = commit_and_die
"""
    + PROGRAM
)


@pytest.fixture(params=["before", "after"])
def mortal(tmp_path, request):
    """A daemon that dies right before or right after the commit of a change whose key says so."""
    env = {"CAPYCTL_TEST_DIES": request.param}
    daemon = Daemon(tmp_path, simulate=simulation(), program=KILLED, env=env)
    try:
        yield daemon.start()
    finally:
        daemon.end_everything()


def of(daemon):
    target = Target(
        host="127.0.0.1",
        port=daemon.management_port,
        token=daemon.token,
        api_key=daemon.key,
        inference=("127.0.0.1", 1),
    )
    return Fleet(target, daemon.models)


@pytest.mark.parametrize("change", ["create", "replace", "stop", "start", "delete", "instance"])
def test_a_change_whose_answer_died_is_made_once(mortal, change):
    fleet = of(mortal)
    document = fleet.document(name="first")
    id = fleet.create(document)
    seq = fleet.snapshot()["cursor"]
    send = {
        "create": lambda f, _: f.send_create(fleet.document(name="second"), key="dying"),
        "replace": lambda f, _: f.send_replace(id, document, revision=1, key="dying"),
        "instance": lambda f, body: f.send_action(id, body, key="dying", index=0),
    }.get(change, lambda f, body: f.send_action(id, body, key="dying"))
    body = fleet.action(id, "stop" if change in ("create", "replace", "instance") else change)
    with pytest.raises((EOFError, OSError)):
        send(fleet, body)
    mortal.process.wait(10)
    mortal.program = PROGRAM
    fleet = of(mortal.start())
    first = send(fleet, body)
    again = send(fleet, body)
    snapshot = fleet.snapshot()
    frames = frames_after(fleet.target, seq, snapshot["cursor"])

    assert first.status == 202
    assert again.body == first.body
    own = [f for f in frames if f.fields["operation_id"] == first.json()["operation_id"]]
    assert len({f.kind for f in own}) == len(own)
    made = [row for row in snapshot["operations"] if row["id"] == first.json()["operation_id"]]
    assert len(made) == (0 if change == "instance" else 1)
    assert len(snapshot["deployments"]) == {"create": 2, "delete": 0}.get(change, 1)
    if change == "start":
        fleet.wait_ready(id)
        assert len(mortal.engines()) == 1
