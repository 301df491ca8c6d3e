"""The management API as commands use it: `capyctl.client`, with failures in the command's words."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

from capyctl.cli.failure import CommandFailed
from capyctl.cli.role import Role
from capyctl.cli.surroundings import Surroundings
from capyctl.client import sync
from capyctl.client.errors import ClientError, NotTheApi, RefusedByApi, Unanswered, WaitedTooLong
from capyctl.client.judging import Pending
from capyctl.client.models import Event, Snapshot
from capyctl.client.requests import PREFIX, Change
from capyctl.client.retrying import Retries

ANSWER_S_MAX = sync.ANSWER_S_MAX
READS = Retries(attempts_max=6, pause_s=0.1, waits_for_role=False)
CHANGES = Retries(
    attempts_max=4,
    pause_s=1.0,
    codes=frozenset({"queue_full", "deadline_exceeded"}),
    waits_for_role=False,
)
"""Other refusals that a retry can lift are the user's to wait for, or a ``--wait``'s."""
AWAY = frozenset({"offline", "revoked"})
T = TypeVar("T")


class Client:
    """One role's management API."""

    def __init__(self, role: Role, here: Surroundings | None = None) -> None:
        """``here``: whose clock and pauses are used."""
        self.role = role
        here = Surroundings() if here is None else here
        address = role.address
        self._api = sync.Client(
            host=address.host,
            port=address.port,
            token=role.token,
            sleep=here.sleep,
            wall_ms=here.wall_ms,
        )

    def get(self, path: str) -> dict[str, Any]:
        """The body of a read, asked for once. ``path`` follows the prefix. Raises CommandFailed."""
        with self._translated():
            return self._api.get(f"{PREFIX}{path}")

    def read(self, path: str) -> dict[str, Any]:
        """A read, again while the API is busy.

        Raises:
            CommandFailed: refused, or ``management_unavailable``.
        """
        with self._translated():
            return self._api.read(f"{PREFIX}{path}", retries=READS)

    def with_host_names(self, rows: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
        """Deployments of a snapshot as people read them: with the names of hosts for their ids.

        On a standalone machine they are the same. Raises CommandFailed.
        """
        if self.role.kind != "server" or not rows:
            return list(rows)
        names = {host["host_id"]: host["name"] for host in self.read("/hosts")["hosts"]}
        return [
            {
                **row,
                "instances": [
                    {**one, "host_id": names.get(one.get("host_id"), one.get("host_id"))}
                    for one in row.get("instances", [])
                ],
            }
            for row in rows
        ]

    def away_hosts_of(self, row: Mapping[str, Any]) -> dict[str, str] | None:
        """States by name of the hosts of what still runs of a deployment, where none of these
        hosts is there; None where one is, and on a standalone machine. Raises CommandFailed."""
        if self.role.kind != "server":
            return None
        left = {
            one.get("host_id")
            for one in row.get("instances", [])
            if one.get("observed_state") not in ("stopped", "failed")
        }
        hosts = [host for host in self.read("/hosts")["hosts"] if host["host_id"] in left]
        away = {host["name"]: host["state"] for host in hosts if host["state"] in AWAY}
        return away if away and len(away) == len(left) else None

    def send_change(
        self, change: Change, *, within_s: float = ANSWER_S_MAX, retries: Retries = CHANGES
    ) -> dict[str, Any]:
        """The receipt of a change; while it stays unanswered, the same key and bytes again.

        Raises:
            CommandFailed: refused, or ``management_unavailable``, ``deadline_exceeded`` after
                the last attempt: it may have been made, and its key finds out.
        """
        with self._translated():
            return dict(self._api.send_change(change, retries=retries, within_s=within_s).raw)

    def send_host_change(self, change: Change) -> dict[str, Any]:
        """As `send_change`, of a change of hosts."""
        with self._translated():
            return self._api.send_raw(change, retries=CHANGES)

    def follow(self, after: str, *, retries: Retries) -> Iterator[Snapshot | Event]:
        """Events after a cursor, for ever. Raises CommandFailed once there were enough attempts."""
        with self._translated():
            yield from self._api.follow(after, retries=retries)

    def wait(
        self,
        look: Callable[[Mapping[str, Any]], T | Pending],
        *,
        until_ms: int,
        every_s: float,
        on_wait: Callable[[str], object],
    ) -> T:
        """As `sync.Client.wait_raw`.

        Raises:
            WaitedTooLong: the bound came first.
            CommandFailed: whatever ``look`` raises, and a read that is refused for good.
        """
        with self._translated():
            return self._api.wait_raw(look, until_ms=until_ms, every_s=every_s, on_wait=on_wait)

    @contextlib.contextmanager
    def _translated(self) -> Iterator[None]:
        try:
            yield
        except WaitedTooLong:
            raise
        except ClientError as problem:
            raise self._failure(problem) from problem

    def _failure(self, problem: ClientError) -> CommandFailed:
        if isinstance(problem, RefusedByApi):
            return CommandFailed(
                "unauthorized" if problem.code == "unauthenticated" else problem.code,
                problem.message,
                details=problem.details,
                retryable=problem.retryable,
            )
        if isinstance(problem, Unanswered):
            return self._unanswered(problem)
        is_retryable = isinstance(problem, NotTheApi) and problem.retryable
        return CommandFailed("internal", str(problem), retryable=is_retryable)

    def _unanswered(self, problem: Unanswered) -> CommandFailed:
        role = self.role
        if problem.sent:
            message = f"capyctl at {role.address} did not answer: {problem}"
        else:
            message = (
                f"nothing answers at {role.address} ({role.address_source}): {problem}. The state "
                f"directory is {role.state_root} ({role.state_root_source}): start its role with "
                f"`capyctl start {role.kind}`, or name another one with --state-dir"
            )
        return CommandFailed("management_unavailable", message, retryable=True)
