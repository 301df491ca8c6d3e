"""The own machine of a standalone daemon: whether it is being drained, which outlives restarts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

from actors import Actor, Ref
from capyctl.contracts.store import Change, ReceiptTaken, StoreBroken
from capyctl.control.eligibility import own_eligibility
from capyctl.control.replies import answer, fail, refuse
from capyctl.control.surroundings import World
from capyctl.domain.errors import Refused
from capyctl.domain.events import Receipt
from capyctl.domain.ids import HostId
from capyctl.machines.host_changes import decide_host
from capyctl.messages.deployment import HostsChanged
from capyctl.messages.hosts import DrainHost, RevokeHost, UndrainHost

OwnHostMessage: TypeAlias = DrainHost | UndrainHost | RevokeHost


class OwnHostActor(Actor[OwnHostMessage]):
    """The one owner of the mark that the own machine is drained."""

    def __init__(self, world: World, placement: Ref[Any], host: HostId, *, first: bool) -> None:
        """``first``: the daemon has just begun."""
        super().__init__("own-host", capacity=64)
        self._world = world
        self._placement = placement
        self._host = host
        self._first = first

    async def on_start(self) -> None:
        # What an earlier incarnation stored, and may not have told, is told now.
        if not self._first or self._host in self._world.directory.draining:
            self._tell()

    async def handle(self, message: OwnHostMessage) -> None:
        reply, key = self.reply_to(), message.receipt
        record = self._world.directory.own_record(self._host)
        try:
            if isinstance(message, RevokeHost):
                raise Refused("unsupported_capability", "A standalone machine cannot be revoked")
            if message.host != self._host:
                raise Refused("not_found", f"There is no host {message.host}")
            decision = decide_host(record, message, now_ms=self._world.moment().now_ms)
        except Refused as refused:
            await refuse(self._world.store, reply, refused, key)
            return
        receipt = Receipt(
            scope=key.scope, key=key.key, fingerprint=key.fingerprint, response=decision.response
        )
        change = Change(puts=decision.puts, events=decision.events, receipt=receipt)
        try:
            await self._world.store.commit(change)
        except ReceiptTaken as taken:
            if taken.receipt.fingerprint == key.fingerprint:
                answer(reply, taken.receipt.response)
            else:
                fail(reply, Refused("idempotency_conflict", "The key belongs to another change"))
            return
        except StoreBroken as broken:
            fail(reply, Refused("internal", f"The change was not stored: {broken}"))
            return
        answer(reply, decision.response)
        self._tell()

    def _tell(self) -> None:
        directory = self._world.directory
        drained = self._host in directory.draining
        self._world.tell(self._placement, own_eligibility(self._host, drained=drained))
        for id, ref in list(directory.deployment_refs.items()):
            if id in directory.deployments:
                self._world.tell(ref, HostsChanged(hosts=(self._host,)))


def own_host_maker(world: World, placement: Ref[Any], host: HostId) -> Callable[[], OwnHostActor]:
    """Makes the actor: only the first one meets a fresh daemon."""
    made = 0

    def make() -> OwnHostActor:
        nonlocal made
        made += 1
        return OwnHostActor(world, placement, host, first=made == 1)

    return make
