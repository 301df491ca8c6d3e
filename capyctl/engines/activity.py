"""Whether an engine that is about to be ended has work: the look before the signal."""

from __future__ import annotations

import enum

from capyctl.contracts.engines import Control, Family
from capyctl.engines.http import Unreachable
from capyctl.engines.readiness import Caller

LOOK_WITHIN_S = 2.0


class Activity(enum.Enum):
    IDLE = "idle"
    """Both gauges are zero."""
    BUSY = "busy"
    """It answers, and something runs or waits in it."""
    GONE = "gone"
    """Nothing listens, or it answers 503: it may be signalled at once."""
    SILENT = "silent"
    """It listens and tells nothing; it may be signalled when the caller's bound ends."""


async def look(family: Family, control: Control) -> Activity:
    """One look, of at most 4 s."""
    try:
        health = await Caller(control=control).get("/health", within_s=LOOK_WITHIN_S, admin=True)
    except Unreachable as problem:
        return Activity.GONE if problem.why == "refused" else Activity.SILENT
    if health.status == 503:
        return Activity.GONE
    seen = await family.sample(control)
    if seen is None:
        return Activity.SILENT
    return Activity.IDLE if seen.running == 0 and seen.waiting == 0 else Activity.BUSY
