"""Stops the deployments that run on a profile before it is removed."""

from __future__ import annotations

from collections.abc import Sequence

from capyctl.cli.call import Call
from capyctl.cli.commands.actions import record_action
from capyctl.cli.failure import CommandFailed
from capyctl.cli.journal import open_request
from capyctl.cli.progress import Progress
from capyctl.cli.sending import read_snapshot, send_change
from capyctl.cli.snapshot import Row, cleanup_of
from capyctl.cli.waiting import wait_for
from capyctl.client.errors import WaitedTooLong
from capyctl.client.judging import Pending

DRAIN_MS_MAX = 960_000


def stop_all(call: Call, profile: str, names: Sequence[str]) -> None:
    """Stop deployments by name, and wait until nothing of them runs.

    Raises:
        CommandFailed: ``profile_in_use`` when some still run after 960 s.
    """
    client = call.client()
    intent = {"command": "engine remove", "profile": profile, "drain": True}
    request = open_request(call, client.role, intent)
    until_ms = call.here.wall_ms() + DRAIN_MS_MAX
    for row in _named(read_snapshot(client), names):
        step = f"stop-{row['id']}"
        recorded = request.stored(step) or record_action(call, request, step, "stop", row)
        try:
            send_change(client, recorded)
        except CommandFailed as failure:
            if failure.code != "lifecycle_conflict":
                raise

    def look(snapshot: Row) -> bool | Pending:
        left = [
            row["name"] for row in _named(snapshot, names) if not cleanup_of(snapshot, row).done
        ]
        return Pending(f"{', '.join(left)} stopping") if left else True

    try:
        wait_for(client, look, until_ms=until_ms, progress=Progress(call.here))
    except WaitedTooLong as problem:
        raise CommandFailed(
            "profile_in_use", f"{problem.last} still; the profile stays. Repeat the command"
        ) from None


def _named(snapshot: Row, names: Sequence[str]) -> list[Row]:
    rows: list[Row] = snapshot.get("deployments", [])
    return [row for row in rows if row.get("name") in names]
