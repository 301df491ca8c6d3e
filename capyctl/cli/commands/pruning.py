"""prune sources: downloads that no deployment refers to any more."""

from __future__ import annotations

from typing import Any

from capyctl.cli.call import Call
from capyctl.cli.control_socket import SOCKET_NAME, ask_role
from capyctl.cli.failure import CommandFailed
from capyctl.cli.render import table

GIB = 1 << 30
_COLUMNS = ("SOURCE", "SIZE", "STATE")


def prune_sources(call: Call) -> int:
    """`prune sources`"""
    if call.options.host_config is not None:
        call.options.config = call.options.host_config
    state_root = call.state_root()
    applied = bool(call.options.apply)
    answer = ask_role(state_root, {"action": "prune_sources", "apply": applied})
    if answer is None:
        raise CommandFailed(
            "agent_unreachable",
            f"nothing listens on {state_root / SOCKET_NAME}: start capyctl, which knows what its "
            "deployments refer to",
        )
    rows: list[dict[str, Any]] = list(answer.get("sources", []))
    held_bytes = sum(int(row["bytes"]) for row in rows)
    call.show(
        {"sources": rows, "bytes": held_bytes, "removed": applied}, _text(rows, held_bytes, applied)
    )
    return 0


def _text(rows: list[dict[str, Any]], held_bytes: int, applied: bool) -> str:
    if not rows:
        return "Every download is referred to by a deployment, or there is none"
    listed = table(
        _COLUMNS,
        [
            (row["source"], _size(int(row["bytes"])), "whole" if row["complete"] else "unfinished")
            for row in rows
        ],
    )
    end = "removed" if applied else "to be had with --apply; nothing was removed"
    return f"{listed}\n{_size(held_bytes)} {end}"


def _size(value_bytes: int) -> str:
    return f"{value_bytes / GIB:.1f} GiB"
