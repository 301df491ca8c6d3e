"""start, stop, park and preinitialize: actions on deployments and single instances."""

from __future__ import annotations

import contextlib
from typing import Any

import attrs

from capyctl.cli.call import Call
from capyctl.cli.client import Client
from capyctl.cli.failure import CommandFailed
from capyctl.cli.journal import Request, Step, open_request
from capyctl.cli.outcomes import OUTCOMES, HostsAway, check_hosts
from capyctl.cli.progress import Progress
from capyctl.cli.render import summary
from capyctl.cli.sending import read_snapshot, send_change
from capyctl.cli.snapshot import (
    Row,
    deployment_of,
    find_deployment,
    only,
    split_instance,
    window_ms,
)
from capyctl.cli.starting import GRACE_MS, Start
from capyctl.cli.waiting import wait_for
from capyctl.client.errors import WaitedTooLong
from capyctl.client.judging import Pending
from capyctl.client.requests import PREFIX

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
_DONE = {"stop": "stopped", "park": "parked", "preinitialize": "parked"}
"""What each makes of it, where no request wakes it again."""


def start(call: Call) -> int:
    """`start deployment`"""
    options = call.options
    start = open_start(call, {"command": "start deployment", "target": options.deployment})
    return _start(call, start, options.deployment)


def _start(call: Call, start: Start, target: str) -> int:
    at = "" if start.index is None else f"/{start.index}"
    stored = start.request.stored("action")
    if stored is not None and not call.options.wait:
        show_receipt(call, "start", f"{target}{at}", start.send({}))
        return 0
    deployment = find_deployment(read_snapshot(start.client), target)
    if not call.options.wait:
        show_receipt(call, "start", f"{deployment['name']}{at}", start.send(deployment))
        return 0
    try:
        receipt, is_new = start.send_when_possible(deployment), True
    except CommandFailed as failure:
        if failure.code != "runtime_retained":
            raise
        # What is waited for is there already, and nothing was accepted for it.
        receipt, is_new = {"deployment_id": deployment["id"], "operation_id": None}, False
    ready = start.wait_until_ready(receipt)
    show_ready(call, receipt, ready, already=not is_new, index=start.index)
    return 0


def stop(call: Call) -> int:
    """`stop deployment`"""
    return act(call, "stop", call.options.deployment)


def park(call: Call) -> int:
    """`park deployment`"""
    return act(call, "park", call.options.deployment)


def preinitialize(call: Call) -> int:
    """`preinitialize deployment`"""
    return act(call, "preinitialize", call.options.deployment)


def start_instance(call: Call) -> int:
    """`start instance`"""
    target, index = split_instance(call.options.instance)
    intent = {"command": "start instance", "target": call.options.instance}
    start = attrs.evolve(open_start(call, intent), index=index)
    return _start(call, start, target)


def stop_instance(call: Call) -> int:
    """`stop instance`"""
    target = call.options.instance
    return act(
        call, "stop", *split_instance(target), intent={"command": "stop instance", "target": target}
    )


def open_start(call: Call, intent: dict[str, Any]) -> Start:
    """A start with the options of its command, under its request identity."""
    evict = bool(call.option("evict"))
    client = call.client()
    window = call.option("initialize_timeout")
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
    text = summary(
        _SAID[action].format(name),
        [
            ("Operation", receipt.get("operation_id") or "none: nothing was running"),
            ("Revision", receipt.get("revision")),
            ("Joined", "yes" if receipt.get("joined") else None),
            ("Victims", _victims(call, receipt)),
            ("Switch", receipt.get("switch_id")),
        ],
    )
    call.show(dict(receipt), text)


def show_ready(
    call: Call, receipt: Row, deployment: Row, *, already: bool = False, index: int | None = None
) -> None:
    """A start that was waited for; ``already``: it was ready before it was asked for."""
    said = f"{deployment['name']} is {'already ' if already else ''}ready"
    show_done(call, receipt, deployment, said, index=index)


