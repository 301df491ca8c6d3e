"""`logs`: the end of an engine's log, or where the log of one that has ended lies."""

from __future__ import annotations

import os
from pathlib import Path

from capyctl.cli.call import Call
from capyctl.cli.client import Client
from capyctl.cli.failure import CommandFailed
from capyctl.cli.sending import read_snapshot
from capyctl.cli.snapshot import Row, find_deployment, split_instance


def logs_of_deployment(call: Call) -> int:
    """`logs deployment`"""
    client = call.client()
    id, index = _meant(read_snapshot(client), call.options.deployment, call.options.instance)
    return _show(call, client, id, index)


def logs_of_instance(call: Call) -> int:
    """`logs instance`"""
    name, index = split_instance(call.options.instance)
    client = call.client()
    id = str(find_deployment(read_snapshot(client), name)["id"])
    return _show(call, client, id, index)


def _meant(snapshot: Row, wanted: str, index: int | None) -> tuple[str, int | None]:
    """Which deployment, and which instance of it where one is named: also as ``my-model/0``.

    Raises:
        CommandFailed: ``not_found``; ``usage``: two instances are named.
    """
    try:
        return str(find_deployment(snapshot, wanted)["id"]), index
    except CommandFailed:
        stated: int | None
        try:
            name, stated = split_instance(wanted)
        except CommandFailed:
            name, stated = wanted, index
        found = str(find_deployment(snapshot, name)["id"])
        if index is not None and index != stated:
            raise CommandFailed(
                "usage", f"--instance: {index} is not the instance of {wanted}; name one of them"
            ) from None
        return found, stated


def _show(call: Call, client: Client, id: str, index: int | None) -> int:
    query = f"?kib={call.options.kib}"
    if index is not None:
        query += f"&instance={index}"
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
