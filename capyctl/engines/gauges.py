"""What runs and waits in an engine, by the gauges of its `/metrics`."""

from __future__ import annotations

import attrs

from capyctl.engines.http import Unreachable
from capyctl.engines.prometheus import highest, read_metrics, total
from capyctl.engines.readiness import Caller

SAMPLE_WITHIN_S = 2.0


@attrs.frozen(kw_only=True)
class GaugeNames:
    """How one family calls them."""

    running: str
    waiting: str
    kv_usage: str | None = None
    """None: it has no gauge of its cache."""


@attrs.frozen(kw_only=True)
class Gauges:
    """Summed over data-parallel engines; the highest use of a cache."""

    running: int
    waiting: int
    kv_usage_ratio: float | None


async def read_gauges(caller: Caller, names: GaugeNames) -> Gauges | None:
    """One look of at most 2 s; None where a figure is missing or makes no sense."""
    wanted = {names.running, names.waiting, *([names.kv_usage] if names.kv_usage else ())}
    try:
        reply = await caller.get("/metrics", within_s=SAMPLE_WITHIN_S)
        if reply.status != 200:
            return None
        found = read_metrics(reply.body.decode(errors="replace"), wanted)
    except (Unreachable, ValueError):
        return None
    running, waiting = total(found, names.running), total(found, names.waiting)
    if running is None or waiting is None or running < 0 or waiting < 0:
        return None
    return Gauges(
        running=round(running),
        waiting=round(waiting),
        kv_usage_ratio=highest(found, names.kv_usage) if names.kv_usage else None,
    )
