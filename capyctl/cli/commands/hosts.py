"""The machines of a server: invite, drain, revoke, list and inspect."""

from __future__ import annotations

import contextlib
import fcntl
import os
import stat
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import quote

from capyctl.cli.call import Call
from capyctl.cli.client import Client
from capyctl.cli.failure import CommandFailed
from capyctl.cli.journal import open_request
from capyctl.cli.paths import path_refused
from capyctl.cli.progress import Progress
from capyctl.cli.render import MISSING, record, summary, table
from capyctl.cli.sending import send_host_change
from capyctl.cli.snapshot import some_of
from capyctl.client.requests import PREFIX

Row = Mapping[str, Any]

STANDALONE = "standalone"
DRAIN_S_MAX = 960.0
DRAIN_POLL_S = 0.5
GIB = 1 << 30
_LIST = (
    "NAME", "STATE", "ELIGIBLE", "VERSION", "COMPATIBILITY", "MEMORY (FREE / TOTAL)", "ENGINES",
)  # fmt: skip
_SAID = {
    "drain": "Draining {}: nothing is placed there, and what runs there is stopped",
    "undrain": "{} is used again",
    "revoke": "Revoked {}: its session is closed and its certificate is refused for ever",
}


def invite(call: Call) -> int:
    """`invite host`"""
    options = call.options
    client = call.client()
    path = Path(options.output).absolute()
    intent = {"command": "invite host", "name": options.host, "recover": bool(options.recover)}
    request = open_request(call, client.role, intent)
    with _new_owner_file(path) as write:
        step = request.stored("invite")
        if step is None:
            fields: dict[str, Any] = {"name": options.host, "recover": bool(options.recover)}
            if options.expires is not None:
                fields["expires_in_ms"] = options.expires
            step = request.record("invite", "POST", f"{PREFIX}/invitations", fields)
        receipt = send_host_change(client, step)
        document = receipt.pop("document", None)
        if not isinstance(document, str):
            raise CommandFailed(
                "invalid_request",
                "this invitation was answered before, and its secret is shown once only: invite "
                "the host again",
            )
        write(document)
    if not options.recover:
        _say_if_revoked(call, client, options.host)
    recover = " --recover" if options.recover else ""
    call.show(
        {**receipt, "join_file": str(path)},
        summary(
            f"Invited {options.host}",
            [
                ("Join file", path),
                ("Good until", _at(receipt.get("expires_at_ms"))),
                ("Then", f"on that machine: capyctl join host{recover} --join-file FILE"),
            ],
        ),
    )
    return 0


def _say_if_revoked(call: Call, client: Client, name: str) -> None:
    try:
        known = _host(client, name)
    except CommandFailed:
        return  # The invitation is made, and this is no part of it.
    if known.get("state") == "revoked":
        call.say(
            f"note: a host {name} was revoked. This invitation is for another machine of that "
            f"name; the revoked one comes back with `capyctl invite host {name} --recover --output "
            "FILE`"
        )


def drain(call: Call) -> int:
    """`drain host` and `drain standalone`"""
    receipt, client = _act(call, "drain")
    host = _host(client, str(receipt["host_id"]))
    is_away = host["state"] not in ("online", "suspended")
    stops = "done" if host.get("drained") else "pending" if is_away else "under_way"
    if call.options.wait:
        host = _wait_drained(call, client, host)
        stops = "done"
    value = {**receipt, "stops": stops, "instances": len(host["instances"])}
    words = {
        "pending": "pending: the host is away, and stops what it runs once it is back",
        "under_way": f"under way: {_names(host)}",
        "done": "done: nothing runs there",
    }
    undone = call.options.resource
    if undone != STANDALONE:
        undone = f"host {host['name']}"
    call.show(
        value,
        summary(
            _SAID["drain"].format(host["name"]),
            [("Stops", words[stops]), ("Undo", f"capyctl undrain {undone}")],
        ),
    )
    return 0


def undrain(call: Call) -> int:
    """`undrain host` and `undrain standalone`"""
    receipt, _ = _act(call, "undrain")
    call.show(receipt, summary(_SAID["undrain"].format(receipt["host_name"])))
    return 0


def revoke(call: Call) -> int:
    """`revoke host`"""
    receipt, client = _act(call, "revoke")
    host = _host(client, str(receipt["host_id"]))
    name = receipt["host_name"]
    kept = len(host["instances"])
    call.show(
        {**receipt, "instances": kept},
        summary(
            _SAID["revoke"].format(name),
            [
                ("Still charged", f"{_names(host)}; its engines run on" if kept else None),
                ("To take it back", f"capyctl invite host {name} --recover --output FILE"),
            ],
        ),
    )
    return 0


def list_hosts(call: Call) -> int:
    """`list hosts`"""
    value = call.client().read("/hosts")
    rows: list[Row] = value["hosts"]
    lines = [table(_LIST, [_cells(row) for row in rows])] if rows else ["No host has joined yet"]
    lines += [f"warning: {row['name']}: {text}" for row in rows for text in row["warnings"]]
    call.show(value, "\n".join(lines))
    return 0


def inspect(call: Call) -> int:
    """`inspect host`"""
    host = _host(call.client(), call.options.host)
    call.show(host, record(host))
    return 0


def _act(call: Call, action: str) -> tuple[dict[str, Any], Client]:
    client = call.client()
    resource = call.options.resource
    wanted = _own_host(client) if resource == STANDALONE else call.options.host
    intent = {"command": f"{action} {resource}", "target": wanted}
    request = open_request(call, client.role, intent)
    step = request.stored("action")
    if step is None:
        id = _host(client, wanted)["host_id"]
        path = f"{PREFIX}/hosts/{id}/actions"
        step = request.record("action", "POST", path, {"action": action})
    return send_host_change(client, step), client


