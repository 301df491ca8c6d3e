"""The snapshot's pieces: each deployment's JSON, rendered once when it commits, joined on read."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from typing import Any

import attrs

from capyctl.contracts.store import Committed, Record, Stored
from capyctl.domain.events import Event
from capyctl.domain.hosts import HostRecord
from capyctl.domain.ids import DeploymentId, HostId, InstanceId
from capyctl.domain.operations import Operation
from capyctl.machines.deployment import Deployment
from capyctl.machines.instance import Instance
from capyctl.telemetry.rendering import OpenSwitch, Parts, render_deployment, render_operation

ENDED_KEPT_MAX = 1000
_SWITCH_OPEN = {
    "switch_planned": "planned",
    "switch_admission_closed": "admission_closed",
    "switch_released": "released",
}


@attrs.define(eq=False)
class Fragments:
    """A mirror of the store for reads. Give :meth:`apply` to the store as a listener.

    Every commit re-renders the deployments it touches; a snapshot only joins. So reading
    one for 1,000 deployments holds the event loop for a few milliseconds at most.
    """

    incarnation: str
    session_epoch: int
    last_seq: int
    deployments: dict[DeploymentId, Deployment] = attrs.field(factory=dict)
    instances: dict[DeploymentId, dict[int, Instance]] = attrs.field(factory=dict)
    operations: dict[str, Operation] = attrs.field(factory=dict)
    switches: dict[str, OpenSwitch] = attrs.field(factory=dict)
    releases: dict[HostId, str] = attrs.field(factory=dict)
    """Versions of a server's machines that have connected."""
    _latest: dict[tuple[DeploymentId, int | None], Operation] = attrs.field(factory=dict)
    _by_deployment: dict[DeploymentId, dict[str, Operation]] = attrs.field(factory=dict)
    _rendered: dict[DeploymentId, bytes] = attrs.field(factory=dict)
    _rendered_operations: dict[str, bytes] = attrs.field(factory=dict)
    _stale: dict[DeploymentId, None] = attrs.field(factory=dict)
    _ended_count: int = 0

    @classmethod
    def from_store(cls, stored: Stored) -> Fragments:
        made = cls(
            incarnation=stored.incarnation,
            session_epoch=stored.session_epoch,
            last_seq=stored.last_seq,
        )
        records: Iterable[Record] = (
            *stored.deployments,
            *stored.instances,
            *stored.operations,
            *stored.hosts,
        )
        for record in records:
            made._put(record)
        return made

    def apply(self, batch: tuple[Committed, ...]) -> None:
        """Take in one durable batch."""
        for committed in batch:
            change = committed.change
            for record in change.puts:
                self._put(record)
            for gone in change.removes:
                self.instances.get(gone.deployment, {}).pop(gone.index, None)
                self._latest.pop((gone.deployment, gone.index), None)
                self._stale[gone.deployment] = None
            if change.deleted is not None:
                self._delete(change.deleted)
            for event in committed.events:
                self.last_seq = event.seq
                self._note_switch(event)

    def _put(self, record: Record) -> None:
        match record:
            case Deployment():
                self.deployments[record.id] = record
                self._stale[record.id] = None
            case Instance():
                self.instances.setdefault(record.id.deployment, {})[record.id.index] = record
                self._stale[record.id.deployment] = None
            case Operation():
                self._put_operation(record)
            case HostRecord():
                self._put_host(record)

    def _put_host(self, record: HostRecord) -> None:
        published = record.publication
        if published is None or self.releases.get(record.id) == published.version:
            return
        self.releases[record.id] = published.version
        self._stale.update(dict.fromkeys(self.deployments))

    def _put_operation(self, operation: Operation) -> None:
        before = self.operations.get(operation.id)
        self.operations[operation.id] = operation
        self._rendered_operations.pop(operation.id, None)
        if not operation.open and (before is None or before.open):
            self._ended_count += 1
            self._drop_oldest()
        mine = self._by_deployment.setdefault(operation.deployment, {})
        if operation.open:
            mine[operation.id] = operation
        else:
            mine.pop(operation.id, None)
        for key in ((operation.deployment, None), (operation.deployment, operation.instance)):
            latest = self._latest.get(key)
            newer = latest is None or operation.accepted_at_ms >= latest.accepted_at_ms
            if newer or (latest is not None and latest.id == operation.id):
                self._latest[key] = operation
        self._stale[operation.deployment] = None

    def _drop_oldest(self) -> None:
        while self._ended_count > ENDED_KEPT_MAX:
            oldest = next((o for o in self.operations.values() if not o.open), None)
            if oldest is None:
                return
            del self.operations[oldest.id]
            self._rendered_operations.pop(oldest.id, None)
            self._ended_count -= 1

    def _delete(self, deployment: DeploymentId) -> None:
        for mirror in (self.deployments, self.instances, self._by_deployment, self._rendered):
            mirror.pop(deployment, None)
        self._stale.pop(deployment, None)
        for key in [k for k in self._latest if k[0] == deployment]:
            del self._latest[key]

    def _note_switch(self, event: Event) -> None:
        if not event.kind.startswith("switch_"):
            return
        payload = json.loads(event.payload_json)
        id = payload["switch_id"]
        phase = _SWITCH_OPEN.get(event.kind)
        known = self.switches.pop(id, None)
        if phase is not None:
            known = OpenSwitch(
                id=id,
                target=payload["target_deployment"],
                host=payload["host"],
                victims=tuple(payload["victims"]),
                phase=phase,
                explicit=bool(payload.get("explicit", False)),
            )
            self.switches[id] = known
        if known is not None:
            self._stale[DeploymentId(known.target)] = None
            for victim in known.victims:
                self._stale[DeploymentId(victim.partition("/")[0])] = None

    # -- reads -------------------------------------------------------------------------------

    def snapshot(self) -> bytes:
        """The body of GET /snapshot, at ``<incarnation>:<last_seq>``."""
        self._refresh()
        ids = sorted(self.deployments)
        head = json.dumps(
            {
                "api_version": "1",
                "cursor": f"{self.incarnation}:{self.last_seq}",
                "ledger_epoch": str(self.session_epoch),
                "session_epoch": str(self.session_epoch),
            },
            separators=(",", ":"),
        ).encode()
        routes = sorted((id, route) for id in ids for route in self.deployments[id].spec.routes)
        rows = b",".join(_row({"deployment_id": id, "route": route}) for id, route in routes)
        return b"".join(
            (
                head[:-1],
                b',"deployments":[',
                b",".join(self._rendered[id] for id in ids),
                b'],"routes":[',
                rows,
                b'],"operations":[',
                b",".join(self._operation(id) for id in sorted(self.operations)),
                b"]}",
            )
        )

    def _refresh(self) -> None:
        for id in self._stale:
            if id in self.deployments:
                self._rendered[id] = _row(self.deployment(id))
        self._stale.clear()

    def _operation(self, id: str) -> bytes:
        found = self._rendered_operations.get(id)
        if found is None:
            found = _row(render_operation(self.operations[id]))
            self._rendered_operations[id] = found
        return found

    def deployment(self, id: DeploymentId) -> dict[str, Any]:
        """One deployment's entry in the snapshot."""
        deployment = self.deployments[id]
        parts = Parts(
            deployment=deployment,
            instances=self.instances.get(id, {}),
            open_operations=tuple(self._by_deployment.get(id, {}).values()),
            latest={index: o for (d, index), o in self._latest.items() if d == id},
            switch=self._switch_of(id),
            fingerprint=_fingerprint(deployment),
            releases=self.releases,
        )
        return render_deployment(parts)

    def _switch_of(self, id: DeploymentId) -> OpenSwitch | None:
        for switch in self.switches.values():
            if switch.target == id or any(v.partition("/")[0] == id for v in switch.victims):
                return switch
        return None

    def find(self, id_or_name: str) -> Deployment | None:
        """A deployment by id, else by name."""
        found = self.deployments.get(DeploymentId(id_or_name))
        if found is not None:
            return found
        named = (d for d in self.deployments.values() if d.spec.name == id_or_name)
        return next(named, None)

    def instance(self, id: InstanceId) -> Instance | None:
        return self.instances.get(id.deployment, {}).get(id.index)


def _row(value: Mapping[str, Any]) -> bytes:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode()


def _fingerprint(deployment: Deployment) -> str | None:
    """Names what the deployment comes to; None until its files are measured."""
    facts = deployment.checkpoint.facts
    if deployment.resolved is None or facts is None:
        return None
    text = f"{deployment.spec.engine_part}\n{deployment.resolved.engine.profile_revision}\n"
    return "sha256:" + hashlib.sha256((text + facts.digest).encode()).hexdigest()
