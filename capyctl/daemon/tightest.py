"""The bounds of a server's queues: the tightest that any of its hosts publishes, read anew."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import attrs
import trio

from capyctl.control.directory import Directory
from capyctl.domain.hosts import HostRecord, HostState, QueueLimits

EVERY_S = 5.0


def tightest(hosts: Iterable[HostRecord], *, bytes_max: int | None = None) -> QueueLimits:
    """Of every enrolled host that has connected; the defaults while there is none.

    ``bytes_max``: what the server's own document says of waiting bodies.
    """
    stated = [
        record.publication.queue
        for record in hosts
        if record.state is HostState.ENROLLED and record.publication is not None
    ]
    found = QueueLimits()
    if stated:
        names = [field.name for field in attrs.fields(QueueLimits)]
        found = QueueLimits(**{name: min(getattr(one, name) for one in stated) for name in names})
    if bytes_max is not None:
        found = attrs.evolve(found, buffered_bytes_max=min(found.buffered_bytes_max, bytes_max))
    return found


async def keep_tightest(
    directory: Directory,
    *,
    bytes_max: int | None,
    now_s: Callable[[], float],
    changed: Callable[[QueueLimits], None],
) -> None:
    """Apply them to every queue whenever they change, until cancelled."""
    applied: QueueLimits | None = None
    while True:
        found = tightest(directory.hosts.values(), bytes_max=bytes_max)
        if found != applied:
            apply_limits(directory, found, now_s())
            changed(found)
            applied = found
        await trio.sleep(EVERY_S)


def apply_limits(directory: Directory, limits: QueueLimits, now_s: float) -> None:
    """To deployments that are there and to those that come. Who waits may be let in by it."""
    directory.running_max = limits.running_per_deployment_max
    directory.pending_max = limits.pending_per_deployment_max
    directory.bounds.total_max = limits.pending_total_max
    directory.bounds.bytes_max = limits.buffered_bytes_max
    for admission in list(directory.admissions.values()):
        admission.running_max = limits.running_per_deployment_max
        admission.pending_max = limits.pending_per_deployment_max
        admission.serve_waiting(now_s)
