"""The deployment actor: accepts actions, serves demand, and leads its instances."""

from __future__ import annotations

from typing import Any, Protocol, assert_never

import attrs

from actors import Actor, ChildSpec, Ref, ReplyTo, Supervisor
from capyctl.contracts.store import Change, ReceiptTaken, StoreBroken
from capyctl.control.idling import Idling
from capyctl.control.instance import InstanceNeeds
from capyctl.control.making import maker
from capyctl.control.measuring import Measuring
from capyctl.control.occupancy import gone, occupancy
from capyctl.control.replies import answer, fail
from capyctl.control.surroundings import World
from capyctl.domain.checkpoints import CheckpointFacts, DigestState
from capyctl.domain.errors import Refused
from capyctl.domain.events import Receipt
from capyctl.domain.ids import DeploymentId, HostId, InstanceId
from capyctl.domain.receipts import action_receipt, configuration_receipt
from capyctl.domain.specs import DeploymentSpec, ResolvedSpec
from capyctl.machines.actions import NeedFit, check_revision, decide
from capyctl.machines.checkpoint import measured, sourced, unmeasured
from capyctl.machines.deployment import Deployment, Picture, refusal
from capyctl.machines.idling import IdlePolicy
from capyctl.machines.instance import InstanceState
from capyctl.machines.progress import activation_refusal, progress
from capyctl.machines.recovering import lost_messages
from capyctl.machines.replacing import decide_replace
from capyctl.machines.setting_off import Accepted
from capyctl.messages import deployment as m
from capyctl.messages.catalogue import ClaimRoutes, Deleted, KeepRoutes
from capyctl.messages.placement import AskFit

ANSWER_S = 10.0
STEPS_MAX = 64
"""Bound on the steps that one message may set off; more would be a loop in the rules."""


class Resolver(Protocol):
    """Fits a specification to the machines, once the files are measured."""

    def __call__(self, spec: DeploymentSpec, facts: CheckpointFacts) -> ResolvedSpec:
        """Raises Refused(checkpoint_unusable …) when the figures do not work out."""


@attrs.frozen(kw_only=True)
class DeploymentNeeds:
    """Beside the world: who this deployment talks to."""

    world: World
    placement: Ref[Any]
    catalogue: Ref[Any]
    instances: Supervisor
    resolve: Resolver
    measure_host: HostId
    """The host whose files are measured."""
    idle: IdlePolicy = attrs.field(factory=IdlePolicy)


@attrs.frozen(kw_only=True)
class Asked:
    """An accepted-in-principle action that waits for placement's answer."""

    action: m.Act
    reply: ReplyTo | None


