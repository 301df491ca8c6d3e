"""What the connections of one listener share."""

from __future__ import annotations

import attrs

from capyctl.dataplane.alarms import Alarms
from capyctl.dataplane.doors import Door
from capyctl.dataplane.head_cache import HeadCache
from capyctl.dataplane.plane import Plane
from capyctl.dataplane.poller import Poller
from capyctl.dataplane.pool import EnginePool
from capyctl.dataplane.request_ids import RequestIds


@attrs.frozen(kw_only=True, eq=False)
class Serving:
    plane: Plane
    poller: Poller
    alarms: Alarms
    pool: EnginePool
    ids: RequestIds
    heads: HeadCache
    door: Door


def begin_serving(plane: Plane, door: Door) -> Serving:
    """Everything that belongs to one run of a listener. Needs the run; `poller` and `alarms` must
    be run in it."""
    poller = Poller(plane.on_bug)
    alarms = Alarms(poller.tick)
    limits = plane.limits
    pool = EnginePool(
        poller,
        alarms,
        idle_max_s=limits.engine_idle_max_s,
        count_max=limits.engine_idle_count_max,
        hosts_tls=plane.hosts_tls,
    )
    return Serving(
        plane=plane,
        poller=poller,
        alarms=alarms,
        pool=pool,
        ids=RequestIds(),
        heads=HeadCache(limits.headers_max),
        door=door,
    )
