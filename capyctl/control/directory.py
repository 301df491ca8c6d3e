"""Committed state by id, and where its actors, gates and queues are. One per daemon."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import attrs

from actors import Ref
from capyctl.contracts.store import Committed, Record
from capyctl.domain.certificates import IssuedCertificate
from capyctl.domain.hosts import HostRecord, Invitation
from capyctl.domain.ids import DeploymentId, HostId, InstanceId, LaunchId
from capyctl.domain.operations import Operation
from capyctl.gates.admission import Admission, QueueBounds
from capyctl.gates.gate import Gate
from capyctl.machines.deployment import Deployment
from capyctl.machines.instance import Instance


@attrs.define(eq=False)
class Directory:
    """What is durable, as a mirror; nothing in it is ahead of the store.

    Give :meth:`apply` to the store as its first listener: whoever is told of a commit
    finds it here.
    """

    running_max: int = 32
    pending_max: int = 64
    bounds: QueueBounds = attrs.field(factory=QueueBounds)
    deployments: dict[DeploymentId, Deployment] = attrs.field(factory=dict)
    instances: dict[DeploymentId, dict[int, Instance]] = attrs.field(factory=dict)
    launches: dict[LaunchId, InstanceId] = attrs.field(factory=dict)
    """Whose each launch is, of all that the instances have now."""
    open_operations: dict[DeploymentId, dict[str, Operation]] = attrs.field(factory=dict)
    admissions: dict[DeploymentId, Admission] = attrs.field(factory=dict)
    hosts: dict[HostId, HostRecord] = attrs.field(factory=dict)
    own_host: HostId | None = None
    """The machine inside a standalone daemon, which is not among the hosts. What is on record of
    it is only whether it is drained."""
    draining: frozenset[HostId] = frozenset()
    invitations: dict[str, Invitation] = attrs.field(factory=dict)
    certificates_end_at_ms: dict[HostId, int] = attrs.field(factory=dict)
    """When the certificate of each host that lasts longest expires."""
    deployment_refs: dict[DeploymentId, Ref[Any]] = attrs.field(factory=dict)
    instance_refs: dict[InstanceId, Ref[Any]] = attrs.field(factory=dict)

    def load(self, records: Iterable[Record]) -> None:
        """What a start found in the store."""
        for record in records:
            self._put(record)

    def apply(self, batch: tuple[Committed, ...]) -> None:
        for committed in batch:
            for record in committed.change.puts:
                self._put(record)
            for gone in committed.change.removes:
                one = self.instances.get(gone.deployment, {}).pop(gone.index, None)
                self._forget_launch(one)
            if (deleted := committed.change.deleted) is not None:
                self.deployments.pop(deleted, None)
                for one in self.instances.pop(deleted, {}).values():
                    self._forget_launch(one)
                self.open_operations.pop(deleted, None)

    def _put(self, record: Record) -> None:
        match record:
            case Deployment():
                self.deployments[record.id] = record
            case Instance() if record.id.deployment in self.deployments:
                mine = self.instances.setdefault(record.id.deployment, {})
                self._forget_launch(mine.get(record.id.index))
                mine[record.id.index] = record
                if record.launch is not None:
                    self.launches[record.launch.launch] = record.id
            case Instance():
                return  # Of a deployment that is no more.
            case Operation():
                operations = self.open_operations.setdefault(record.deployment, {})
                if record.open:
                    operations[record.id] = record
                else:
                    operations.pop(record.id, None)
            case HostRecord() if record.id == self.own_host:
                self.draining = frozenset({record.id} if record.draining else ())
            case HostRecord():
                self.hosts[record.id] = record
                drained = (r.id for r in self.hosts.values() if r.draining)
                self.draining = frozenset(drained)
            case Invitation():
                self.invitations[record.id] = record
            case IssuedCertificate():
                ends = self.certificates_end_at_ms
                ends[record.host] = max(record.expires_at_ms, ends.get(record.host, 0))

    def _forget_launch(self, one: Instance | None) -> None:
        if one is not None and one.launch is not None:
            self.launches.pop(one.launch.launch, None)

    def instance(self, id: InstanceId) -> Instance:
        """The committed record; a fresh one for an instance that never was anything."""
        return self.instances.get(id.deployment, {}).get(id.index) or Instance(id=id)

    def own_record(self, id: HostId) -> HostRecord:
        """Of the machine inside a standalone daemon."""
        return HostRecord(id=id, name=id, draining=id in self.draining)

    def admission(self, id: DeploymentId) -> Admission:
        """The deployment's counter and queue; made at first use, the same ever after."""
        found = self.admissions.get(id)
        if found is None:
            found = Admission(id, self.running_max, self.pending_max, self.bounds)
            self.admissions[id] = found
        return found

    def gate(self, id: InstanceId) -> Gate:
        """The instance's gate; made at first use, the same ever after."""
        admission = self.admission(id.deployment)
        found = admission.gates.get(id.index)
        if found is None:
            found = Gate(id)
            admission.add_gate(found)
        return found

    def forget_instance(self, id: InstanceId) -> None:
        """A retired instance: its gate and ref are no more."""
        self.instance_refs.pop(id, None)
        admission = self.admissions.get(id.deployment)
        if admission is None or id.index not in admission.gates:
            return
        gate = admission.gates[id.index]
        gate.close("stop")
        gate.settle_unproven()
        if gate.held_count == 0:
            admission.remove_gate(id.index)

    def forget_deployment(self, id: DeploymentId) -> None:
        self.admissions.pop(id, None)
        self.deployment_refs.pop(id, None)
        for instance in [i for i in self.instance_refs if i.deployment == id]:
            del self.instance_refs[instance]
