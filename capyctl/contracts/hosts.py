"""What the link and the deciding side know of each other: news of hosts, and what is on record."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Protocol

import attrs

from capyctl.domain.devices import EngineSample, MemorySample
from capyctl.domain.hosts import Compatibility, HostPublication, HostRecord
from capyctl.domain.ids import HostId, LaunchId
from capyctl.domain.launches import Endpoint, LaunchRecord


class CapabilityMissing(Exception):
    """The host's release cannot do this. Its text is ``host_capability_missing:<name>``."""

    def __init__(self, name: str) -> None:
        super().__init__(f"host_capability_missing:{name}")
        self.name = name


class HostFailed(Exception):
    """The host met an error that no contract foresees; its log says more."""


@attrs.frozen(kw_only=True)
class HostSample:
    """What a host told with one heartbeat; times are on the server's monotonic clock."""

    memory: MemorySample | None
    """None: its memory could not be looked at."""
    engines: Mapping[LaunchId, EngineSample] = attrs.field(factory=dict)
    """Of the engines that were asked for with `Host.sample_engine` lately."""


class HostEvents(Protocol):
    """Told by the link, in order. None of these may block or raise."""

    def online(
        self,
        host: HostId,
        publication: HostPublication,
        *,
        fresh: bool,
        compatibility: Compatibility,
    ) -> None:
        """Its session is live, and it ended every engine that `known_launches` did not name.

        ``fresh``: the first session of this server's run, one after the host was lost, or one
        of another host process. `Host.is_running` has the host's own word by now. False: it was
        silent for a while, and every call goes on. Told again, with ``fresh`` False, when a live
        host publishes something else.
        """

    def suspended(self, host: HostId) -> None:
        """Silent for longer than a heartbeat may be late: nothing more is dispatched to it."""

    def lost(self, host: HostId) -> None:
        """Silent for so long that what runs there is not known. Also told of enrolled hosts
        that have not come since this server began."""

    def sampled(self, host: HostId, sample: HostSample) -> None:
        """About every second while it is live."""


class HostDirectory(Protocol):
    """What the server has on record of its hosts. Reads of memory: they do not block."""

    def record(self, host: HostId) -> HostRecord | None: ...

    def known_launches(self, host: HostId) -> Sequence[LaunchRecord]:
        """Every launch on this host that is stored and not known to be gone."""


class Openings(Protocol):
    """On a host: which launches its ingress lets requests through to."""

    def open(self, launch: LaunchId, endpoint: Endpoint, *, generation: int) -> None:
        """Let requests through that name this generation, and no others.

        ``endpoint`` is the engine itself on loopback, with the launch's key.
        """

    def close(self, launch: LaunchId) -> None:
        """Let no more requests through; those inside go on. No error if it is not open."""


class Strays(Protocol):
    """On a host: engines of ours that nobody knows any more."""

    async def end_others(self, keep: Collection[LaunchId]) -> frozenset[LaunchId]:
        """End, with proof, every launch of this host that is not in ``keep``.

        Finds them by what runs, not by what is remembered: launches of an earlier process, and
        such whose journal is lost, are among them. Looks once, at the beginning, so what is
        started meanwhile is safe. Returns those that it met. Cancelling leaves the rest running.
        """
