"""Everything behind the management API: committed reads, and asks of the control plane."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

import attrs
import trio

from actors import ActorGone, AskTimedOut, MailboxFull, Ref, ask
from capyctl.contracts.hosts import CapabilityMissing
from capyctl.contracts.management import CursorExpired, Invite
from capyctl.control.sessions import SessionState
from capyctl.control.surroundings import World
from capyctl.daemon.hosts_view import HostsView
from capyctl.daemon.load import LoadView
from capyctl.domain.canonical import canonical_json
from capyctl.domain.errors import Refused
from capyctl.domain.events import Event, Receipt
from capyctl.domain.hosts import Invitation
from capyctl.domain.ids import DeploymentId, HostId, InstanceId
from capyctl.domain.specs import DeploymentSpec, ResolvedSpec
from capyctl.machines.deployment import Deployment
from capyctl.machines.fitting import fits_of
from capyctl.messages.catalogue import Create
from capyctl.messages.deployment import Act, Replace
from capyctl.messages.hosts import ActOnHost, InviteHost
from capyctl.store.sqlite_store import SqliteStore
from capyctl.telemetry import hub as telemetry
from capyctl.telemetry.fragments import Fragments

ASK_S = 3600.0
"""The API answers 504 after 15 s by itself; the work goes on until it is done."""


@attrs.define(eq=False)
class HubReader:
    """One subscription, in the API's words."""

    inner: telemetry.Subscription

    async def next_page(self) -> tuple[Event, ...]:
        try:
            return await self.inner.next_page()
        except telemetry.CursorExpired as expired:
            raise CursorExpired(str(expired)) from expired

    def close(self) -> None:
        return


@attrs.frozen(kw_only=True)
class MadeInvitation:
    """A fresh invitation, and the text of its join file, which holds the secret."""

    invitation: Invitation
    document: str = attrs.field(repr=False)


@attrs.frozen(kw_only=True, eq=False)
class HostChanges:
    """What is done with machines."""

    hosts: Ref[Any]
    """The hosts actor, or the one of the own machine."""
    make_invitation: Callable[[Invite, HostId | None], MadeInvitation]
    """Of a new host, or (its id given) of one that is to come back. Nothing is stored by it.
    Raises Refused where there are no others."""


