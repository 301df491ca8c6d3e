"""An operator of a world: changes of every kind, sent as the management API sends them."""

from __future__ import annotations

import json
import random
from typing import Any

import attrs
import trio

from actors import ActorGone, AskTimedOut, MailboxFull, Ref, ask
from capyctl.contracts.store import Store
from capyctl.control.directory import Directory
from capyctl.domain.errors import Refused
from capyctl.domain.ids import DeploymentId
from capyctl.domain.specs import DeploymentSpec, Residency
from capyctl.messages.catalogue import Create
from capyctl.messages.deployment import Act, ActionKind, ReceiptKey, Replace
from capyctl.messages.hosts import ActOnHost
from capyctl.simulation.names import WorldClock, WorldIds

ASK_S = 3600.0
DEADLINE_S = 1800.0
UNKNOWN = "unknown"
"""No answer: the daemon, or the actor, ended first."""


@attrs.frozen(kw_only=True)
class Sent:
    """One change, to be sent again under the same key."""

    target: DeploymentId | None
    """None: the catalogue, or the hosts actor."""
    message: Create | Act | Replace | ActOnHost

    @property
    def key(self) -> tuple[str, str]:
        return (self.message.receipt.scope, self.message.receipt.key)


@attrs.define(eq=False)
class Desk:
    """Where one daemon takes changes."""

    store: Store
    directory: Directory
    catalogue: Ref[Any]
    hosts: Ref[Any] | None = None

    async def take(self, sent: Sent) -> str:
        """The receipt's JSON. Raises Refused, ActorGone, AskTimedOut, MailboxFull."""
        scope, key = sent.key
        known = await self.store.find_receipt(scope, key)
        if known is not None:
            return known.response
        response = await ask(self._ref(sent), sent.message, within_s=ASK_S)
        assert isinstance(response, str)
        return response

    def _ref(self, sent: Sent) -> Ref[Any]:
        target = sent.target
        if isinstance(sent.message, ActOnHost):
            assert self.hosts is not None
            return self.hosts
        if target is None:
            return self.catalogue
        found = self.directory.deployment_refs.get(target)
        if found is None or target not in self.directory.deployments:
            raise Refused("not_found", f"There is no deployment {target}")
        return found


class Operator:
    """Draws changes and remembers what they were answered with, for as long as the world."""

    def __init__(self, chance: random.Random, clock: WorldClock, ids: WorldIds) -> None:
        self.chance = chance
        self._clock = clock
        self._ids = ids
        self.history: list[Sent] = []
        self.answers: dict[tuple[str, str], str] = {}
        self.refusals: list[str] = []
        self._names_count = 0

    async def send(self, desk: Desk, sent: Sent) -> str:
        """Send one change; ``accepted``, `UNKNOWN`, or the code it is refused with.

        The same key is always answered the same.
        """
        try:
            response = await desk.take(sent)
        except Refused as refused:
            ours = refused.code in ("internal", "reconciliation_required")
            assert ours or sent.key not in self.answers, f"{sent}: accepted, and refused now"
            self.refusals.append(refused.code)
            return refused.code
        except (ActorGone, AskTimedOut, MailboxFull):
            return UNKNOWN
        before = self.answers.setdefault(sent.key, response)
        assert before == response, f"{sent} was answered {before}, and now {response}"
        json.loads(response)
        return "accepted"

    def draw(self, directory: Directory) -> Sent | None:
        """A change that might make sense now; now and then one that was sent before."""
        chance = self.chance
        known = list(directory.deployments)
        if self.history and chance.random() < 0.08:
            return chance.choice(self.history)
        if len(known) < 2 or (len(known) < 5 and chance.random() < 0.1):
            return self.keep(self.create())
        target = chance.choice(known)
        spec, revision = directory.deployments[target].spec, directory.deployments[target].revision
        if chance.random() < 0.03:
            revision += 1
        if chance.random() < 0.1:
            return self.keep(self._replace(target, spec, revision))
        kinds, weights = zip(*_ACTIONS.items(), strict=True)
        action = chance.choices(kinds, weights)[0]
        index = None
        if action in (ActionKind.START, ActionKind.STOP) and chance.random() < 0.45:
            index = chance.randrange(spec.instances + (chance.random() < 0.1))
        evict = action is ActionKind.START and chance.random() < 0.5
        return self.keep(self.act(target, action, revision, index=index, evict=evict))

    def keep(self, sent: Sent) -> Sent:
        self.history.append(sent)
        return sent

    def create(self) -> Sent:
        self._names_count += 1
        spec = self.spec(f"m{self._names_count}")
        if self.chance.random() < 0.1 and self._names_count > 1:
            spec = attrs.evolve(spec, name=f"m{self._names_count - 1}")
        return Sent(target=None, message=Create(spec=spec, receipt=self.receipt("create")))

    def act(
        self,
        target: DeploymentId,
        action: ActionKind,
        revision: int,
        *,
        index: int | None = None,
        evict: bool = False,
        patient: bool = False,
    ) -> Sent:
        """``patient``: with the furthest deadline, so that a slow engine is no reason to fail."""
        drawn_s = self.chance.choice([40.0, 300.0, DEADLINE_S])
        deadline_s = DEADLINE_S if patient else drawn_s
        scope = f"actions:{target}" if index is None else f"instance:{target}/{index}"
        message = Act(
            action=action,
            instance=index,
            expected_revision=revision,
            deadline_at_ms=self._clock.wall_ms() + round(deadline_s * 1000),
            evict=evict,
            receipt=self.receipt(scope),
        )
        return Sent(target=target, message=message)

    def _replace(self, target: DeploymentId, spec: DeploymentSpec, revision: int) -> Sent:
        changed = attrs.evolve(spec, instances=self.chance.randint(1, 3))
        if self.chance.random() < 0.5:
            drawn = self.spec(spec.name)
            changed = attrs.evolve(drawn, routes=(*spec.routes[:1], f"r{self.chance.randrange(4)}"))
        message = Replace(
            spec=changed,
            expected_revision=revision,
            receipt=self.receipt(f"replace:{target}"),
        )
        return Sent(target=target, message=message)

    def spec(self, name: str) -> DeploymentSpec:
        chance = self.chance
        residency = chance.choice([Residency.DEEP, Residency.HOST_BACKED, Residency.RESTART_ONLY])
        return DeploymentSpec(
            name=name,
            routes=(name,),
            profile="p",
            family="vllm",
            instances=chance.choice([1, 1, 1, 2, 2, 3]),
            model_path=f"/models/{name}",
            expected_digest=None,
            residency=residency,
            explicit=chance.random() < 0.1,
            warm=chance.random() < 0.1,
            request_deadline_s=DEADLINE_S,
            document="{}",
            engine_part=str(chance.choice([6, 9, 11, 13, 16, 20, 23, 30])),
        )

    def receipt(self, scope: str) -> ReceiptKey:
        key = self._ids.ulid()
        return ReceiptKey(scope=scope, key=key, fingerprint=f"f{key}")


_ACTIONS = {
    ActionKind.START: 40,
    ActionKind.STOP: 18,
    ActionKind.PARK: 18,
    ActionKind.PREINITIALIZE: 8,
    ActionKind.DELETE: 8,
}


async def send_twice(operator: Operator, desk: Desk, sent: Sent) -> None:
    """The same change twice at the same moment, as an impatient client does."""
    async with trio.open_nursery() as nursery:
        nursery.start_soon(operator.send, desk, sent)
        nursery.start_soon(operator.send, desk, sent)
