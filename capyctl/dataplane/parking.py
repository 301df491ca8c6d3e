"""Where one task waits for callbacks: cheap, and no ring is lost."""

from __future__ import annotations

import trio


class Bell:
    """Rung by callbacks, heard by one task. Rings between two waits come to one.

    `wait` may return with nothing changed: its caller looks again in a loop. Cancelling the
    wait changes nothing.
    """

    __slots__ = ("_rung", "_task")

    def __init__(self) -> None:
        self._task: trio.lowlevel.Task | None = None
        self._rung = False

    def ring(self) -> None:
        self._rung = True
        task = self._task
        if task is not None:
            self._task = None
            trio.lowlevel.reschedule(task)

    async def wait(self) -> None:
        if not self._rung:
            assert self._task is None, "two tasks wait at one bell"
            self._task = trio.lowlevel.current_task()
            await trio.lowlevel.wait_task_rescheduled(self._abort)
        self._rung = False

    def _abort(self, _: object) -> trio.lowlevel.Abort:
        self._task = None
        return trio.lowlevel.Abort.SUCCEEDED
