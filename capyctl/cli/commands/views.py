"""list, status and inspect: what runs, read from the snapshot. Nothing here activates a model."""

from __future__ import annotations

import contextlib
import ipaddress
from collections.abc import Iterable
from typing import Any
from urllib.parse import quote

from capyctl.cli.call import Call
from capyctl.cli.client import Client
from capyctl.cli.failure import CommandFailed
from capyctl.cli.render import MISSING, cell, record, seconds, summary, table
from capyctl.cli.role import recorded
from capyctl.cli.sending import read_snapshot
from capyctl.cli.snapshot import NEVER_MEASURED, Row, find_deployment, some_of

WATCH_S = 1.0
GIB = 1 << 30
_LIST = ("NAME", "STATE", "READY", "REVISION", "HOSTS")
_STATUS = ("NAME", "STATE", "READY", "REVISION", "STARTUP", "INITIALIZE", "LAST OPERATION")
_INSTANCES = ("INSTANCE", "HOST", "STATE", "LIFECYCLE", "DEVICES", "LAST ERROR")
_OF_HOSTS = ("name", "state", "eligible", "ineligible_reason", "draining")
_OPERATIONS = {
    "managed_configuration_create": "create",
    "managed_configuration_replace": "replace",
    "initialize": "start",
    "ordinary_cleanup": "stop",
    "ordinary_unarmed_stop": "stop",
    "restore": "wake",
}
"""What people call an operation, where the API has another word."""


def list_deployments(call: Call) -> int:
    """`list deployments`"""
    client = call.client()
    rows = _by_name(read_snapshot(client))
    shown = client.with_host_names(rows)
    call.show({"deployments": rows}, _with_warnings(_table(shown), rows))
    return 0


def status(call: Call) -> int:
    """`status`"""
    client = call.client()
    snapshot = read_snapshot(client)
    rows = _by_name(snapshot)
    states = [str(row.get("observed_state")) for row in rows]
    counts = ", ".join(f"{states.count(state)} {state}" for state in sorted({*states}))
    role = client.role
    inference = recorded(role.state_root, "inference-address")
    authentication = recorded(role.state_root, "inference-authentication")
    hosts = _hosts_of(client)
    value = {
        "management": str(role.address),
        "inference": inference,
        "inference_authentication": authentication,
        "state_dir": str(role.state_root),
        "session_epoch": snapshot.get("session_epoch"),
        "hosts": [{name: row[name] for name in _OF_HOSTS if name in row} for row in hosts],
        "deployments": rows,
    }
    head = summary(
        f"capyctl serves {len(rows)} deployment{'' if len(rows) == 1 else 's'}"
        + (f": {counts}" if counts else ""),
        [
            ("Management", role.address),
            ("Inference", f"{inference} (no key)" if authentication == "none" else inference),
            ("State directory", role.state_root),
            *_machines(hosts),
        ],
    )
    draining = [str(row["name"]) for row in hosts if row.get("draining")]
    # A machine alone says it in its reason.
    if draining and role.kind == "server":
        head += f"\ndraining: {some_of(draining)}; `capyctl undrain host NAME` ends that"
    if authentication == "none" and inference is not None and _is_open(inference):
        head += f"\ninference: unauthenticated on {inference}"
    shown = _table(client.with_host_names(rows))
    call.show(value, f"{head}\n\n{_with_warnings(shown, rows)}" if rows else head)
    return 0


def _hosts_of(client: Client) -> list[Row]:
    """The role's machines; none where it cannot tell of them at this moment."""
    with contextlib.suppress(CommandFailed):
        return list(client.read("/hosts")["hosts"])
    return []


def _machines(hosts: list[Row]) -> list[tuple[str, str]]:
    """A line of those that take nothing; none where every one does."""
    away = [f"{row['name']} {row.get('ineligible_reason')}" for row in hosts if not row["eligible"]]
    taking = len(hosts) - len(away)
    return [("Machines", f"{taking} of {len(hosts)} take models: {some_of(away)}")] if away else []


def status_deployment(call: Call) -> int:
    """`status deployment`"""
    client = call.client()
    if not call.options.watch:
        deployment, text = _status_of(client, call)
        call.show(deployment, text)
        return 0
    shown: tuple[Any, str] | None = None
    with contextlib.suppress(KeyboardInterrupt):
        while True:
            current = _status_of(client, call)
            if shown is None or current[1] != shown[1]:
                call.show(*current)
                shown = current
            call.here.sleep(WATCH_S)
    return 0


def inspect_deployment(call: Call) -> int:
    """`inspect deployment`"""
    client = call.client()
    wanted = call.options.deployment
    if call.options.effective_config:
        found = client.read(f"/deployments/{quote(wanted, safe='')}/effective-config")
        call.show(found, record(found))
        return 0
    deployment = find_deployment(read_snapshot(client), wanted)
    call.show(deployment, record(deployment))
    return 0


def _by_name(snapshot: Row) -> list[Row]:
    rows: list[Row] = snapshot.get("deployments", [])
    return sorted(rows, key=lambda row: str(row.get("name")))


def _table(rows: Iterable[Row]) -> str:
    return table(
        _LIST,
        [
            (row["name"], row["observed_state"], _ready(row), row["revision"], _hosts(row))
            for row in rows
        ],
    )


def _with_warnings(text: str, rows: Iterable[Row]) -> str:
    """Below the table, once for all: engines whose sleep endpoints are mounted."""
    held = [row for row in rows if (row.get("development_controls") or {}).get("warning")]
    if not held:
        return text
    names = ", ".join(str(row["name"]) for row in held)
    return f"{text}\nnote: {names}: {held[0]['development_controls']['warning']}"


