"""The one durable memory. When a commit returns, every later start finds the change."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, TypeAlias

import attrs

from capyctl.domain.certificates import IssuedCertificate
from capyctl.domain.events import Event, NewEvent, Receipt
from capyctl.domain.hosts import HostRecord, Invitation
from capyctl.domain.ids import DeploymentId, InstanceId
from capyctl.domain.operations import Operation
from capyctl.machines.deployment import Deployment
from capyctl.machines.instance import Instance

Record: TypeAlias = Deployment | Instance | Operation | HostRecord | Invitation | IssuedCertificate


@attrs.frozen(kw_only=True)
class Change:
    """What is committed together: all of it, or nothing."""

    puts: tuple[Record, ...] = ()
    """Whole records; each replaces the one with the same id."""
    removes: tuple[InstanceId, ...] = ()
    """Instances that are no more (retired)."""
    deleted: DeploymentId | None = None
    """Remove this deployment and its instances; its operations and receipts stay."""
    receipt: Receipt | None = None
    events: tuple[NewEvent, ...] = ()


@attrs.frozen(kw_only=True)
class Committed:
    """A change and the events it became."""

    change: Change
    events: tuple[Event, ...]


@attrs.frozen(kw_only=True)
class Stored:
    """Everything a start finds."""

    incarnation: str
    session_epoch: int
    """Of this start: one more than the last one's."""
    last_seq: int
    deployments: tuple[Deployment, ...]
    instances: tuple[Instance, ...]
    operations: tuple[Operation, ...]
    """Every open one, the newest 1,000 and the latest of each deployment and instance, by id."""
    hosts: tuple[HostRecord, ...] = ()
    """By id; of a server that serves several machines."""
    invitations: tuple[Invitation, ...] = ()
    certificates: tuple[IssuedCertificate, ...] = ()
    """In the order they were issued in, as far as clocks tell."""


@attrs.frozen(kw_only=True)
class EventPage:
    events: tuple[Event, ...]
    floor_seq: int
    """Sequence of the oldest retained event; ``last_seq + 1`` when none is retained."""
    last_seq: int


class ReceiptTaken(Exception):
    """Another change was accepted under this key first. Nothing of this one was stored."""

    def __init__(self, receipt: Receipt) -> None:
        super().__init__(f"the key is taken in scope {receipt.scope}")
        self.receipt = receipt
        """The one that is stored."""


class StoreBroken(Exception):
    """The store could not commit; it takes no change until the next start.

    Reads and receipt look-ups may still work.
    """


OnCommitted: TypeAlias = Callable[[tuple[Committed, ...]], None]


class Store(Protocol):
    async def commit(self, change: Change) -> Committed:
        """Make ``change`` durable (full sync), together with others that wait.

        Listeners have seen it, in commit order, before this returns. Cancelling after
        the call began does not undo it: the change may be made all the same.

        Raises:
            ReceiptTaken: the receipt's scope and key are stored already.
            StoreBroken: nothing is certain to be stored; final.
        """

    def submit(self, change: Change) -> None:
        """Make ``change``, which only tells, durable in its place: after everything that was
        committed or submitted before it, and before or with what comes later.

        For events that no state and no answer depends on. Nobody waits; once the store is
        broken it is dropped.
        """

    def listen(self, listener: OnCommitted) -> None:
        """Call ``listener`` with each durable batch, in order, in the event loop."""

    async def find_receipt(self, scope: str, key: str) -> Receipt | None: ...

    async def read_events(
        self, after_seq: int, *, count_max: int = 64, bytes_max: int = 262_144
    ) -> EventPage:
        """Retained events strictly after ``after_seq``, oldest first; at least one if any."""

    @property
    def broken(self) -> bool:
        """True once a commit has failed."""
