"""start, stop, park, preinitialize and delete: actions on deployments and single instances."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from capyctl.cli.call import Call
from capyctl.cli.client import Client
from capyctl.cli.failure import CommandFailed
from capyctl.cli.journal import Request, Step, open_request
from capyctl.cli.progress import Progress
from capyctl.cli.render import summary
from capyctl.cli.sending import read_snapshot, send_change
from capyctl.cli.snapshot import Row, cleanup_of, deployment_of, find_deployment, window_ms
from capyctl.cli.starting import GRACE_MS, Start
from capyctl.cli.waiting import wait_for
from capyctl.client.errors import WaitedTooLong
from capyctl.client.judging import Pending
from capyctl.client.requests import PREFIX

INDEX_MAX = 63
CLEANUP_POLL_S = 0.25
_WINDOWS = {
    "stop": "stop_ms",
    "park": "stop_ms",
    "delete": "stop_ms",
    "preinitialize": "request_deadline_ms",
}
_SAID = {
    "start": "Start of {} accepted",
    "stop": "Stop of {} accepted",
    "park": "Park of {} accepted",
    "preinitialize": "Preinitialization of {} accepted",
    "delete": "Deleted {}",
}


def start(call: Call) -> int:
    """`start deployment`"""
    options = call.options
    start = open_start(call, {"command": "start deployment", "target": options.deployment})
    stored = start.request.stored("action")
    if stored is not None and not options.wait:
        show_receipt(call, "start", options.deployment, start.send({}))
        return 0
    snapshot = read_snapshot(start.client)
    deployment = find_deployment(snapshot, options.deployment)
    if not options.wait:
        show_receipt(call, "start", deployment["name"], start.send(deployment))
        return 0
    try:
        receipt, is_new = start.send_when_possible(deployment), True
    except CommandFailed as failure:
        if failure.code != "runtime_retained":
            raise
        # What is waited for is there already, and nothing was accepted for it.
        receipt, is_new = {"deployment_id": deployment["id"], "operation_id": None}, False
    show_ready(call, receipt, start.wait_until_ready(receipt), already=not is_new)
    return 0


def stop(call: Call) -> int:
    """`stop deployment`"""
    return _act(call, "stop")


def park(call: Call) -> int:
    """`park deployment`"""
    return _act(call, "park")


def preinitialize(call: Call) -> int:
    """`preinitialize deployment`"""
    return _act(call, "preinitialize")


def delete(call: Call) -> int:
    """`delete deployment`"""
    return _stop_and_delete(call) if call.options.stop else _act(call, "delete")


def start_instance(call: Call) -> int:
    """`start instance`"""
    return _act_on_instance(call, "start")


def stop_instance(call: Call) -> int:
    """`stop instance`"""
    return _act_on_instance(call, "stop")


def open_start(call: Call, intent: dict[str, Any]) -> Start:
    """A start with the options of its command, under its request identity."""
    options = call.options
    evict = bool(call.option("evict"))
    client = call.client()
    window = options.initialize_timeout
    asked = {**intent, "evict": evict, "initialize_ms": window}
    return Start(
        call=call,
        client=client,
        request=open_request(call, client.role, asked),
        evict=evict,
        initialize_ms=window,
    )


def show_receipt(call: Call, action: str, name: object, receipt: Row) -> None:
    """What an accepted action was answered with."""
    victims = receipt.get("victims")
    text = summary(
        _SAID[action].format(name),
        [
            ("Operation", receipt.get("operation_id") or "none: nothing was running"),
            ("Revision", receipt.get("revision")),
            ("Joined", "yes" if receipt.get("joined") else None),
            ("Victims", None if victims is None else victims or "none"),
            ("Switch", receipt.get("switch_id")),
        ],
    )
    call.show(dict(receipt), text)


def show_ready(call: Call, receipt: Row, deployment: Row, *, already: bool = False) -> None:
    """A deployment that was waited for; ``already``: it was ready before it was asked for."""
    ready = f"{deployment['ready_instances']}/{deployment['desired_instances']}"
    (shown,) = call.client().with_host_names([deployment])
    hosts = sorted({str(row["host_id"]) for row in shown["instances"] if row.get("host_id")})
    fields = ("observed_state", "ready_instances", "desired_instances")
    call.show(
        {**receipt, **{name: deployment.get(name) for name in fields}},
        summary(
            f"{deployment['name']} is {'already ' if already else ''}ready",
            [
                ("Deployment ID", deployment["id"]),
                ("Revision", deployment["revision"]),
                ("Hosts", hosts),
                ("Ready", ready),
                ("Operation", receipt.get("operation_id")),
                ("Victims", receipt.get("victims") or None),
            ],
        ),
    )


def record_action(
    call: Call, request: Request, name: str, action: str, deployment: Row, *, at: str = ""
) -> Step:
    """Put an action on a deployment (or, below it, ``at`` an instance) on disk."""
    window = window_ms(deployment, _WINDOWS.get(action, "initialize_ms"))
    fields = {
        "action": action,
        "expected_revision": int(deployment["revision"]),
        "deadline_ms": call.here.wall_ms() + window,
    }
    path = f"{PREFIX}/deployments/{deployment['id']}{at}/actions"
    return request.record(name, "POST", path, fields)


def _act(call: Call, action: str) -> int:
    target = call.options.deployment
    client = call.client()
    intent = {"command": f"{action} deployment", "target": target}
    request = open_request(call, client.role, intent)
    step = request.stored("action")
    if step is None:
        deployment = find_deployment(read_snapshot(client), target)
        target = deployment["name"]
        step = record_action(call, request, "action", action, deployment)
    show_receipt(call, action, target, send_change(client, step))
    return 0


def _act_on_instance(call: Call, action: str) -> int:
    wanted, index = _split(call.options.instance)
    evict = bool(call.option("evict"))
    client = call.client()
    intent = {"command": f"{action} instance", "target": call.options.instance, "evict": evict}
    request = open_request(call, client.role, intent)
    step = request.stored("action")
    name = wanted
    if step is None:
        deployment = find_deployment(read_snapshot(client), wanted)
        name = deployment["name"]
        at = f"/instances/{index}"
        step = record_action(call, request, "action", action, deployment, at=at)
        if evict:
            fields = {**_fields(step), "evict": True}
            step = request.record("action", step.method, step.path, fields)
    within_s = max(30.0, (_fields(step)["deadline_ms"] - call.here.wall_ms()) / 1000)
    receipt = send_change(client, step, within_s=within_s if evict else 30.0)
    show_receipt(call, action, f"{name}/{index}", receipt)
    return 0


def _fields(step: Step) -> dict[str, Any]:
    import json

    found = json.loads(step.body)
    assert isinstance(found, dict)
    return found


def _split(text: str) -> tuple[str, int]:
    """Deployment and index of ``my-model/0``.

    Raises:
        CommandFailed: ``invalid_request``.
    """
    name, slash, index = text.rpartition("/")
    is_index = index.isascii() and index.isdecimal() and str(int(index)) == index
    if not slash or not name or not is_index or int(index) > INDEX_MAX:
        raise CommandFailed(
            "invalid_request", f"{text}: expected <deployment>/<index>, index 0 to {INDEX_MAX}"
        )
    return name, int(index)


class _HostsAway(Exception):
    """What is left runs on hosts that are not there: waiting for them has no end in sight."""

    def __init__(self, states: Mapping[str, str]) -> None:
        self.state = next(iter(states.values()))
        self.why = ", ".join(f"host {name} is {state}" for name, state in states.items())


def _stop_and_delete(call: Call) -> int:
    target = call.options.deployment
    client = call.client()
    intent = {"command": "delete deployment", "target": target, "stop": True}
    request = open_request(call, client.role, intent)
    stored = request.stored("delete")
    if stored is not None:
        return _deleted(call, target, send_change(client, stored))
    deployment = find_deployment(read_snapshot(client), target)
    until_ms = _stop(call, client, request, deployment) + GRACE_MS
    last: list[tuple[Row, Row]] = []

    def look(snapshot: Row) -> Row | Pending:
        row = deployment_of(snapshot, deployment["id"])
        if row is None:
            raise CommandFailed("not_found", f"{deployment['name']} was deleted by someone else")
        last[:] = [(snapshot, row)]
        left = cleanup_of(snapshot, row)
        if left.done:
            return row
        away = client.away_hosts_of(row)
        if away is not None:
            raise _HostsAway(away)
        return Pending(f"{row['name']} stopping, instance {', '.join(left.instances) or '-'}")

    try:
        stopped = wait_for(
            client,
            look,
            until_ms=until_ms,
            every_s=CLEANUP_POLL_S,
            progress=Progress(call.here),
        )
    except _HostsAway as problem:
        return _cleanup_pending(call, request, deployment, last, problem.why, problem.state)
    except WaitedTooLong as problem:
        return _cleanup_pending(call, request, deployment, last, str(problem.last), "online")
    step = record_action(call, request, "delete", "delete", stopped)
    return _deleted(call, stopped["name"], send_change(client, step))


def _stop(call: Call, client: Client, request: Request, deployment: Row) -> int:
    """Ask for the stop; one that is under way already will do. Its deadline in Unix time."""
    step = request.stored("stop") or record_action(call, request, "stop", "stop", deployment)
    try:
        send_change(client, step)
    except CommandFailed as failure:
        if failure.code != "lifecycle_conflict":
            raise
    return int(_fields(step)["deadline_ms"])


def _deleted(call: Call, name: object, receipt: Row) -> int:
    text = summary(f"Deleted {name}", [("Operation", receipt.get("operation_id"))])
    call.show({**receipt, "deleted": True}, text)
    return 0


def _cleanup_pending(
    call: Call,
    request: Request,
    deployment: Row,
    last: list[tuple[Row, Row]],
    why: str,
    host_state: str,
) -> int:
    """Nothing was deleted, and nothing is wrong either: the stop goes on."""
    open_operations: list[str] = []
    if last:
        open_operations = list(cleanup_of(*last[0]).operations)
    message = (
        f"{deployment['name']} is not stopped yet ({why}); repeat the command with "
        f"--request-id {request.id} to delete it once it is"
    )
    call.show(
        {
            "deleted": False,
            "cleanup": "pending",
            "deployment_id": deployment["id"],
            "host_state": host_state if last else "unknown",
            "request_id": request.id,
            "operations": open_operations,
            "message": message,
        },
        message,
    )
    return 0
