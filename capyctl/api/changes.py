"""The routes that change models: create, replace, and actions on a deployment or instance."""

from __future__ import annotations

from quart import ResponseReturnValue, request

from capyctl.api.answers import read_body
from capyctl.api.carrying import Carrying
from capyctl.api.limits import Limits
from capyctl.api.work import Pool
from capyctl.contracts.clock import Clock
from capyctl.contracts.management import Management
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

    def __init__(
        self, management: Management, carrying: Carrying, *, limits: Limits, clock: Clock
    ) -> None:
        self._management = management
        self._carrying = carrying
        self._limits = limits
        self._clock = clock
        self._evictions = Pool("starts that evict", limits.evictions_max)

    async def create(self) -> ResponseReturnValue:
        """POST /deployments."""
        key = self._carrying.key()
        with self._carrying.take() as slot:
            body = read_create(await read_body(request, self._limits))
            receipt = ReceiptKey(scope="create", key=key, fingerprint=body.fingerprint("create"))

            async def accept() -> str:
                spec = self._management.complete(body.document)
                return await self._management.create(Create(spec=spec, receipt=receipt))

            return await self._carrying.carry_out(slot, receipt, accept, self._limits.answer_s_max)

    async def replace(self, id: str) -> ResponseReturnValue:
        """PUT /deployments/{id}."""
        deployment = read_deployment_id(id)
        key = self._carrying.key()
        scope = f"replace:{deployment}"
        with self._carrying.take() as slot:
            body = read_replace(await read_body(request, self._limits))
            receipt = ReceiptKey(scope=scope, key=key, fingerprint=body.fingerprint(scope))

            async def accept() -> str:
                change = Replace(
                    spec=self._management.complete(body.document),
                    expected_revision=body.expected_revision,
                    receipt=receipt,
                )
                return await self._management.replace(deployment, change)

            return await self._carrying.carry_out(slot, receipt, accept, self._limits.answer_s_max)

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
        key = self._carrying.key()
        with self._carrying.take() as slot:
            body = read_action(await read_body(request, self._limits))
            receipt = ReceiptKey(scope=scope, key=key, fingerprint=body.fingerprint(scope))

            async def accept() -> str:
                change = Act(
                    action=self._kind(body.action, deployment, instance),
                    instance=instance,
                    expected_revision=body.expected_revision,
                    deadline_at_ms=body.deadline_at_ms,
                    evict=body.evict,
                    receipt=receipt,
                )
                return await self._management.act(deployment, change)

            if not body.evict:
                return await self._carrying.carry_out(
                    slot, receipt, accept, self._limits.answer_s_max
                )
            with self._evictions.take() as place:
                slot.give_back()
                return await self._carrying.carry_out(
                    place, receipt, accept, self._eviction_s_max(body)
                )

    def _kind(self, action: str, deployment: DeploymentId, instance: int | None) -> ActionKind:
        """What is asked for. That there is something to do it to is the earlier check."""
        is_offered = action not in ACTIONS_NOT_OFFERED
        if is_offered and (instance is None or action in _INSTANCE_ACTIONS):
            return ActionKind(action)
        self._management.check_known(deployment, instance)
        if not is_offered:
            raise Refused("unsupported_capability", "This release can neither suspend nor resume")
        raise Refused("unsupported_capability", "One instance can only be started or stopped")

    def _eviction_s_max(self, body: ActionBody) -> float:
        left_s = (body.deadline_at_ms - self._clock.wall_ms()) / 1000
        return max(self._limits.answer_s_max, min(left_s, self._limits.eviction_answer_s_max))
