"""What every change has in common: its slot, its key, its receipt, and work of its own.

A client that leaves, or is told 504, changes nothing about the change, and finds its result
under its key.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import AsyncIterator, Awaitable, Callable

import trio
from quart import ResponseReturnValue, request

from capyctl.api.answers import check_no_query, json_answer
from capyctl.api.headers import check_json_body, read_idempotency_key
from capyctl.api.limits import Limits
from capyctl.api.work import Pool, Slot, Work
from capyctl.contracts.management import Management
from capyctl.domain.canonical import canonical_json
from capyctl.domain.errors import Refused
from capyctl.messages.deployment import ReceiptKey


class Carrying:
    """Of one application: all of its changes share the slots."""

    def __init__(self, management: Management, work: Work, *, limits: Limits) -> None:
        self._management = management
        self._work = work
        self._changes = Pool("changes", limits.changes_max)
        self._under_way: dict[tuple[str, str], trio.Event] = {}
        """By scope and key, what is being carried out. At most as many as there are slots."""

    def take(self) -> Slot:
        """A slot for one change. Raises Refused(``queue_full``)."""
        return self._changes.take()

    def key(self) -> str:
        """The checks that need no body, in the contract's order."""
        check_no_query(request)
        headers = request.scope["headers"]
        key = read_idempotency_key(headers)
        check_json_body(headers)
        return key

    async def carry_out(
        self,
        slot: Slot,
        receipt: ReceiptKey,
        accept: Callable[[], Awaitable[str]],
        within_s: float,
    ) -> ResponseReturnValue:
        """The stored answer to this change, or what ``accept`` answers now. 202."""

        async def job() -> str:
            async with self._alone_under(receipt):
                stored = await self._stored(receipt)
                return await accept() if stored is None else stored

        return json_answer(await self._work.answer(slot, job, within_s=within_s), 202)

    @contextlib.asynccontextmanager
    async def _alone_under(self, receipt: ReceiptKey) -> AsyncIterator[None]:
        """Requests under one key go one after the other: the later ones find the receipt."""
        place = (receipt.scope, receipt.key)
        while (before := self._under_way.get(place)) is not None:
            await before.wait()
        self._under_way[place] = trio.Event()
        try:
            yield
        finally:
            self._under_way.pop(place).set()

    async def _stored(self, asked: ReceiptKey) -> str | None:
        """The first answer under this key. Raises Refused when it was to something else."""
        receipt = await self._management.find_receipt(asked.scope, asked.key)
        if receipt is None:
            return None
        if receipt.fingerprint != asked.fingerprint:
            raise Refused(
                "idempotency_conflict",
                "This Idempotency-Key was used for a different change; use a new key",
            )
        return _as_replay(receipt.response)


def _as_replay(response: str) -> str:
    """The first answer again. A replayed start evicts nobody, and says so."""
    fields = json.loads(response)
    if "victims" not in fields:
        return response
    return canonical_json({**fields, "victims": [], "switch_id": None})
