"""A deployment's files: on which machines they are looked at, and what news of them comes to.

With one machine the record of the deployment is about that one; with several, about each of them.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Protocol

import attrs

from capyctl.control.measuring import Measuring, Owner
from capyctl.control.surroundings import World
from capyctl.domain.checkpoints import CheckpointFacts
from capyctl.domain.ids import HostId
from capyctl.domain.specs import DeploymentSpec, ResolvedSpec
from capyctl.machines.checkpoint import measured, sourced, unmeasured
from capyctl.machines.deployment import Deployment
from capyctl.machines.host_files import (
    hosts_looked_at,
    looked_at_again,
    measured_on,
    sourced_on,
    to_measure,
    unmeasured_on,
)
from capyctl.messages import deployment as m


class Resolver(Protocol):
    """Fits a specification to one machine, once the files are measured there."""

    def __call__(self, spec: DeploymentSpec, facts: CheckpointFacts, host: HostId) -> ResolvedSpec:
        """Raises Refused: ``profile_not_published``, or ``checkpoint_unusable`` and others when
        the figures do not work out there."""

    def path_on(self, path: str, host: HostId) -> str:
        """Where a path of a specification is on that machine, absolute."""


@attrs.define(eq=False)
class Files:
    """Of one deployment's actor, which stores what these functions return."""

    _world: World
    _resolve: Resolver
    _own_host: HostId | None
    """The one machine of a standalone daemon; None where hosts come and go."""
    _measuring: Measuring

    @classmethod
    def of(cls, owner: Owner, world: World, resolve: Resolver, own_host: HostId | None) -> Files:
        return cls(world, resolve, own_host, Measuring(owner, world, resolve.path_on))

    def news(self, data: Deployment, message: m.FilesMoved) -> Deployment:
        """The deployment after news of its files; unchanged where they are of another revision."""
        if message.revision != data.revision:
            return data
        alone = self._own_host is not None
        match message:
            case m.SourceMoved(record=record):
                return sourced(data, record) if alone else sourced_on(data, record)
            case m.CheckpointUnmeasured(host=host, diagnostic=why, detail=detail):
                if alone:
                    return unmeasured(data, why, detail)
                return unmeasured_on(data, host, why, f"{self._name(host)}: {detail}")
            case m.CheckpointMeasured(host=host, facts=facts):
                fit = self._fit(data, host)
                if alone:
                    return measured(data, facts, fit)
                return measured_on(data, host, self._name(host), facts, fit)

    def looked(self, data: Deployment, changed: frozenset[HostId] | None) -> Deployment:
        """The deployment as the machines are now; None: look at all of them."""
        if self._own_host is not None:
            return data
        hosts = self._world.directory.hosts
        return hosts_looked_at(data, hosts, partial(self._fit, data), changed=changed)

    def doubted(self, data: Deployment) -> Deployment:
        """The files did not match, and may have been restored: they are measured once more."""
        after = data if self._own_host is not None else looked_at_again(data)
        for host in self._to_measure(after):
            self._measuring.again(host)
        return after

    def measure(self, data: Deployment) -> None:
        """Have those machines measured that were not. ``data`` is what is stored."""
        self._measuring.begin(data, self._to_measure(data))

    def _to_measure(self, data: Deployment) -> tuple[HostId, ...]:
        if self._own_host is not None:
            done = data.checkpoint.facts is not None and data.resolved is not None
            return () if done else (self._own_host,)
        return tuple(host for host in to_measure(data) if host in self._world.hosts)

    def _fit(self, data: Deployment, host: HostId) -> Callable[[CheckpointFacts], ResolvedSpec]:
        return partial(self._resolve, data.spec, host=host)

    def _name(self, host: HostId) -> str:
        record = self._world.directory.hosts.get(host)
        return str(host) if record is None else record.name
