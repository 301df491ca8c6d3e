"""What the management API is given: reads of committed state, and where changes go."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

import attrs

from capyctl.domain.events import Event, Receipt
from capyctl.domain.ids import DeploymentId, HostId
from capyctl.domain.specs import DeploymentSpec
from capyctl.messages.catalogue import Create
from capyctl.messages.deployment import Act, ReceiptKey, Replace
from capyctl.messages.hosts import ActOnHost


class CursorExpired(Exception):
    """The point asked for is no longer retained, or belongs to another incarnation."""


@attrs.frozen(kw_only=True)
class Invite:
    """A machine is to be let in, or a revoked one to come back."""

    name: str
    expires_in_ms: int
    recover: bool
    receipt: ReceiptKey


class Subscription(Protocol):
    """One reader's place in the history."""

    async def next_page(self) -> tuple[Event, ...]:
        """At least one event after the last page, oldest first; waits for one.

        Cancelling it loses no event: the next call begins where this one did.

        Raises:
            CursorExpired: retention overtook this reader.
        """

    def close(self) -> None: ...


class Management(Protocol):
    """Everything behind the HTTP surface. Reads never wait for an actor.

    Changes raise `domain.errors.Refused`; nothing else that a client can cause.
    """

    @property
    def incarnation(self) -> str: ...

    @property
    def last_seq(self) -> int:
        """Sequence of the newest committed event."""

    async def snapshot(self) -> bytes:
        """The body of GET /snapshot, rendered: one consistent state at its cursor."""

    async def find_receipt(self, scope: str, key: str) -> Receipt | None: ...

    def complete(self, document: Mapping[str, object]) -> DeploymentSpec:
        """The completed document of a create or replace. Raises Refused(invalid_config …)."""

    def check_known(self, deployment: DeploymentId, instance: int | None) -> None:
        """Raises Refused(not_found) for a deployment, or an index of it, that is not there."""

    async def create(self, request: Create) -> str:
        """The receipt's JSON. May raise Refused."""

    async def replace(self, deployment: DeploymentId, request: Replace) -> str: ...

    async def act(self, deployment: DeploymentId, request: Act) -> str: ...

    async def subscribe(self, after_seq: int | None) -> Subscription:
        """Events after a sequence; None from the oldest retained one.

        Raises:
            CursorExpired: older than what is retained.
        """

    async def effective_config(self, id_or_name: str) -> Mapping[str, object]:
        """The body of GET effective-config, secrets not yet redacted. Raises Refused."""

    async def engine_log(
        self, deployment: DeploymentId, *, instance: int | None, kib: int
    ) -> Mapping[str, object]:
        """The body of GET engine-log. Raises Refused."""

    async def load(self, deployment: DeploymentId | None) -> Mapping[str, object]:
        """The body of GET metrics/load. Raises Refused."""

    async def hosts(self) -> Mapping[str, object]:
        """The body of GET hosts: every machine, by name."""

    async def host(self, id_or_name: str) -> Mapping[str, object]:
        """The body of GET hosts/{id or name}. Raises Refused."""

    async def act_on_host(self, host: HostId, request: ActOnHost) -> str:
        """The receipt's JSON. May raise Refused."""

    async def invite(self, request: Invite) -> str:
        """The receipt's JSON with the invitation's text, which no receipt holds: it is shown once.

        May raise Refused.
        """
