"""The deployment actor: accepts actions, serves demand, and leads its instances."""

from __future__ import annotations

from typing import Any, assert_never

import attrs

from actors import Actor, Ref, ReplyTo, Supervisor
from capyctl.contracts.store import Change, ReceiptTaken, StoreBroken
from capyctl.control.awaiting import Awaiting
from capyctl.control.idling import Idling
from capyctl.control.instance import InstanceNeeds
from capyctl.control.making import Making
from capyctl.control.model_files import Files, Resolver
from capyctl.control.occupancy import gone, occupancies
from capyctl.control.replies import answer, fail, refuse
from capyctl.control.surroundings import World
from capyctl.control.unplaced import refuse_unplaced
from capyctl.domain.checkpoints import DigestState
from capyctl.domain.errors import InferenceRefusal, Refused
from capyctl.domain.events import Receipt
from capyctl.domain.ids import DeploymentId, HostId, InstanceId
from capyctl.domain.operations import Operation
from capyctl.domain.receipts import action_receipt, configuration_receipt
from capyctl.machines.actions import check_revision, decide
from capyctl.machines.deployment import Deployment, Picture, refusal
from capyctl.machines.idling import IdlePolicy
from capyctl.machines.instance import InstanceState
from capyctl.machines.learning import files_changed
from capyctl.machines.progress import activation_refusal, preinitialize_refused, progress
from capyctl.machines.recovering import lost_messages
from capyctl.machines.replacing import decide_replace
from capyctl.machines.setting_off import Accepted
from capyctl.machines.start_action import NeedFit
from capyctl.machines.widening import more_places_for
from capyctl.messages import deployment as m
from capyctl.messages.catalogue import ClaimRoutes, Deleted, KeepRoutes
from capyctl.messages.placement import AskFit

STEPS_MAX = 64
"""Bound on the steps that one message may set off; more would be a loop in the rules."""


@attrs.frozen(kw_only=True)
class DeploymentNeeds:
    """Beside the world: who this deployment talks to."""

    world: World
    placement: Ref[Any]
    catalogue: Ref[Any]
    instances: Supervisor
    resolve: Resolver
    own_host: HostId | None
    """The one machine of a standalone daemon; None where hosts come and go."""
    idle: IdlePolicy = attrs.field(factory=IdlePolicy)