def _status_of(client: Client, call: Call) -> tuple[Row, str]:
    deployment = find_deployment(read_snapshot(client), call.options.deployment)
    (shown,) = client.with_host_names([deployment])
    return deployment, _status_text(shown)


def _status_text(row: Row) -> str:
    latest: Row = row.get("latest_operation") or {}
    timeouts: Row = row.get("timeouts") or {}
    startup: Row = row.get("startup") or {}
    kind = str(latest.get("kind"))
    last = f"{_OPERATIONS.get(kind, kind)} {latest.get('state')}" if latest else MISSING
    head = table(
        _STATUS,
        [
            (
                row["name"],
                row["observed_state"],
                _ready(row),
                row["revision"],
                _gib(startup.get("bytes")),
                seconds(timeouts.get("initialize_ms")),
                last,
            )
        ],
    )
    instances = table(
        _INSTANCES,
        [
            (
                one["index"],
                one.get("host_id"),
                one["observed_state"],
                one.get("lifecycle"),
                [device["id"] for device in one.get("devices") or []],
                one.get("last_error"),
            )
            for one in row.get("instances", [])
        ],
    )
    lines = [f"{name}: {text}" for name, text in _notes(row, latest) if text]
    return "\n\n".join(part for part in (head, instances, "\n".join(lines)) if part)


def _notes(row: Row, latest: Row) -> list[tuple[str, str | None]]:
    """The lines below the tables."""
    switch: Row = row.get("switch") or {}
    windows: Row = row.get("timeouts") or {}
    switching = (
        f"{switch.get('role')} of {switch.get('switch_id')}, {switch.get('phase')}, victims "
        f"{cell(switch.get('victims'))}"
    )
    controls: Row = row.get("development_controls") or {}
    return [
        ("Deployment ID", str(row["id"])),
        ("Conditions", ", ".join(row.get("conditions", []))),
        ("Requests", _refused_requests(row)),
        ("Checkpoint", _checkpoint(row)),
        (
            "Waiting",
            latest.get("reason") if latest.get("state") in ("pending", "running") else None,
        ),
        ("Failed", latest.get("reason") if latest.get("state") == "failed" else None),
        ("Hint", latest.get("hint")),
        ("Given up", "nothing more is tried" if latest.get("given_up") else None),
        ("Switch", switching if switch else None),
        ("Startup", _startup(row)),
        ("Parked", _parked(row)),
        ("Context", _context(row)),
        ("Parsers", _parsers(row)),
        (
            "Timeouts",
            f"start {seconds(windows.get('initialize_ms'))}, wake "
            f"{seconds(windows.get('wake_ms'))}, stop {seconds(windows.get('stop_ms'))}"
            if windows
            else None,
        ),
        ("Activation", row.get("activation")),
        ("Warm", "yes" if row.get("warm") else None),
        ("Note", controls.get("warning")),
    ]


def _refused_requests(row: Row) -> str | None:
    """That a stop is an operator's: a model that capyctl stopped starts with the next request."""
    if row.get("admission_enabled", True):
        return None
    return f"refused, it was stopped by hand; `capyctl start deployment {row['name']}` ends that"


def _checkpoint(row: Row) -> str | None:
    digest: Row = row.get("checkpoint_digest") or {}
    if not digest:
        return None
    parts = [str(digest.get("state"))]
    parts += [str(digest[name]) for name in ("diagnostic", "digest") if digest.get(name)]
    if digest.get("weights_bytes"):
        parts.append(f"{_gib(digest['weights_bytes'])} of weights")
    why = digest.get("detail") or NEVER_MEASURED.get(str(digest.get("diagnostic")))
    return ", ".join(parts) + (f": {why}" if why else "")


def _startup(row: Row) -> str | None:
    startup: Row = row.get("startup") or {}
    return f"{_gib(startup.get('bytes'))} ({startup.get('provenance')})" if startup else None


def _parked(row: Row) -> str | None:
    """What it keeps while parked, and whether that has grown too much."""
    parked: Row = row.get("parked") or {}
    if not parked:
        return None
    kept = [f"{_gib(held)} of {name}" for name, held in (parked.get("charges") or {}).items()]
    text = f"{', '.join(kept) or MISSING} ({parked.get('provenance')})"
    growth = parked.get("growth")
    return f"{text}; {growth}" if growth else text


def _context(row: Row) -> str | None:
    context: Row = row.get("context") or {}
    if not context:
        return None
    length = context.get("length")
    parts = ["the engine's own length" if length is None else f"{length} tokens"]
    if context.get("running_limit"):
        parts.append(f"{context['running_limit']} requests at once (state cache)")
    if context.get("warning"):
        parts.append(str(context["warning"]))
    return "; ".join(parts)


def _parsers(row: Row) -> str | None:
    """Name and source of each; the source alone where capyctl renders none."""
    parsers: Row = row.get("parsers") or {}
    kinds = (("tool_call_parser", "tools"), ("reasoning_parser", "reasoning"))
    told = [
        f"{word} {parsers[field].get('name') or 'none'} ({parsers[field].get('source')})"
        for field, word in kinds
        if field in parsers
    ]
    return ", ".join(told) or None


def _ready(row: Row) -> str:
    return f"{row.get('ready_instances')}/{row.get('desired_instances')}"


def _hosts(row: Row) -> list[str]:
    return sorted({str(one["host_id"]) for one in row.get("instances", []) if one.get("host_id")})


def _is_open(address: str) -> bool:
    """Whether others than this machine reach it."""
    host = address.rpartition(":")[0].strip("[]")
    return not ipaddress.ip_address(host).is_loopback


def _gib(value: object) -> str:
    try:
        return f"{int(str(value)) / GIB:.1f} GiB"
    except ValueError:
        return MISSING
