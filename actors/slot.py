"""The place where at most one task waits to be woken: the cheapest way to wait that Trio has."""

from __future__ import annotations

import trio


class Slot:
    """One parked task. Waking an empty slot does nothing, so callers check their state first."""

    __slots__ = ("_task",)

    def __init__(self) -> None:
        self._task: trio.lowlevel.Task | None = None

    @property
    def is_taken(self) -> bool:
        return self._task is not None

    async def wait(self) -> None:
        """Wait until :meth:`wake`. Cancelling leaves the slot empty.

        Raises:
            trio.BusyResourceError: another task waits here.
        """
        if self._task is not None:
            raise trio.BusyResourceError("one task waits here already")
        self._task = trio.lowlevel.current_task()
        await trio.lowlevel.wait_task_rescheduled(self._abandon)

    def wake(self) -> None:
        """Let the waiting task, if there is one, run on."""
        task = self._task
        if task is not None:
            self._task = None
            trio.lowlevel.reschedule(task)

    def _abandon(self, _raise_cancel: object) -> trio.lowlevel.Abort:
        self._task = None
        return trio.lowlevel.Abort.SUCCEEDED