def _own_host(client: Client) -> str:
    """The id of the machine of a standalone role.

    Raises:
        CommandFailed: ``invalid_request``: it is a server, which has hosts.
    """
    if client.role.kind != STANDALONE:
        raise CommandFailed(
            "invalid_request",
            "this is a server: name one of its machines, as `capyctl drain host NAME`",
        )
    (own,) = client.read("/hosts")["hosts"]
    return str(own["host_id"])


def _host(client: Client, id_or_name: str) -> dict[str, Any]:
    """The machine with this id or name.

    Raises:
        CommandFailed: ``not_found``, naming what there is.
    """
    try:
        return client.read(f"/hosts/{quote(id_or_name, safe='')}")
    except CommandFailed as failure:
        if failure.code == "not_found":
            names = [str(row.get("name")) for row in client.read("/hosts")["hosts"]]
            failure.message = f"there is no host {id_or_name}; hosts: {some_of(names)}"
        raise


def _wait_drained(call: Call, client: Client, host: dict[str, Any]) -> dict[str, Any]:
    """The host once nothing holds anything there.

    Raises:
        CommandFailed: ``deadline_exceeded`` after 960 s, or ``still_stopping`` when it is away.
    """
    here = call.here
    until_ms = here.wall_ms() + round(DRAIN_S_MAX * 1000)
    progress = Progress(here)
    try:
        while not host.get("drained"):
            if here.wall_ms() >= until_ms:
                raise CommandFailed(
                    "deadline_exceeded",
                    f"{host['name']} is not empty after {DRAIN_S_MAX:.0f} s: {_names(host)}. It "
                    "goes on draining",
                )
            if host["state"] == "revoked" or host["state"] == "offline":
                raise CommandFailed(
                    "still_stopping",
                    f"{host['name']} is {host['state']} and may still run {_names(host)}: the "
                    "stops are pending until it is back",
                )
            progress.show(f"{host['name']} to be empty: {_names(host)}", until_ms)
            here.sleep(DRAIN_POLL_S)
            host = _host(client, str(host["host_id"]))
    finally:
        progress.end()
    return host


def _cells(row: Row) -> tuple[object, ...]:
    reason = row.get("ineligible_reason")
    return (
        row["name"],
        row["state"],
        "yes" if row["eligible"] else f"no ({reason})" if reason else "no",
        row.get("binary_version"),
        row.get("compatibility"),
        ", ".join(_memory(domain) for domain in row["memory"]),
        [profile["name"] for profile in row["profiles"]],
    )


def _memory(domain: Row) -> str:
    """Free is what may still be charged, and is there as far as was seen."""
    limit, charged = int(domain["managed_limit_bytes"]), int(domain["charged_bytes"])
    available = domain.get("available_bytes")
    room = max(0, limit - charged)
    if available is not None:
        room = min(room, int(available))
    total = int(domain["total_bytes"])
    return f"{domain['domain']} {room / GIB:.1f} / {total / GIB:.1f} GiB"


def _names(host: Row) -> str:
    found = [f"{one['name']}/{one['index']} {one['observed_state']}" for one in host["instances"]]
    return ", ".join(found) or "nothing"


def _at(milliseconds: object) -> str:
    import datetime

    try:
        at = datetime.datetime.fromtimestamp(int(str(milliseconds)) / 1000, datetime.UTC)
    except (ValueError, OverflowError):
        return MISSING
    return at.strftime("%Y-%m-%d %H:%M:%S UTC")


def _is_held(descriptor: int) -> bool:
    """By a command that runs; from now on by this one."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False  # A file system without locks.
    return False


def _opened_new(path: Path) -> int:
    """Raises FileExistsError: it is there, and is not what a command that was killed left empty."""
    flags = os.O_WRONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    try:
        descriptor = os.open(path, flags | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError as there:
        try:
            descriptor = os.open(path, flags)
        except OSError:
            raise there from None
    facts = os.fstat(descriptor)
    ours = stat.S_ISREG(facts.st_mode) and facts.st_uid == os.geteuid()
    if not ours or _is_held(descriptor) or os.fstat(descriptor).st_size:
        os.close(descriptor)
        raise FileExistsError
    os.fchmod(descriptor, 0o600)
    return descriptor


@contextlib.contextmanager
def _new_owner_file(path: Path) -> Iterator[Callable[[str], None]]:
    """Writes a file that only its owner reads; it is not there any more when the block fails.

    Raises:
        CommandFailed: ``invalid_request``: it is there already; ``usage``: it cannot be there;
            ``internal``: the disk failed, after an invitation was made.
    """
    try:
        descriptor = _opened_new(path)
    except FileExistsError:
        raise CommandFailed(
            "invalid_request", f"{path} is there already; name another with --output"
        ) from None
    except OSError as problem:
        raise path_refused(problem, option="--output", path=path) from problem

    def write(text: str) -> None:
        try:
            with open(descriptor, "wb", closefd=False) as file:
                file.write(text.encode())
                file.flush()
                os.fsync(descriptor)
        except OSError as problem:
            failed = path_refused(problem, option="--output", path=path)
            lost = "The secret of this invitation is lost: invite the host again"
            raise CommandFailed("internal", f"{failed.message}. {lost}") from problem

    done = False
    try:
        yield write
        done = True
    finally:
        os.close(descriptor)
        if not done:
            path.unlink(missing_ok=True)
