"""Whether the kernel has just ended something for want of memory, by its own count."""

from __future__ import annotations

from collections import deque

import attrs

from capyctl.domain.devices import MemorySample
from capyctl.domain.identity import ExitStatus

RECENT_S = 15.0
"""An engine of several processes takes some seconds to end after one of them was killed."""
SIGKILL_CODES = frozenset({-9, 137})
"""How a process that was killed ends, and a shell around one."""


@attrs.define(eq=False)
class MemoryKills:
    """Counts of the last looks at a machine. One per host."""

    _counts: deque[tuple[float, int]] = attrs.field(factory=deque)

    def note(self, sample: MemorySample) -> None:
        if sample.oom_kill_count is None:
            return
        self._counts.append((sample.at_s, sample.oom_kill_count))
        while self._counts[0][0] < sample.at_s - RECENT_S:
            self._counts.popleft()

    def recent(self, now: MemorySample) -> bool:
        """Whether the count of ``now`` is above that of any look of the last 15 s."""
        if now.oom_kill_count is None:
            return False
        since_s = now.at_s - RECENT_S
        return any(at_s >= since_s and n < now.oom_kill_count for at_s, n in self._counts)


def may_be_killed(status: ExitStatus) -> bool:
    """Whether an engine that ended like this may have lost a process to SIGKILL.

    vLLM's leader ends with code 0 when a worker is gone.
    """
    return status.worker_pid is not None or status.exit_code in (*SIGKILL_CODES, 0)
