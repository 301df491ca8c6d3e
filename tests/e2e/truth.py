"""What has to be true of a daemon at rest, read from outside: its processes, memory and log."""

from __future__ import annotations

import contextlib
import json
import os
import sqlite3
import time
from pathlib import Path
from typing import Any

import attrs

from capyctl.simulated.usage import read_draws
from tests.e2e.daemon import Daemon, NotReached, wait_until
from tests.e2e.streams import Seen, events

SETTLE_S_MAX = 40.0
STILL_S = 0.3
BUGS = frozenset({"actor_failed", "actor_restarted", "request_bug"})
AT_REST = frozenset({"ready", "parked", "stopped", "failed"})
MOVING = frozenset({"starting", "waking", "parking", "stopping", "reconciling", "uncertain"})


@attrs.frozen(kw_only=True)
class Recorded:
    """One instance as the database has it."""

    id: str
    state: str
    pid: int | None
    start_ticks: int | None
    charges: dict[str, int]
    """Bytes by memory domain, of the phase it is in."""


def recorded(state: Path) -> list[Recorded]:
    """Every instance of the database."""
    path = f"file:{state / 'srv.sqlite3'}?mode=ro"
    with contextlib.closing(sqlite3.connect(path, uri=True, timeout=5.0)) as connection:
        rows = connection.execute("SELECT deployment, number, record FROM instances").fetchall()
    return [_read(f"{deployment}/{number}", json.loads(text)) for deployment, number, text in rows]


def _read(id: str, record: dict[str, Any]) -> Recorded:
    process = (record.get("launch") or {}).get("process") or {}
    held = record.get("held")
    charges: dict[str, int] = {}
    if held is not None:
        phase = held["phase"]
        charges = held["candidate"]["charges"][phase]
        if phase == "parked" and held.get("parked"):
            charges = held["parked"]
    return Recorded(
        id=id,
        state=record["state"],
        pid=process.get("pid"),
        start_ticks=process.get("start_ticks"),
        charges=charges,
    )


def settle(daemon: Daemon, *, within_s: float = SETTLE_S_MAX) -> dict[str, Any]:
    """Wait until nothing moves but what waits for memory; the snapshot of then.

    One step ends before the next begins, so nothing may move for a while.

    Raises:
        NotReached: with what still moves, and the open operations.
    """
    seen: list[dict[str, Any]] = [{}]
    still_since = [time.monotonic(), ""]

    def still() -> bool:
        seen[0] = daemon.snapshot()
        if _moving(seen[0]) or seen[0]["cursor"] != still_since[1]:
            still_since[:] = time.monotonic(), seen[0]["cursor"]
        return time.monotonic() - still_since[0] > STILL_S

    try:
        wait_until(still, what="everything is at rest", within_s=within_s)
    except NotReached as late:
        raise NotReached(f"{late}: {_moving(seen[0])}") from late
    return seen[0]


def _moving(snapshot: dict[str, Any]) -> list[str]:
    states = {
        (d["id"], one["index"]): one["observed_state"]
        for d in snapshot["deployments"]
        for one in d["instances"]
    }
    in_line = _in_line(snapshot)
    found = [
        f"{id}/{n} is {state}"
        for (id, n), state in states.items()
        if state in MOVING and (id, n) not in in_line
    ]
    queued = {id for (id, _), state in states.items() if state == "queued"}
    queued |= {id for id, _ in in_line}
    found += [
        f"{o['action']} {o['id']} of {o['deployment_id']} is {o['state']}"
        for o in snapshot["operations"]
        if o["state"] in ("pending", "running") and o["deployment_id"] not in queued
    ]
    return found


def _in_line(snapshot: dict[str, Any]) -> set[tuple[str, int]]:
    """Parked instances whose wake waits for memory: it has a reason, and was not begun."""
    return {
        (d["id"], one["index"])
        for d in snapshot["deployments"]
        for one in d["instances"]
        if one["observed_state"] == "waking"
        and (one.get("latest_operation") or {}).get("state") == "pending"
        and "insufficient" in (one["latest_operation"].get("reason") or "")
    }


