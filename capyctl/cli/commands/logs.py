"""`logs deployment`: the end of an engine's log, or where the log of one that has ended lies."""

from __future__ import annotations

import os
from pathlib import Path

from capyctl.cli.call import Call
from capyctl.cli.failure import CommandFailed
from capyctl.cli.sending import read_snapshot
from capyctl.cli.snapshot import find_deployment


def logs_of_deployment(call: Call) -> int:
    """`logs deployment`"""
    options = call.options
    client = call.client()
    id = str(find_deployment(read_snapshot(client), options.deployment)["id"])
    query = f"?kib={options.kib}"
    if options.instance is not None:
        query += f"&instance={options.instance}"
    try:
        found = client.read(f"/deployments/{id}/engine-log{query}")
    except CommandFailed as failure:
        path = _newest(client.role.state_root / "logs" / id)
        if failure.code == "not_found" and path is not None:
            failure.message += f"; the log of the last launch is {path}"
        raise
    call.show(found, str(found["text"]).rstrip("\n"))
    return 0


def _newest(folder: Path) -> Path | None:
    """The log of the last launch: launches are named by ULIDs, which sort by time."""
    try:
        names = sorted(name for name in os.listdir(folder) if name.endswith(".log"))
    except OSError:
        return None
    return folder / names[-1] if names else None