class DeploymentActor(Actor[m.DeploymentMessage]):
    """One deployment. Decisions are in `machines`; this commits and tells."""

    def __init__(self, id: DeploymentId, needs: DeploymentNeeds) -> None:
        super().__init__(f"deployment/{id}", capacity=1024)
        self.id = id
        self._needs = needs
        self._world = needs.world
        self._directory = needs.world.directory
        self._awaiting = Awaiting(self.timers)
        self._making: Making | None = None
        self._idling = Idling(needs.world, needs.idle)
        self._files = Files.of(self, needs.world, needs.resolve, needs.own_host)
        self._wanted = False

    @property
    def data(self) -> Deployment:
        """The committed record."""
        return self._directory.deployments[self.id]

    async def on_start(self) -> None:
        admission = self._directory.admission(self.id)
        admission.on_stranded = lambda: self._world.tell(self.ref, m.DemandArose())
        admission.take_nudge()
        for index in range(self.data.spec.instances):
            self._instance_ref(index)
        for index in self._directory.instances.get(self.id, {}):
            self._instance_ref(index)
        self._tell_occupancy()
        self._tell_again()
        await self._look_at_hosts()
        await self._go_on()

    async def handle(self, message: m.DeploymentMessage) -> None:
        match message:
            case m.Act():
                await self._act(message, self.reply_to(), None)
            case m.FitAnswered():
                asked = self._awaiting.take(message.request)
                if asked is not None and isinstance(asked[0], m.Act):
                    await self._act(asked[0], asked[1], message)
            case m.Replace():
                await self._claim(message)
            case m.RoutesGranted():
                await self._replace(message)
            case m.RoutesRefused():
                text = f"`{message.route}` already belongs to another deployment"
                await self._give_up(message.claim, Refused("route_conflict", text))
            case m.InstanceChanged():
                await self._instance_changed(message)
            case m.SourceMoved() | m.CheckpointMeasured() | m.CheckpointUnmeasured():
                await self._keep(self._files.news(self.data, message))
            case m.DemandArose():
                self._directory.admission(self.id).take_nudge()
                self._wanted = True
            case m.HostsChanged():
                await self._look_at_hosts(frozenset(message.hosts))
            case m.LookAgain():
                pass
            case m.Unanswered():
                text = "A part of capyctl was restarted meanwhile; send the same request again"
                await self._give_up(message.request, Refused("reconciliation_required", text))
            case _:
                assert_never(message)
        if self.id in self._directory.deployments:
            await self._go_on()
            refuse_unplaced(self._world, self.picture())

    # -- what is read ------------------------------------------------------------------------

    def picture(self) -> Picture:
        return Picture(
            deployment=self.data,
            instances=self._directory.instances.get(self.id, {}),
            operations=self._directory.open_operations.get(self.id, {}),
            waiting_count=self._directory.admission(self.id).waiting_count,
            draining=self._directory.draining,
            wanted=self._wanted,
        )

    # -- actions -----------------------------------------------------------------------------

    async def _act(self, action: m.Act, reply: ReplyTo | None, fit: m.FitAnswered | None) -> None:
        moment = self._world.moment()
        try:
            decision = decide(self.picture(), action, moment, fit=fit)
        except Refused as refused:
            if refused.code == "checkpoint_mismatch":
                await self._keep(self._files.doubted(self.data))
                self._files.measure(self.data)
            await refuse(self._world.store, reply, refused, action.receipt)
            return
        if isinstance(decision, NeedFit):
            request = self._world.ids.ulid()
            self._awaiting.expect(request, action, reply)
            self._world.tell(
                self._needs.placement,
                AskFit(
                    request=request,
                    deployment=self.id,
                    questions=decision.questions,
                    evict=decision.evict,
                ),
            )
            return
        response = action_receipt(
            self.id,
            decision.answers,
            revision=decision.deployment.revision,
            joined=decision.joined,
            instance=action.instance,
            victims=decision.victims,
            switch=decision.switch,
        )
        await self._accept(decision, action.receipt, response, reply)

    async def _accept(
        self, accepted: Accepted, key: m.ReceiptKey, response: str, reply: ReplyTo | None
    ) -> None:
        receipt = Receipt(
            scope=key.scope, key=key.key, fingerprint=key.fingerprint, response=response
        )
        try:
            await self._commit(accepted, receipt)
        except ReceiptTaken as taken:
            # Two equal requests at the same moment: one was first, both get its answer.
            if taken.receipt.fingerprint == key.fingerprint:
                answer(reply, taken.receipt.response)
            else:
                fail(reply, Refused("idempotency_conflict", "The key belongs to another change"))
        except StoreBroken as broken:
            fail(reply, Refused("internal", f"The change was not stored: {broken}"))
        else:
            answer(reply, response)

    async def _commit(self, accepted: Accepted, receipt: Receipt | None = None) -> None:
        """Make it durable, then tell those it is for."""
        puts = (*accepted.operations,)
        deleted = self.id if accepted.deleted else None
        await self._world.store.commit(
            Change(
                puts=puts if accepted.deleted else (accepted.deployment, *puts),
                removes=accepted.removes,
                deleted=deleted,
                receipt=receipt,
                events=accepted.events,
            )
        )
        for index, message in accepted.tell:
            self._world.tell(self._instance_ref(index), message)
        for retired in accepted.removes:
            self._forget(retired)
        if self.id in self._directory.deployments and self.data.preinitialize is not None:
            self._look_at_deadline(self.data.preinitialize)
        if accepted.deleted:
            self._delete()

    def _delete(self) -> None:
        for instance in list(self._directory.instance_refs):
            if instance.deployment == self.id:
                self._forget(instance)
        admission = self._directory.admission(self.id)
        admission.refusal = InferenceRefusal(
            code="unknown_model", message="this model was deleted while the request waited"
        )
        admission.refuse_waiting(admission.refusal)
        self._world.tell(self._needs.catalogue, Deleted(deployment=self.id))
        self.stop()

    def _forget(self, instance: InstanceId) -> None:
        self._world.tell(self._needs.placement, gone(instance))
        self._made.forget(instance)

    def _look_at_deadline(self, operation: Operation) -> None:
        """A preinitialize ends at its deadline even when none of its instances moves."""
        assert operation.deadline_at_ms is not None
        left_s = max(0.0, (operation.deadline_at_ms - self._world.clock.wall_ms()) / 1000)
        self.timers.set("preinitialize", left_s, m.LookAgain(why="deadline"))

    # -- replace -----------------------------------------------------------------------------

    async def _claim(self, message: m.Replace) -> None:
        """Names and routes come before the rest: only the catalogue gives them out."""
        try:
            check_revision(self.data, message.expected_revision)
        except Refused as refused:
            await refuse(self._world.store, self.reply_to(), refused, message.receipt)
            return
        claim = self._world.ids.ulid()
        self._awaiting.expect(claim, message, self.reply_to())
        self._world.tell(
            self._needs.catalogue,
            ClaimRoutes(
                claim=claim,
                deployment=self.id,
                name=message.spec.name,
                routes=message.spec.routes,
            ),
        )

    async def _give_up(self, request: str, refused: Refused) -> None:
        waited = self._awaiting.take(request)
        if waited is not None:
            change, reply = waited
            await refuse(self._world.store, reply, refused, change.receipt)

    async def _replace(self, granted: m.RoutesGranted) -> None:
        claimed = self._awaiting.take(granted.claim)
        if claimed is None or not isinstance(claimed[0], m.Replace):
            self._keep_routes()
            return
        message, reply = claimed[0], claimed[1]
        moment = self._world.moment()
        try:
            accepted = decide_replace(self.picture(), message, moment)
        except Refused as refused:
            await refuse(self._world.store, reply, refused, message.receipt)
        else:
            assert accepted.answers is not None
            response = configuration_receipt(
                self.id,
                accepted.answers,
                revision=accepted.deployment.revision,
                checkpoint_digest=accepted.deployment.checkpoint.state.value,
            )
            await self._accept(accepted, message.receipt, response, reply)
        self._keep_routes()
        await self._look_at_hosts()
        for index in range(self.data.spec.instances):
            self._instance_ref(index)

    def _keep_routes(self) -> None:
        """Whatever was claimed: these are ours from now on, and no others."""
        spec = self.data.spec
        kept = KeepRoutes(deployment=self.id, name=spec.name, routes=spec.routes)
        self._world.tell(self._needs.catalogue, kept)

    # -- the model's files -------------------------------------------------------------------

    async def _look_at_hosts(self, changed: frozenset[HostId] | None = None) -> None:
        """Which machines there are now; and have those measured that were not."""
        await self._keep(self._files.looked(self.data, changed))
        self._files.measure(self.data)

    async def _keep(self, after: Deployment) -> None:
        if after != self.data:
            await self._store_quietly(Accepted(deployment=after))

    # -- instances ---------------------------------------------------------------------------

    def _instance_ref(self, index: int) -> Ref[Any]:
        return self._made.ref(InstanceId(self.id, index))

    @property
    def _made(self) -> Making:
        if self._making is None:
            needs = InstanceNeeds(
                world=self._world, placement=self._needs.placement, deployment=self.ref
            )
            self._making = Making(self._directory, self._needs.instances, needs)
        return self._making

    def _tell_again(self) -> None:
        """Accepted work that no instance has taken up: its message was lost with a crash."""
        for index, message in lost_messages(self.picture()):
            self._world.tell(self._instance_ref(index), message)

    async def _instance_changed(self, message: m.InstanceChanged) -> None:
        if message.moved:
            self._idling.moved(message.instance)
            self._tell_occupancy()
        if message.restarted:
            self._tell_again()
        if message.park_failed is not None:
            given_up = preinitialize_refused(self.picture(), message)
            if given_up is not None:
                await self._store_quietly(given_up)
        if not message.start_failed:
            return
        one = self._directory.instance(message.instance)
        changed = files_changed(self.data, one)
        if changed is not None:
            await self._store_quietly(changed)
        if any(other.state is InstanceState.READY for other in self.picture().active):
            return
        if one.failure is not None:
            answer = activation_refusal(self.data.spec.name, one.failure)
            self._directory.admission(self.id).refuse_waiting(answer)

    def _tell_occupancy(self) -> None:
        """What placement may do with these instances to make room for others."""
        for told in occupancies(self.picture()):
            self._world.tell(self._needs.placement, told)

    # -- going on ----------------------------------------------------------------------------

    async def _go_on(self) -> None:
        """Take every step that the rules ask for now; each is committed before the next."""
        for _ in range(STEPS_MAX):
            self._set_admission()
            step = progress(self.picture(), self._world.moment()) or self._idle_step()
            if step is None:
                # Begun, or not to be begun; only an unmeasured model still owes an answer.
                if self.data.checkpoint.state is not DigestState.PENDING:
                    self._wanted = False
                for index, message in more_places_for(self.picture()):
                    self._world.tell(self._instance_ref(index), message)
                return
            if not await self._store_quietly(step):
                return
        raise AssertionError(f"{self.id}: more than {STEPS_MAX} steps in a row")

    def _idle_step(self) -> Accepted | None:
        if not self._idling.enabled:
            return None
        step, again_s = self._idling.look(self.picture())
        if again_s is not None:
            self.timers.set("idle", again_s, m.LookAgain(why="idle"))
        return step

    def _set_admission(self) -> None:
        admission = self._directory.admission(self.id)
        answer = refusal(self.picture())
        admission.refusal = answer
        if answer is not None and admission.waiting_count:
            admission.refuse_waiting(answer)

    async def _store_quietly(self, accepted: Accepted) -> bool:
        try:
            await self._commit(accepted)
        except StoreBroken:
            self._world.log("deployment_change_not_stored", deployment=self.id)
            return False
        return True
