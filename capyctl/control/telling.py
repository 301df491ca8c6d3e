"""A store whose events say the states that are shown before and after their own change."""

from __future__ import annotations

import attrs
import trio

from capyctl.contracts.store import (
    Change,
    Committed,
    EventPage,
    OnCommitted,
    ReceiptTaken,
    Store,
)
from capyctl.control.directory import Directory
from capyctl.domain.events import NewEvent, Receipt
from capyctl.domain.ids import DeploymentId, InstanceId
from capyctl.machines.deployment import Deployment, Picture
from capyctl.machines.instance import Instance
from capyctl.machines.observed import observed_instance


class TellingStore:
    """Implements `contracts.store.Store` in front of another one, for the control actors.

    Two actors write about one instance: its own, and its deployment's, which accepts. Each
    decides on what is durable, and the other's change may be on its way to the disk by then.
    So ``from`` and ``to`` are set here, where the order of the changes is known: they join
    without a jump whatever raced.
    """

    def __init__(self, inner: Store, committed: Directory) -> None:
        """``committed``: loaded, and a listener of ``inner`` already."""
        self._inner = inner
        self._committed = committed
        self._ahead = Directory()
        """As ``committed``, and what is on its way to the disk."""
        self._on_their_way: dict[int, Change] = {}
        """By identity, in their order."""
        self._begin_again()
        inner.listen(self._arrived)

    async def commit(self, change: Change) -> Committed:
        await trio.lowlevel.checkpoint_if_cancelled()
        told = self._tell(change)
        self._on_their_way[id(told)] = told
        try:
            return await self._inner.commit(told)
        except ReceiptTaken:
            # Nothing of it was stored, so nothing of it is to be told from.
            self._on_their_way.pop(id(told), None)
            self._begin_again()
            raise

    def submit(self, change: Change) -> None:
        told = self._tell(change)
        self._on_their_way[id(told)] = told
        self._inner.submit(told)

    def _arrived(self, batch: tuple[Committed, ...]) -> None:
        for committed in batch:
            self._on_their_way.pop(id(committed.change), None)

    def _begin_again(self) -> None:
        known, ahead = self._committed, self._ahead
        ahead.deployments = dict(known.deployments)
        ahead.instances = {d: dict(mine) for d, mine in known.instances.items()}
        ahead.open_operations = {d: dict(mine) for d, mine in known.open_operations.items()}
        for change in self._on_their_way.values():
            ahead.apply((Committed(change=change, events=()),))

    def _tell(self, change: Change) -> Change:
        """No await: changes reach the inner store in the order in which they are told."""
        change = self._without_orphans(change)
        places = [_place(event) for event in change.events]
        before = {place: self._shown(place) for place in places if place is not None}
        self._ahead.apply((Committed(change=change, events=()),))
        if not before:
            return change
        events = []
        for event, place in zip(change.events, places, strict=True):
            if place is not None:
                after = self._shown(place)
                payload = {**event.payload, "from": before[place], "to": after}
                event = attrs.evolve(event, payload=payload)
                before[place] = after
            events.append(event)
        return attrs.evolve(change, events=tuple(events))

    def _without_orphans(self, change: Change) -> Change:
        """What an instance still had to say when its deployment was deleted is not stored."""
        known = {*self._ahead.deployments}
        known |= {r.id for r in change.puts if isinstance(r, Deployment)}
        kept = tuple(
            r for r in change.puts if not isinstance(r, Instance) or r.id.deployment in known
        )
        return change if len(kept) == len(change.puts) else attrs.evolve(change, puts=kept)

    def _shown(self, place: InstanceId) -> str:
        deployment = self._ahead.deployments.get(place.deployment)
        one = self._ahead.instance(place)
        if deployment is None:
            return observed_instance(one)
        picture = Picture(
            deployment=deployment,
            instances=self._ahead.instances.get(place.deployment, {}),
            operations=self._ahead.open_operations.get(place.deployment, {}),
        )
        return observed_instance(one, picture.accepted(one))

    def listen(self, listener: OnCommitted) -> None:
        self._inner.listen(listener)

    async def find_receipt(self, scope: str, key: str) -> Receipt | None:
        return await self._inner.find_receipt(scope, key)

    async def read_events(
        self, after_seq: int, *, count_max: int = 64, bytes_max: int = 262_144
    ) -> EventPage:
        return await self._inner.read_events(after_seq, count_max=count_max, bytes_max=bytes_max)

    @property
    def broken(self) -> bool:
        return self._inner.broken


def _place(event: NewEvent) -> InstanceId | None:
    """The instance whose states an event tells; None for one that tells none."""
    if "from" not in event.payload:
        return None
    index = event.payload["instance"]
    assert isinstance(index, int)
    return InstanceId(DeploymentId(str(event.payload["deployment_id"])), index)
