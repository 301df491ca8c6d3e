"""`doctor host`: looks at this machine for what would keep it from being a good host."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from capyctl.cli.call import Call
from capyctl.cli.control_socket import ask_role
from capyctl.cli.failure import CommandFailed
from capyctl.cli.render import table
from capyctl.cli.role import role_document

_SHOWN = ("CHECK", "STATE", "DETAIL")
OK = "ok"
WARNING = "warning"
FAILED = "failed"


def doctor(call: Call) -> int:
    """`doctor host`. Changes nothing; asks the server for a TLS handshake, and no more."""
    from capyctl.config.host_settings import HOST
    from capyctl.config.role_document import Given
    from capyctl.daemon.examining import examine_host

    state_root = call.state_root()
    given = Given(
        env=call.here.environ,
        sets=call.options.set,
        config_path=role_document(call, state_root, HOST.kind),
    )
    found = examine_host(state_root, given, now_ms=call.here.wall_ms())
    rows: list[dict[str, Any]] = [
        {"check": one.check, "state": one.state, "detail": one.detail} for one in found
    ]
    rows.append(_running(state_root))
    failed = [row for row in rows if row["state"] == FAILED]
    call.show(
        {"checks": rows, "healthy": not failed},
        table(_SHOWN, [tuple(row.values()) for row in rows]),
    )
    if failed:
        names = ", ".join(str(row["check"]) for row in failed)
        raise CommandFailed("unhealthy", f"this machine cannot work as a host yet: {names}")
    return 0


def _running(state_root: Path) -> dict[str, Any]:
    try:
        answer = ask_role(state_root, {"action": "list"}, within_s=5.0)
    except CommandFailed as failure:
        return {"check": "role", "state": FAILED, "detail": failure.message}
    if answer is None:
        return {"check": "role", "state": WARNING, "detail": "it does not run: capyctl start host"}
    link = answer.get("link")
    if link is not None and link != "agreed":
        return {"check": "role", "state": WARNING, "detail": f"it runs; no session: {link}"}
    return {"check": "role", "state": OK, "detail": "it runs, with a session to its server"}