class DeploymentActor(Actor[m.DeploymentMessage]):
    """One deployment. Decisions are in `machines`; this commits and tells."""

    def __init__(self, id: DeploymentId, needs: DeploymentNeeds) -> None:
        super().__init__(f"deployment/{id}", capacity=1024)
        self.id = id
        self._needs = needs
        self._world = needs.world
        self._directory = needs.world.directory
        self._asked: dict[str, Asked] = {}
        self._claims: dict[str, tuple[m.Replace, ReplyTo | None]] = {}
        self._idling = Idling(needs.world, needs.idle)
        self._measuring = Measuring(self, needs.world, needs.measure_host)
        self._wanted = False

    @property
    def data(self) -> Deployment:
        """The committed record."""
        return self._directory.deployments[self.id]

    async def on_start(self) -> None:
        admission = self._directory.admission(self.id)
        admission.on_stranded = self._stranded
        admission.take_nudge()
        for index in range(self.data.spec.instances):
            self._instance_ref(index)
        for index in self._directory.instances.get(self.id, {}):
            self._instance_ref(index)
        self._tell_again()
        self._measuring.begin(self.data)
        await self._go_on()

    async def handle(self, message: m.DeploymentMessage) -> None:
        match message:
            case m.Act():
                await self._act(message, self.reply_to(), None)
            case m.FitAnswered():
                self.timers.cancel(f"answer/{message.request}")
                asked = self._asked.pop(message.request, None)
                if asked is not None:
                    await self._act(asked.action, asked.reply, message)
            case m.Replace():
                self._claim(message)
            case m.RoutesGranted():
                await self._replace(message)
            case m.RoutesRefused():
                self._refuse_claim(message)
            case m.InstanceChanged():
                self._instance_changed(message)
            case m.SourceMoved() | m.CheckpointMeasured() | m.CheckpointUnmeasured():
                await self._checkpoint(message)
            case m.DemandArose():
                self._directory.admission(self.id).take_nudge()
                self._wanted = True
            case m.LookAgain():
                pass
            case m.Unanswered():
                self._give_up(message.request)
            case _:
                assert_never(message)
        if self.id in self._directory.deployments:
            await self._go_on()

    # -- what is read ------------------------------------------------------------------------

    def picture(self) -> Picture:
        return Picture(
            deployment=self.data,
            instances=self._directory.instances.get(self.id, {}),
            operations=self._directory.open_operations.get(self.id, {}),
            waiting_count=self._directory.admission(self.id).waiting_count,
            wanted=self._wanted,
        )

    def _stranded(self) -> None:
        self._world.tell(self.ref, m.DemandArose())

    # -- actions -----------------------------------------------------------------------------

    async def _act(self, action: m.Act, reply: ReplyTo | None, fit: m.FitAnswered | None) -> None:
        moment = self._world.moment()
        try:
            decision = decide(self.picture(), action, moment, fit=fit)
        except Refused as refused:
            fail(reply, refused)
            return
        if isinstance(decision, NeedFit):
            request = self._world.ids.ulid()
            self._asked[request] = Asked(action=action, reply=reply)
            self._expect_answer(request)
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
        except StoreBroken:
            fail(reply, Refused("internal", "The change could not be stored"))
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
        if accepted.deleted:
            self._delete()

    def _delete(self) -> None:
        for instance in list(self._directory.instance_refs):
            if instance.deployment == self.id:
                self._forget(instance)
        self._world.tell(self._needs.catalogue, Deleted(deployment=self.id))
        self.stop()

    def _forget(self, instance: InstanceId) -> None:
        self._world.tell(self._needs.placement, gone(instance))
        self._needs.instances.stop_soon(f"instance/{instance}")
        self._directory.forget_instance(instance)

    # -- replace -----------------------------------------------------------------------------

    def _claim(self, message: m.Replace) -> None:
        """Names and routes come before the rest: only the catalogue gives them out."""
        try:
            check_revision(self.data, message.expected_revision)
        except Refused as refused:
            fail(self.reply_to(), refused)
            return
        claim = self._world.ids.ulid()
        self._claims[claim] = (message, self.reply_to())
        self._expect_answer(claim)
        self._world.tell(
            self._needs.catalogue,
            ClaimRoutes(
                claim=claim,
                deployment=self.id,
                name=message.spec.name,
                routes=message.spec.routes,
            ),
        )

    def _expect_answer(self, request: str) -> None:
        """Placement and the catalogue answer at once; one that failed meanwhile never does."""
        self.timers.set(f"answer/{request}", ANSWER_S, m.Unanswered(request=request))

    def _give_up(self, request: str) -> None:
        asked = self._asked.pop(request, None)
        claim = self._claims.pop(request, None)
        reply = asked.reply if asked is not None else claim[1] if claim is not None else None
        text = "A part of capyctl was restarted meanwhile; send the same request again"
        fail(reply, Refused("reconciliation_required", text))

    def _refuse_claim(self, message: m.RoutesRefused) -> None:
        if message.claim not in self._claims:
            return
        _, reply = self._claims.pop(message.claim)
        self.timers.cancel(f"answer/{message.claim}")
        text = f"`{message.route}` already belongs to another deployment"
        fail(reply, Refused("route_conflict", text))

    async def _replace(self, granted: m.RoutesGranted) -> None:
        if granted.claim not in self._claims:
            return
        message, reply = self._claims.pop(granted.claim)
        self.timers.cancel(f"answer/{granted.claim}")
        moment = self._world.moment()
        try:
            accepted = decide_replace(self.picture(), message, moment)
        except Refused as refused:
            fail(reply, refused)
        else:
            assert accepted.answers is not None
            response = configuration_receipt(
                self.id,
                accepted.answers,
                revision=accepted.deployment.revision,
                checkpoint_digest=accepted.deployment.checkpoint.state.value,
            )
            await self._accept(accepted, message.receipt, response, reply)
        spec = self.data.spec
        self._world.tell(
            self._needs.catalogue,
            KeepRoutes(deployment=self.id, name=spec.name, routes=spec.routes),
        )
        self._measuring.begin(self.data)
        for index in range(spec.instances):
            self._instance_ref(index)

    # -- the model's files -------------------------------------------------------------------

    async def _checkpoint(self, message: m.FilesMoved) -> None:
        if message.revision != self.data.revision:
            return
        if isinstance(message, m.SourceMoved):
            after = sourced(self.data, message.record)
        elif isinstance(message, m.CheckpointUnmeasured):
            after = unmeasured(self.data, message.diagnostic, message.detail)
        else:
            after = measured(self.data, message.facts, self._resolve)
        if after != self.data:
            await self._store_quietly(Accepted(deployment=after))

    def _resolve(self, facts: CheckpointFacts) -> ResolvedSpec:
        return self._needs.resolve(self.data.spec, facts)

    # -- instances ---------------------------------------------------------------------------

    def _instance_ref(self, index: int) -> Ref[Any]:
        """The instance's actor, started at first use."""
        id = InstanceId(self.id, index)
        found = self._directory.instance_refs.get(id)
        if found is not None:
            return found
        needs = InstanceNeeds(
            world=self._world, placement=self._needs.placement, deployment=self.ref
        )
        ref = self._needs.instances.start_soon(
            ChildSpec(name=f"instance/{id}", make=maker(id, needs))
        )
        self._directory.instance_refs[id] = ref
        return ref

    def _tell_again(self) -> None:
        """Accepted work that no instance has taken up: its message was lost with a crash."""
        for index, message in lost_messages(self.picture()):
            self._world.tell(self._instance_ref(index), message)

    def _instance_changed(self, message: m.InstanceChanged) -> None:
        if message.moved:
            self._tell_occupancy()
        if not message.start_failed:
            return
        picture = self.picture()
        if any(one.state is InstanceState.READY for one in picture.active):
            return
        one = self._directory.instance(message.instance)
        if one.failure is not None:
            answer = activation_refusal(self.data.spec.name, one.failure)
            self._directory.admission(self.id).refuse_waiting(answer)

    def _tell_occupancy(self) -> None:
        """What placement may do with these instances to make room for others."""
        picture = self.picture()
        spec = self.data.spec
        ready = [one for one in picture.active if one.state is InstanceState.READY]
        for one in (*picture.active, *picture.retiring):
            elsewhere = any(other.id != one.id for other in ready)
            self._world.tell(self._needs.placement, occupancy(one, spec, elsewhere))

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