@attrs.frozen(kw_only=True, eq=False)
class DaemonManagement:
    """Implements `contracts.management.Management`."""

    world: World
    store: SqliteStore
    fragments: Fragments
    hub: telemetry.Hub
    catalogue: Ref[Any]
    load_view: LoadView
    completer: Callable[[Mapping[str, object]], DeploymentSpec]
    hosts_view: HostsView
    host_changes: HostChanges

    @property
    def incarnation(self) -> str:
        return self.fragments.incarnation

    @property
    def last_seq(self) -> int:
        return self.fragments.last_seq

    async def snapshot(self) -> bytes:
        await trio.lowlevel.checkpoint()
        return self.fragments.snapshot()

    async def find_receipt(self, scope: str, key: str) -> Receipt | None:
        return await self.store.find_receipt(scope, key)

    def complete(self, document: Mapping[str, object]) -> DeploymentSpec:
        return self.completer(document)

    def check_known(self, deployment: DeploymentId, instance: int | None) -> None:
        found = self.world.directory.deployments.get(deployment)
        if found is None:
            raise Refused("not_found", f"There is no deployment {deployment}")
        if instance is not None and instance >= found.spec.instances:
            raise Refused(
                "not_found",
                f"`{found.spec.name}` has no instance {instance}: it has {found.spec.instances}, "
                "counted from 0",
            )

    async def create(self, request: Create) -> str:
        self._check_store()
        return await self._ask(self.catalogue, request)

    async def replace(self, deployment: DeploymentId, request: Replace) -> str:
        return await self._ask(self._deployment(deployment), request)

    async def act(self, deployment: DeploymentId, request: Act) -> str:
        return await self._ask(self._deployment(deployment), request)

    def _check_store(self) -> None:
        if (why := self.store.why_broken) is not None:
            raise Refused("reconciliation_required", _sentence(why))

    def _deployment(self, id: DeploymentId) -> Ref[Any]:
        self._check_store()
        found = self.world.directory.deployment_refs.get(id)
        if found is None or id not in self.world.directory.deployments:
            raise Refused("not_found", f"There is no deployment {id}")
        return found

    async def _ask(self, ref: Ref[Any], message: object) -> str:
        try:
            response = await ask(ref, message, within_s=ASK_S)
        except MailboxFull as full:
            raise Refused("queue_full", "Too many changes at once") from full
        except (ActorGone, AskTimedOut) as gone:
            raise Refused(
                "reconciliation_required",
                "The deployment is being recovered; send the same request again",
            ) from gone
        assert isinstance(response, str)
        return response

    async def hosts(self) -> Mapping[str, object]:
        await trio.lowlevel.checkpoint()
        return self.hosts_view.every()

    async def host(self, id_or_name: str) -> Mapping[str, object]:
        await trio.lowlevel.checkpoint()
        return self.hosts_view.one(id_or_name)

    async def act_on_host(self, host: HostId, request: ActOnHost) -> str:
        self._check_store()
        known = self.hosts_view.find(host)
        return await self._ask(self.host_changes.hosts, attrs.evolve(request, host=known.id))

    async def invite(self, request: Invite) -> str:
        self._check_store()
        known = self.hosts_view.find(request.name) if request.recover else None
        made = self.host_changes.make_invitation(request, None if known is None else known.id)
        told = InviteHost(invitation=made.invitation, receipt=request.receipt)
        response = await self._ask(self.host_changes.hosts, told)
        receipt = json.loads(response)
        if receipt["invitation_id"] != made.invitation.id:
            return response  # the key's first request came before: ours was not stored
        return canonical_json({**receipt, "document": made.document})

    async def subscribe(self, after_seq: int | None) -> HubReader:
        subscription = self.hub.subscribe(after_seq)
        return HubReader(subscription)

    async def effective_config(self, id_or_name: str) -> Mapping[str, object]:
        deployment = self._found(id_or_name)
        document = json.loads(deployment.spec.document)
        entry = self.fragments.deployment(deployment.id)
        fits = fits_of(deployment)
        hosts = [
            {
                "host_id": host["host_id"],
                "outcome": host["outcome"],
                "effective": _engine_view(fits.get(host["host_id"])),
                "diagnostic": host.get("diagnostic"),
            }
            for host in entry["hosts"]
        ]
        return {
            "api_version": "1",
            "deployment_id": deployment.id,
            "revision": deployment.revision,
            "effective": document,
            "hosts": hosts,
        }

    def referenced_sources(self) -> list[str]:
        """Keys of the remote sources that deployments name, sorted, each once."""
        specs = (deployment.spec for deployment in self.world.directory.deployments.values())
        return sorted({spec.source.key for spec in specs if spec.source is not None})

    def _found(self, id_or_name: str) -> Deployment:
        found = self.fragments.find(id_or_name)
        if found is None:
            raise Refused("not_found", "There is no such deployment")
        return found

    async def engine_log(
        self, deployment: DeploymentId, *, instance: int | None, kib: int
    ) -> Mapping[str, object]:
        found = self.fragments.deployments.get(deployment)
        if found is None:
            raise Refused("not_found", f"There is no deployment {deployment}")
        if instance is None:
            if found.spec.instances > 1:
                raise Refused("invalid_request", "Name the instance: this deployment has several")
            instance = 0
        one = self.fragments.instance(InstanceId(deployment, instance))
        if one is None or one.launch is None or one.held is None:
            raise Refused("not_found", f"Instance {instance} does not run")
        host_id = HostId(one.held.candidate.host)
        if self.world.sessions.state(host_id) is not SessionState.ONLINE:
            raise Refused("observation_stale", "Its host is offline; ask again once it is back")
        try:
            tail = await self.world.hosts[host_id].log_tail(one.launch, bytes_max=kib * 1024)
        except PermissionError as raw:
            raise Refused("forbidden", "The log is unfiltered and is not served") from raw
        except CapabilityMissing as missing:
            raise Refused("unsupported_capability", str(missing)) from missing
        if tail is None:
            raise Refused("not_found", f"Instance {instance} has no log")
        text, truncated = tail
        return {
            "api_version": "1",
            "deployment_id": deployment,
            "instance": instance,
            "host_id": str(one.held.candidate.host),
            "incarnation": one.launch.launch,
            "kib": kib,
            "truncated": truncated,
            "text": text,
            "read_at_ms": self.world.clock.wall_ms(),
        }

    async def load(self, deployment: DeploymentId | None) -> Mapping[str, object]:
        if deployment is not None and deployment not in self.fragments.deployments:
            raise Refused("not_found", f"There is no deployment {deployment}")
        return self.load_view.render(deployment)


def _sentence(text: str) -> str:
    return text[:1].upper() + text[1:]


def _engine_view(resolved: ResolvedSpec | None) -> dict[str, Any] | None:
    if resolved is None:
        return None
    engine = resolved.engine
    return {
        "profile": engine.profile,
        "profile_revision": engine.profile_revision,
        "residency": resolved.residency.value,
        "served_name": engine.served_name,
        "model_path": engine.model_path,
        "context_length": engine.context_length,
        "max_concurrent_requests": engine.concurrency,
        "engine_config": dict(engine.typed),
        "extra_args": list(engine.extra_args),
        "env": dict.fromkeys(engine.env, "[redacted]"),
        "weights_bytes": resolved.weights_bytes,
        "memory": [
            {
                "host_id": candidate.host,
                "gpu": candidate.gpu,
                "phases": {
                    phase: dict(getattr(candidate.charges, phase))
                    for phase in ("cold", "ready", "parking", "parked", "wake")
                },
            }
            for candidate in resolved.candidates
        ],
    }