def show_done(
    call: Call, receipt: Row, deployment: Row, said: str, *, index: int | None = None
) -> None:
    """An action that was waited for; ``index``: of this instance of the deployment alone."""
    (shown,) = call.client().with_host_names([deployment])
    hosts = sorted({str(row["host_id"]) for row in shown["instances"] if row.get("host_id")})
    if index is None:
        fields = ("observed_state", "ready_instances", "desired_instances")
        states = {name: deployment.get(name) for name in fields}
        ready = f"{deployment['ready_instances']}/{deployment['desired_instances']}"
    else:
        states = {"observed_state": deployment["instances"][0]["observed_state"]}
        ready = None
    call.show(
        {**receipt, **states},
        summary(
            said,
            [
                ("Deployment ID", deployment["id"]),
                ("Revision", deployment["revision"]),
                ("Hosts", hosts or None),
                ("Ready", ready),
                ("Operation", receipt.get("operation_id")),
                ("Victims", _victims(call, receipt) if receipt.get("victims") else None),
            ],
        ),
    )


def _victims(call: Call, receipt: Row) -> list[str] | str | None:
    """Who gives its room up, by name where that can be had."""
    victims = receipt.get("victims")
    if not victims:
        return None if victims is None else "none"
    names: dict[str, str] = {}
    with contextlib.suppress(CommandFailed):
        rows = read_snapshot(call.client())["deployments"]
        names = {row["id"]: row["name"] for row in rows}
    parted = [victim.partition("/") for victim in victims]
    return [f"{names.get(id, id)}/{index}" for id, _, index in parted]


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


def act(
    call: Call,
    action: str,
    target: str,
    index: int | None = None,
    *,
    intent: dict[str, Any] | None = None,
) -> int:
    at = "" if index is None else f"/{index}"
    client = call.client()
    intent = intent or {"command": f"{action} deployment", "target": target}
    request = open_request(call, client.role, intent)
    step = request.stored("action")
    name = target
    if step is None:
        deployment = find_deployment(read_snapshot(client), target)
        name = deployment["name"]
        below = "" if index is None else f"/instances/{index}"
        step = record_action(call, request, "action", action, deployment, at=below)
    receipt = send_change(client, step)
    if not call.option("wait"):
        show_receipt(call, action, f"{name}{at}", receipt)
        return 0
    done = _wait_for(call, client, action, receipt, index, step)
    state = done["observed_state"] if index is None else done["instances"][0]["observed_state"]
    word = "is" if state == _DONE[action] else "was"
    show_done(call, receipt, done, f"{done['name']} {word} {_DONE[action]}", index=index)
    return 0


def _wait_for(
    call: Call, client: Client, action: str, receipt: Row, index: int | None, step: Step
) -> Row:
    """The deployment once the action is done.

    Raises:
        CommandFailed: ``operation_failed``; ``deadline_exceeded`` when its deadline passes first;
            ``still_stopping`` where all that is left to stop is on hosts that are away.
    """
    judge = OUTCOMES[action]
    id, operation = str(receipt["deployment_id"]), receipt.get("operation_id")

    def look(snapshot: Row) -> Row | Pending:
        found = judge(snapshot, id, operation, index)
        row = deployment_of(snapshot, id)
        if action == "stop" and isinstance(found, Pending) and row is not None:
            check_hosts(client, row if index is None else only(row, index))
        return found

    until_ms = fields_of(step)["deadline_ms"] + GRACE_MS
    try:
        return wait_for(client, look, until_ms=until_ms, progress=Progress(call.here))
    except HostsAway as problem:
        raise CommandFailed(
            "still_stopping",
            f"{problem.name} is not stopped yet: {problem.why}; the stop is pending until it is "
            "back",
        ) from None
    except WaitedTooLong as problem:
        raise CommandFailed(
            "deadline_exceeded", f"not done by the deadline: {problem.last}. It goes on"
        ) from None


def fields_of(step: Step) -> dict[str, Any]:
    import json

    found = json.loads(step.body)
    assert isinstance(found, dict)
    return found