def check_truth(daemon: Daemon) -> None:
    """At rest: processes are the recorded ones, memory is within its charges, no event lost."""
    check_log(daemon)
    check_processes(daemon)
    check_memory(daemon)
    seen = events(daemon)
    check_sequence(seen)
    check_chain(daemon, seen)


def check_log(daemon: Daemon) -> None:
    """No actor failed, and no request met a bug."""
    lines = [json.loads(line) for line in daemon.log_path.read_text().splitlines() if line]
    bad = [one for one in lines if one["level"] == "error" or one["event"] in BUGS]
    assert not bad, bad[:3]


def check_processes(daemon: Daemon) -> None:
    """Each engine belongs to one recorded instance, and the other way round."""
    stored = recorded(daemon.state)
    expected = {one.pid: one for one in stored if one.pid is not None}
    assert len(expected) == sum(one.pid is not None for one in stored), "a process is shared"
    living = {one.pid: one for one in daemon.engines()}
    orphans = [str(one) for pid, one in living.items() if pid not in expected]
    assert not orphans, f"engines of no record: {orphans}"
    lost = [one for pid, one in expected.items() if pid not in living]
    assert not lost, f"records of no engine: {lost}"
    for one in stored:
        empty = one.state in ("stopped", "failed", "queued")
        assert (one.pid is None) == empty, f"{one}"
        assert bool(one.charges) != empty, f"{one}"
    groups = set(living)
    strays = [one for one in daemon.processes() if one.group not in groups and not _beside(one)]
    assert not strays, f"processes of no engine: {strays}"


def _beside(process: Any) -> bool:
    """The log relay of an engine; it ends with it."""
    return "log_relay" in process.argv


def check_memory(daemon: Daemon) -> None:
    """No engine draws more than it is charged, and no card gives more than it has."""
    assert daemon.simulate is not None
    by_leader = {one.pid: one for one in recorded(daemon.state) if one.pid is not None}
    folder = daemon.state / "simulated"
    document = json.loads((folder / "document.json").read_text())
    drawn: dict[str, int] = {}
    for draw in read_draws(folder):
        with contextlib.suppress(ProcessLookupError):
            leader = os.getpgid(draw.pid)
            one = by_leader.get(leader)
            assert one is not None, f"{draw} draws for no recorded instance"
            domain = draw.gpu or "system"
            drawn[domain] = drawn.get(domain, 0) + draw.bytes
            assert draw.bytes <= one.charges.get(domain, 0), f"{draw} of {one}"
            assert draw.ram_bytes <= one.charges.get("system", 0), f"{draw} of {one}"
    for index, gpu in enumerate(document["gpus"]):
        assert drawn.get(f"gpu{index}", 0) <= gpu["memory"]


def check_sequence(seen: list[Seen]) -> None:
    """Every sequence number from the first on, once."""
    numbers = [event.seq for event in seen]
    assert numbers == list(range(1, len(numbers) + 1))


def check_chain(daemon: Daemon, seen: list[Seen]) -> None:
    """The states of each instance join without a jump, and arrive at what is shown."""
    state: dict[tuple[str, int], str] = {}
    story: dict[tuple[str, int], list[str]] = {}
    for event in seen:
        payload = event.data["payload"]
        if "from" not in payload:
            continue
        key = (payload["deployment_id"], payload["instance"])
        line = f"{event.seq} {event.kind}: {payload['from']} -> {payload['to']}"
        story.setdefault(key, []).append(line)
        assert payload["from"] == state.get(key, "stopped"), "\n".join(story[key][-12:])
        state[key] = payload["to"]
    for deployment in daemon.snapshot()["deployments"]:
        for one in deployment["instances"]:
            key = (deployment["id"], one["index"])
            shown = state.get(key, "stopped")
            told = "\n".join(story.get(key, [])[-12:])
            assert shown == one["observed_state"], f"{one['observed_state']} after\n{told}"


def wait_gone(pids: list[int], within_s: float = 10.0) -> None:
    """Wait until none of these processes lives."""
    until = time.monotonic() + within_s
    while left := [pid for pid in pids if Path(f"/proc/{pid}").exists()]:
        if time.monotonic() > until:
            raise NotReached(f"{left} still live")
        time.sleep(0.02)
