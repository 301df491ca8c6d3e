"""Processes that outlive us: spawned behind a latch, watched by identity, ended with proof."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Protocol

import attrs

from capyctl.domain.identity import ExitStatus, ProcessIdentity
from capyctl.domain.ids import DeploymentId, LaunchId


@attrs.frozen(kw_only=True)
class Command:
    """What a latch turns into once it is opened."""

    launch: LaunchId
    deployment: DeploymentId
    argv: tuple[str, ...]
    env: Mapping[str, str] = attrs.field(repr=False)
    """The complete environment; nothing is inherited."""
    cwd: str | None = None
    secrets: tuple[str, ...] = attrs.field(default=(), repr=False)
    """Strings that the log must never show."""
    raw_log: bool = False
    """Log without redaction; such a log is marked and never served."""


class SpawnFailed(Exception):
    """The latch or its log could not be started. Nothing runs."""


class Processes(Protocol):
    async def spawn(self, command: Command) -> ProcessIdentity:
        """Start a latch in a process group and session of its own, and its log relay.

        The latch does nothing but wait: it becomes ``command.argv`` on
        :meth:`open_latch` and exits with 125 if this daemon dies or discards it first.

        Raises:
            SpawnFailed: the reason in words; nothing is left running.
        """

    async def open_latch(self, launch: LaunchId) -> None:
        """Let the command run. Call only after its identity is durable.

        Raises:
            SpawnFailed: the latch is gone.
        """

    async def discard(self, launch: LaunchId) -> None:
        """End a latch that was never opened. No error if it is gone already."""

    async def wait_exit(self, process: ProcessIdentity) -> ExitStatus:
        """Return when this very process has ended. Cancelling leaves it alone."""

    def is_running(self, process: ProcessIdentity) -> bool:
        """False only when it is certain that this very process is gone."""

    def group_members(self, process: ProcessIdentity) -> tuple[int, ...]:
        """Pids in the process group that this leader opened, workers and helpers included."""

    async def members(self, process: ProcessIdentity) -> Mapping[int, ProcessIdentity]:
        """All living processes of the launch by pid, the leader among them.

        Looks at the whole of ``/proc`` in a thread: some milliseconds.
        """

    async def stranger_on(self, process: ProcessIdentity, port: int) -> int | None:
        """Pid of a process outside the launch that listens on this port.

        None when nobody listens, when one of the launch does, or when it cannot be told.
        Looks at ``/proc`` in a thread: some milliseconds.
        """

    async def end(self, process: ProcessIdentity, *, grace_s: float, proof_s: float) -> bool:
        """SIGTERM to the group, up to ``grace_s`` seconds, SIGKILL, then proof.

        Returns:
            True when no process of the group is left. False when that cannot be shown
            within ``proof_s`` after the kill: its memory must count as used.
        """

    async def log_tail(
        self,
        deployment: DeploymentId,
        launch: LaunchId,
        *,
        bytes_max: int,
        secrets: Iterable[str] = (),
    ) -> tuple[str, bool] | None:
        """Whole last lines of the launch's log and whether earlier ones were left out.

        ``secrets`` are taken out beside those the launch was spawned with.

        None when there is no log. Raises PermissionError for a raw one.
        """
