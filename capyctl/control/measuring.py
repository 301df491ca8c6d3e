"""Has a deployment's files fetched and measured in the background, and tells its actor."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any, Protocol

import attrs
import trio

from actors import Ref
from capyctl.contracts.checkpoints import Unfetchable, Unmeasurable
from capyctl.control.surroundings import World
from capyctl.domain.checkpoints import (
    CheckpointFacts,
    DraftFacts,
    RemoteSource,
    SourceRecord,
    SourceState,
)
from capyctl.domain.ids import HostId
from capyctl.domain.specs import DeploymentSpec
from capyctl.machines.deployment import Deployment
from capyctl.messages import deployment as m

MEASURE_PAUSES_S = (2.0, 5.0, 15.0, 60.0)
"""Pauses between attempts; the last one repeats."""
PROGRESS_PAUSE_S = 1.0
"""Each piece of news is a commit."""


class Owner(Protocol):
    """The actor it works for."""

    @property
    def ref(self) -> Ref[Any]: ...

    def spawn(self, fn: Callable[..., Any], *args: Any) -> trio.CancelScope: ...


class Measuring:
    """At most one measurement at a time on each host: of the newest revision.

    One on a host that is away waits for it.
    """

    def __init__(self, owner: Owner, world: World, path_on: Callable[[str, HostId], str]) -> None:
        """``path_on``: where a path of a specification is on a host, absolute."""
        self._owner = owner
        self._world = world
        self._path_on = path_on
        self._scopes: dict[HostId, trio.CancelScope] = {}
        self._revision = 0

    def begin(self, data: Deployment, hosts: Collection[HostId]) -> None:
        """Measure on these hosts, and on no others; older attempts of this revision go on."""
        if data.revision != self._revision:
            self._end(self._scopes)
            self._revision = data.revision
        self._end(self._scopes.keys() - set(hosts))
        for host in hosts:
            if host not in self._scopes:
                self._scopes[host] = self._owner.spawn(
                    self._measure, host, data.revision, data.spec
                )

    def again(self, host: HostId) -> None:
        """Files that were measured may have changed: the next `begin` looks once more."""
        self._end({host} & self._scopes.keys())

    def _end(self, hosts: Collection[HostId]) -> None:
        for host in sorted(hosts):
            self._scopes.pop(host).cancel()

    async def _measure(self, host_id: HostId, revision: int, spec: DeploymentSpec) -> None:
        if spec.source is not None and not await self._fetch(host_id, revision, spec.source):
            return
        attempt = 0
        while True:
            try:
                facts = await self._measured(host_id, spec)
            except Unmeasurable as problem:
                told = m.CheckpointUnmeasured(
                    revision=revision,
                    host=host_id,
                    diagnostic=problem.diagnostic,
                    detail=problem.detail,
                )
                self._world.tell(self._owner.ref, told)
            else:
                measured = m.CheckpointMeasured(revision=revision, host=host_id, facts=facts)
                self._world.tell(self._owner.ref, measured)
                return
            await trio.sleep(_pause_s(attempt))
            attempt += 1

    async def _measured(self, host_id: HostId, spec: DeploymentSpec) -> CheckpointFacts:
        """The model's facts, and its draft's beside them."""
        host = self._world.hosts[host_id]
        model_path = self._path_on(spec.model_path, host_id)
        facts = await host.measure(
            model_path, weights_file=spec.weights_file, declared=spec.expected_digest
        )
        if spec.draft_path is None:
            return facts
        draft_path = self._path_on(spec.draft_path, host_id)
        try:
            found = await host.measure(draft_path, weights_file=None)
        except Unmeasurable as problem:
            detail = f"the draft model: {problem.detail}"
            raise Unmeasurable(problem.diagnostic, detail) from problem
        draft = DraftFacts(
            path=draft_path,
            digest=found.digest,
            weights_bytes=found.weights_bytes,
            attention=found.attention,
            attention_refused=found.attention_refused,
        )
        return attrs.evolve(facts, draft=draft)

    async def _fetch(self, host: HostId, revision: int, source: RemoteSource) -> bool:
        """Whether the files came; False when only a new revision or a new start may try again."""
        download = _Download(host=host, tell=lambda record: self._moved(revision, record))
        attempt = 0
        while True:
            before = download.record.bytes_done
            try:
                total_bytes = await self._world.hosts[host].fetch(source, download.progress)
            except Unfetchable as problem:
                download.failed(problem)
                if problem.terminal and not problem.again:
                    return False
                attempt = 0 if download.record.bytes_done > before else attempt
                pause_s = MEASURE_PAUSES_S[-1] if problem.terminal else _pause_s(attempt)
            else:
                download.verified(total_bytes)
                return True
            await trio.sleep(pause_s)
            attempt += 1

    def _moved(self, revision: int, record: SourceRecord) -> None:
        self._world.tell(self._owner.ref, m.SourceMoved(revision=revision, record=record))


class _Download:
    """What was last told of one download; figures that only grew are told once a second."""

    def __init__(self, host: HostId, tell: Callable[[SourceRecord], None]) -> None:
        self.record = SourceRecord(host=host)
        self._tell = tell
        self._told_at_s = 0.0
        self._put(self.record)

    def progress(self, bytes_done: int, bytes_total: int) -> None:
        fresh = SourceRecord(
            host=self.record.host,
            state=SourceState.DOWNLOADING,
            bytes_done=bytes_done,
            bytes_total=bytes_total,
        )
        same_state = self.record.state is SourceState.DOWNLOADING
        recent = trio.current_time() - self._told_at_s < PROGRESS_PAUSE_S
        if not (same_state and recent and fresh.bytes_total == self.record.bytes_total):
            self._put(fresh)

    def failed(self, problem: Unfetchable) -> None:
        """Failed for good, or waiting to try again."""
        self._put(
            attrs.evolve(
                self.record,
                state=SourceState.FAILED,
                reason=f"{problem.reason}: {problem.detail}",
                terminal=problem.terminal,
            )
        )

    def verified(self, total_bytes: int) -> None:
        self._put(
            SourceRecord(
                host=self.record.host,
                state=SourceState.VERIFIED,
                bytes_done=total_bytes,
                bytes_total=total_bytes,
            )
        )

    def _put(self, record: SourceRecord) -> None:
        self.record = record
        self._told_at_s = trio.current_time()
        self._tell(record)


def _pause_s(attempt: int) -> float:
    return MEASURE_PAUSES_S[min(attempt, len(MEASURE_PAUSES_S) - 1)]
