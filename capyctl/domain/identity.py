"""Which process, beyond doubt, and how one ended."""

from __future__ import annotations

import attrs


@attrs.frozen(kw_only=True)
class ProcessIdentity:
    """A pid alone is reused; boot id, pid and start time together are not."""

    pid: int
    boot_id: str
    start_ticks: int
    """Field 22 of ``/proc/<pid>/stat``: clock ticks from boot to the start of the process."""


@attrs.frozen(kw_only=True)
class ExitStatus:
    """How a process ended, as far as it can be known."""

    exit_code: int | None
    """Negative is the number of the signal that ended it; None when it was not our child."""
    worker_pid: int | None = None
    """A worker that held the model ended first, this one."""
    out_of_memory: bool = False
    """The kernel ended something of ours for want of host memory just before."""

    def __str__(self) -> str:
        if self.out_of_memory:
            return f"{self._plainly()}: the kernel ended it for want of memory"
        return self._plainly()

    def _plainly(self) -> str:
        if self.worker_pid is not None:
            return f"its worker process {self.worker_pid} ended"
        if self.exit_code == 0:
            return "exit code 0, although nothing had told it to end"
        if self.exit_code is None:
            return "exit status unknown"
        if self.exit_code < 0:
            return f"signal {-self.exit_code}"
        return f"exit code {self.exit_code}"
