"""What the link tells of hosts, taken in at once; and what it may look up of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import attrs

from actors import Ref
from capyctl.contracts.hosts import HostSample
from capyctl.control.directory import Directory
from capyctl.control.sampler import take_engine_sample
from capyctl.control.sessions import SessionState
from capyctl.control.surroundings import World
from capyctl.domain.devices import EngineSample
from capyctl.domain.hosts import Compatibility, HostPublication, HostRecord
from capyctl.domain.ids import HostId, InstanceId
from capyctl.domain.launches import LaunchRecord
from capyctl.messages.hosts import HostGone, HostOnline, HostSilent
from capyctl.messages.placement import Sampled


@attrs.frozen(kw_only=True, eq=False)
class Hearing:
    """Implements `contracts.hosts.HostEvents`.

    The sessions are as the link sees them before this returns; the hosts actor is told, and may
    look at them later, or once more after a failure.
    """

    world: World
    hosts: Ref[Any]
    placement: Ref[Any]
    kept: Callable[[InstanceId, EngineSample], None] = lambda *_: None
    """Given each engine's sample, for whoever shows them."""

    def online(
        self,
        host: HostId,
        publication: HostPublication,
        *,
        fresh: bool,
        compatibility: Compatibility,
    ) -> None:
        session = self.world.sessions.expect(host, self._now_s())
        session.compatibility = compatibility
        session.fresh_due = session.fresh_due or fresh
        self._move(host, SessionState.ONLINE)
        self.world.tell(
            self.hosts,
            HostOnline(
                host=host, publication=publication, fresh=fresh, compatibility=compatibility
            ),
        )

    def suspended(self, host: HostId) -> None:
        self._move(host, SessionState.SUSPENDED)
        self.world.tell(self.hosts, HostSilent(host=host))

    def lost(self, host: HostId) -> None:
        self._move(host, SessionState.LOST)
        self.world.tell(self.hosts, HostGone(host=host))

    def sampled(self, host: HostId, sample: HostSample) -> None:
        if sample.memory is not None:
            sessions = self.world.sessions
            sessions.memory[host] = sample.memory
            if host not in sessions.untaken:
                # One at a time: a placement that is slow finds the newest, and no queue of them.
                sessions.untaken.add(host)
                self.world.tell(self.placement, Sampled(host=host, sample=sample.memory))
        for launch, found in sample.engines.items():
            instance = self.world.directory.launches.get(launch)
            if instance is not None:
                take_engine_sample(self.world, instance, found, self.kept)

    def _move(self, host: HostId, state: SessionState) -> None:
        self.world.sessions.move(host, state, self._now_s())

    def _now_s(self) -> float:
        return self.world.clock.monotonic_s()


@attrs.frozen(kw_only=True, eq=False)
class OnRecord:
    """Implements `contracts.hosts.HostDirectory` over what is committed."""

    directory: Directory

    def record(self, host: HostId) -> HostRecord | None:
        return self.directory.hosts.get(host)

    def known_launches(self, host: HostId) -> Sequence[LaunchRecord]:
        return [
            one.launch
            for mine in self.directory.instances.values()
            for one in mine.values()
            if one.launch is not None and one.host == host
        ]
