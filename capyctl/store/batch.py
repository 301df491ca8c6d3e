"""Many changes as one: encoded where they are made, merged where they are written. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import attrs

from capyctl.contracts.store import Change, Committed, ReceiptTaken
from capyctl.domain.canonical import canonical_json
from capyctl.domain.certificates import IssuedCertificate
from capyctl.domain.events import EVENT_PAYLOAD_BYTES_MAX, Event, Receipt
from capyctl.domain.hosts import HostRecord, Invitation
from capyctl.domain.ids import DeploymentId
from capyctl.domain.operations import Operation
from capyctl.machines.deployment import Deployment
from capyctl.machines.instance import Instance
from capyctl.store.codec import Codec

DEPLOYMENTS = Codec(Deployment, table="deployments")
INSTANCES = Codec(Instance, table="instances")
OPERATIONS = Codec(Operation, table="operations")
HOSTS = Codec(HostRecord, table="hosts")
INVITATIONS = Codec(Invitation, table="invitations")
CERTIFICATES = Codec(IssuedCertificate, table="certificates")

ReceiptKey = tuple[str, str]


@attrs.frozen(kw_only=True)
class Rows:
    """Rows to write, by their keys: what a change puts, or many of them together."""

    deployments: dict[str, str] = attrs.field(factory=dict)
    instances: dict[tuple[str, int], str] = attrs.field(factory=dict)
    operations: dict[str, tuple[bool, str, str, int | None]] = attrs.field(factory=dict)
    """Whether it has ended, the record, and whose it is: a deployment's, or its instance's."""
    hosts: dict[str, str] = attrs.field(factory=dict)
    invitations: dict[str, str] = attrs.field(factory=dict)
    certificates: dict[str, str] = attrs.field(factory=dict)

    @property
    def empty(self) -> bool:
        return not any(attrs.astuple(self, recurse=False))


@attrs.frozen(kw_only=True)
class Encoded:
    """A change that is ready to be written: encoding it cannot fail any more."""

    change: Change
    rows: Rows
    payloads: tuple[str, ...]
    """Canonical JSON, one for each event."""


def encode(change: Change) -> Encoded:
    """The rows and payloads of ``change``.

    Raises:
        TypeError, ValueError: a record or payload holds what JSON cannot.
        AssertionError: a payload is over 16 KiB.
    """
    rows = Rows()
    for record in change.puts:
        match record:
            case Deployment():
                rows.deployments[record.id] = DEPLOYMENTS.to_text(record)
            case Instance():
                key = (record.id.deployment, record.id.index)
                rows.instances[key] = INSTANCES.to_text(record)
            case Operation():
                text = OPERATIONS.to_text(record)
                owner = (record.deployment, record.instance)
                rows.operations[record.id] = (not record.open, text, *owner)
            case HostRecord():
                rows.hosts[record.id] = HOSTS.to_text(record)
            case Invitation():
                rows.invitations[record.id] = INVITATIONS.to_text(record)
            case IssuedCertificate():
                rows.certificates[record.serial] = CERTIFICATES.to_text(record)
    payloads = tuple(canonical_json(event.payload) for event in change.events)
    for event, payload in zip(change.events, payloads, strict=True):
        assert isinstance(event.payload, Mapping), f"{event.kind}: the payload is no object"
        size_bytes = len(payload.encode())
        assert size_bytes <= EVENT_PAYLOAD_BYTES_MAX, f"{event.kind}: {size_bytes} bytes of payload"
    return Encoded(change=change, rows=rows, payloads=payloads)


@attrs.define
class Batch:
    """Changes merged in their order, as if each had been written by itself.

    The last put of a row counts. A delete takes away what was put before it, and nothing that
    is put after it.
    """

    stored: Mapping[ReceiptKey, Receipt]
    """Receipts that the database has for the keys of this batch."""
    next_seq: int
    recorded_at_ms: int
    rows: Rows = attrs.field(factory=Rows, init=False)
    deleted: list[DeploymentId] = attrs.field(factory=list, init=False)
    receipts: dict[ReceiptKey, Receipt] = attrs.field(factory=dict, init=False)
    events: list[Event] = attrs.field(factory=list, init=False)

    def add(self, encoded: Encoded) -> Committed | ReceiptTaken:
        """Take one change in; or nothing of it, when its receipt's key is taken."""
        receipt = encoded.change.receipt
        if receipt is not None:
            key = (receipt.scope, receipt.key)
            taken = self.stored.get(key) or self.receipts.get(key)
            if taken is not None:
                return ReceiptTaken(taken)
            self.receipts[key] = receipt
        self.rows.deployments.update(encoded.rows.deployments)
        self.rows.instances.update(encoded.rows.instances)
        self.rows.operations.update(encoded.rows.operations)
        self.rows.hosts.update(encoded.rows.hosts)
        self.rows.invitations.update(encoded.rows.invitations)
        self.rows.certificates.update(encoded.rows.certificates)
        if encoded.change.deleted is not None:
            self._delete(encoded.change.deleted)
        events = self._place(encoded)
        self.events.extend(events)
        return Committed(change=encoded.change, events=events)

    def _delete(self, deployment: DeploymentId) -> None:
        self.deleted.append(deployment)
        self.rows.deployments.pop(deployment, None)
        for key in [key for key in self.rows.instances if key[0] == deployment]:
            del self.rows.instances[key]

    def _place(self, encoded: Encoded) -> tuple[Event, ...]:
        events = []
        for new, payload in zip(encoded.change.events, encoded.payloads, strict=True):
            events.append(
                Event(
                    seq=self.next_seq,
                    kind=new.kind,
                    deployment=new.deployment,
                    operation=new.operation,
                    payload_json=payload,
                    recorded_at_ms=self.recorded_at_ms,
                )
            )
            self.next_seq += 1
        return tuple(events)

    @property
    def empty(self) -> bool:
        """Nothing to write: every change was refused, or empty."""
        written = self.deleted or self.receipts or self.events
        return self.rows.empty and not written


def receipt_keys(batch: Iterable[Encoded]) -> list[ReceiptKey]:
    """The keys that must be looked up before these changes are merged, each once."""
    receipts = (one.change.receipt for one in batch)
    return list(dict.fromkeys((r.scope, r.key) for r in receipts if r is not None))
