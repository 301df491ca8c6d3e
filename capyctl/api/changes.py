"""The routes that change something: create, replace, and actions on a deployment or instance.

A change is carried out by work of its own: a client that leaves, or is told 504, changes
nothing about it, and finds its result under its key.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import AsyncIterator, Awaitable, Callable

import trio
from quart import ResponseReturnValue, request

from capyctl.api.answers import check_no_query, json_answer, read_body
from capyctl.api.headers import check_json_body, read_idempotency_key
from capyctl.api.limits import Limits
from capyctl.api.work import Pool, Slot, Work
from capyctl.contracts.clock import Clock
from capyctl.contracts.management import Management
from capyctl.domain.canonical import canonical_json
from capyctl.domain.errors import Refused
from capyctl.domain.ids import DeploymentId
from capyctl.messages.catalogue import Create
from capyctl.messages.deployment import Act, ActionKind, ReceiptKey, Replace
from capyctl.wire.bodies import (
    ACTIONS_NOT_OFFERED,
    ActionBody,
    read_action,
    read_create,
    read_replace,
)
from capyctl.wire.paths import read_deployment_id, read_index

_INSTANCE_ACTIONS = ("start", "stop")


class Changes:
    """Handlers of POST and PUT. They parse, look for the receipt, pass on, and render."""

    def __init__(self, management: Management, work: Work, *, limits: Limits, clock: Clock) -> None:
        self._management = management
        self._work = work
        self._limits = limits
        self._clock = clock
        self._changes = Pool("changes", limits.changes_max)
        self._evictions = Pool("starts that evict", limits.evictions_max)
        self._under_way: dict[tuple[str, str], trio.Event] = {}
        """By scope and key, what is being carried out. At most as many as there are slots."""

    async def create(self) -> ResponseReturnValue:
        """POST /deployments."""
        key = self._key()
        with self._changes.take() as slot:
            body = read_create(await read_body(request, self._limits))
            receipt = ReceiptKey(scope="create", key=key, fingerprint=body.fingerprint("create"))

            async def accept() -> str:
                spec = self._management.complete(body.document)
                return await self._management.create(Create(spec=spec, receipt=receipt))

            return await self._carry_out(slot, receipt, accept, self._limits.answer_s_max)

    async def replace(self, id: str) -> ResponseReturnValue:
        """PUT /deployments/{id}."""
        deployment = read_deployment_id(id)
        key = self._key()
        scope = f"replace:{deployment}"
        with self._changes.take() as slot:
            body = read_replace(await read_body(request, self._limits))
            receipt = ReceiptKey(scope=scope, key=key, fingerprint=body.fingerprint(scope))

            async def accept() -> str:
                change = Replace(
                    spec=self._management.complete(body.document),
                    expected_revision=body.expected_revision,
                    receipt=receipt,
                )
                return await self._management.replace(deployment, change)

            return await self._carry_out(slot, receipt, accept, self._limits.answer_s_max)

    async def act(self, id: str) -> ResponseReturnValue:
        """POST /deployments/{id}/actions."""
        deployment = read_deployment_id(id)
        return await self._act(deployment, None, f"actions:{deployment}")

    async def act_on_instance(self, id: str, index: str) -> ResponseReturnValue:
        """POST /deployments/{id}/instances/{index}/actions."""
        deployment = read_deployment_id(id)
        instance = read_index(index)
        return await self._act(deployment, instance, f"instance:{deployment}/{instance}")

    async def _act(
        self, deployment: DeploymentId, instance: int | None, scope: str
    ) -> ResponseReturnValue:
        key = self._key()
        with self._changes.take() as slot:
            body = read_action(await read_body(request, self._limits))
            receipt = ReceiptKey(scope=scope, key=key, fingerprint=body.fingerprint(scope))

            async def accept() -> str:
                change = Act(
                    action=_kind(body.action, instance),
                    instance=instance,
                    expected_revision=body.expected_revision,
                    deadline_at_ms=body.deadline_at_ms,
                    evict=body.evict,
                    receipt=receipt,
                )
                return await self._management.act(deployment, change)

            if not body.evict:
                return await self._carry_out(slot, receipt, accept, self._limits.answer_s_max)
            with self._evictions.take() as place:
                slot.give_back()
                return await self._carry_out(place, receipt, accept, self._eviction_s_max(body))

    def _key(self) -> str:
        """The checks that need no body, in the contract's order."""
        check_no_query(request)
        headers = request.scope["headers"]
        key = read_idempotency_key(headers)
        check_json_body(headers)
        return key

    def _eviction_s_max(self, body: ActionBody) -> float:
        left_s = (body.deadline_at_ms - self._clock.wall_ms()) / 1000
        return max(self._limits.answer_s_max, min(left_s, self._limits.eviction_answer_s_max))

    async def _carry_out(
        self,
        slot: Slot,
        receipt: ReceiptKey,
        accept: Callable[[], Awaitable[str]],
        within_s: float,
    ) -> ResponseReturnValue:
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


def _kind(action: str, instance: int | None) -> ActionKind:
    if action in ACTIONS_NOT_OFFERED:
        raise Refused("unsupported_capability", "This release can neither suspend nor resume")
    if instance is not None and action not in _INSTANCE_ACTIONS:
        raise Refused("unsupported_capability", "One instance can only be started or stopped")
    return ActionKind(action)


def _as_replay(response: str) -> str:
    """The first answer again. A replayed start evicts nobody, and says so."""
    fields = json.loads(response)
    if "victims" not in fields:
        return response
    return canonical_json({**fields, "victims": [], "switch_id": None})
