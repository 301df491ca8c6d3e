"""delete: of what is stopped, or stopped first."""

from __future__ import annotations

from capyctl.cli.call import Call
from capyctl.cli.client import Client
from capyctl.cli.commands.actions import act, fields_of, record_action
from capyctl.cli.failure import CommandFailed
from capyctl.cli.journal import Request, open_request
from capyctl.cli.outcomes import HostsAway, check_hosts
from capyctl.cli.progress import Progress
from capyctl.cli.render import summary
from capyctl.cli.sending import read_snapshot, send_change
from capyctl.cli.snapshot import Row, cleanup_of, deployment_of, find_deployment
from capyctl.cli.starting import GRACE_MS
from capyctl.cli.waiting import wait_for
from capyctl.client.errors import WaitedTooLong
from capyctl.client.judging import Pending

CLEANUP_POLL_S = 0.25


def delete(call: Call) -> int:
    """`delete deployment`"""
    if call.options.stop:
        return _stop_and_delete(call)
    return act(call, "delete", call.options.deployment)


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
        check_hosts(client, row)
        return Pending(f"{row['name']} stopping, instance {', '.join(left.instances) or '-'}")

    try:
        stopped = wait_for(
            client,
            look,
            until_ms=until_ms,
            every_s=CLEANUP_POLL_S,
            progress=Progress(call.here),
        )
    except HostsAway as problem:
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
    return int(fields_of(step)["deadline_ms"])


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
