"""The catalogue actor: the one owner of names and routes, and of creation."""

from __future__ import annotations

from typing import Any, assert_never

import attrs

from actors import Actor, ChildSpec, Ref, ReplyTo, Supervisor
from capyctl.contracts.store import Change, ReceiptTaken, StoreBroken
from capyctl.control.deployment import DeploymentActor, DeploymentNeeds
from capyctl.control.model_files import Resolver
from capyctl.control.replies import answer, fail, refuse
from capyctl.control.surroundings import World
from capyctl.domain.checkpoints import CheckpointRecord
from capyctl.domain.errors import Refused
from capyctl.domain.events import Receipt
from capyctl.domain.ids import DeploymentId, HostId
from capyctl.domain.operations import OperationKind, OperationState
from capyctl.domain.receipts import configuration_receipt
from capyctl.machines.deployment import Deployment
from capyctl.machines.idling import IdlePolicy
from capyctl.machines.replacing import configuration_accepted
from capyctl.machines.setting_off import new_operation
from capyctl.messages import catalogue as m
from capyctl.messages.deployment import RoutesGranted, RoutesRefused


@attrs.frozen(kw_only=True)
class CatalogueNeeds:
    world: World
    placement: Ref[Any]
    deployments: Supervisor
    instances: Supervisor
    resolve: Resolver
    own_host: HostId | None
    idle: IdlePolicy = attrs.field(factory=IdlePolicy)


class CatalogueActor(Actor[m.CatalogueMessage]):
    """Who has which name and which routes. Rebuilt from the deployments' records."""

    def __init__(self, needs: CatalogueNeeds) -> None:
        super().__init__("catalogue", capacity=2048)
        self._needs = needs
        self._world = needs.world
        self._names: dict[str, DeploymentId] = {}
        self._routes: dict[str, DeploymentId] = {}

    async def on_start(self) -> None:
        self._names.clear()
        self._routes.clear()
        for deployment in self._world.directory.deployments.values():
            self._keep(deployment.id, deployment.spec.name, deployment.spec.routes)
            self._run(deployment.id)

    async def handle(self, message: m.CatalogueMessage) -> None:
        match message:
            case m.Create():
                await self._create(message, self.reply_to())
            case m.ClaimRoutes():
                self._claim(message)
            case m.KeepRoutes():
                self._drop(message.deployment)
                self._keep(message.deployment, message.name, message.routes)
            case m.Deleted():
                self._drop(message.deployment)
                self._needs.deployments.stop_soon(f"deployment/{message.deployment}")
                self._world.directory.forget_deployment(message.deployment)
            case _:
                assert_never(message)

    def _taken(self, id: DeploymentId | None, name: str, routes: tuple[str, ...]) -> str | None:
        """The name or the first route that another deployment has, or None."""
        if self._names.get(name, id) != id:
            return name
        return next((r for r in routes if self._routes.get(r, id) != id), None)

    def _keep(self, id: DeploymentId, name: str, routes: tuple[str, ...]) -> None:
        self._names[name] = id
        for route in routes:
            self._routes[route] = id

    def _drop(self, id: DeploymentId) -> None:
        self._names = {k: v for k, v in self._names.items() if v != id}
        self._routes = {k: v for k, v in self._routes.items() if v != id}

    def _claim(self, message: m.ClaimRoutes) -> None:
        taken = self._taken(message.deployment, message.name, message.routes)
        ref = self._world.directory.deployment_refs.get(message.deployment)
        if ref is None:
            return
        if taken is not None:
            self._world.tell(ref, RoutesRefused(claim=message.claim, route=taken))
            return
        self._keep(message.deployment, message.name, message.routes)
        self._world.tell(ref, RoutesGranted(claim=message.claim))

    async def _create(self, message: m.Create, reply: ReplyTo | None) -> None:
        spec = message.spec
        taken = self._taken(None, spec.name, spec.routes)
        if taken is not None:
            text = f"`{taken}` already belongs to another deployment"
            refused = Refused("route_conflict", text)
            await refuse(self._world.store, reply, refused, message.receipt)
            return
        moment = self._world.moment()
        made = Deployment(
            id=DeploymentId(moment.fresh()),
            spec=spec,
            checkpoint=CheckpointRecord(expected=spec.expected_digest),
            created_at_ms=moment.now_ms,
        )
        operation = new_operation(
            made.id,
            None,
            OperationKind.CREATE,
            moment,
            deadline_at_ms=None,
            state=OperationState.SUCCEEDED,
        )
        response = configuration_receipt(
            made.id,
            operation.id,
            revision=made.revision,
            checkpoint_digest=made.checkpoint.state.value,
        )
        key = message.receipt
        change = Change(
            puts=(made, operation),
            receipt=Receipt(
                scope=key.scope, key=key.key, fingerprint=key.fingerprint, response=response
            ),
            events=(configuration_accepted(made, operation.id, moment),),
        )
        try:
            await self._world.store.commit(change)
        except ReceiptTaken as taken_key:
            if taken_key.receipt.fingerprint == key.fingerprint:
                answer(reply, taken_key.receipt.response)
            else:
                text = "The key belongs to another change"
                fail(reply, Refused("idempotency_conflict", text))
            return
        except StoreBroken as broken:
            fail(reply, Refused("internal", f"The change was not stored: {broken}"))
            return
        self._keep(made.id, spec.name, spec.routes)
        self._run(made.id)
        answer(reply, response)

    def _run(self, id: DeploymentId) -> None:
        """Start the deployment's actor, if it does not run."""
        directory = self._world.directory
        if id in directory.deployment_refs:
            return
        needs = DeploymentNeeds(
            world=self._world,
            placement=self._needs.placement,
            catalogue=self.ref,
            instances=self._needs.instances,
            resolve=self._needs.resolve,
            own_host=self._needs.own_host,
            idle=self._needs.idle,
        )
        spec = ChildSpec(name=f"deployment/{id}", make=lambda: DeploymentActor(id, needs))
        directory.deployment_refs[id] = self._needs.deployments.start_soon(spec)
