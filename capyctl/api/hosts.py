"""The routes about machines: what each is and does, what may be done with it, and inviting one."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from quart import ResponseReturnValue, request

from capyctl.api.answers import check_no_query, json_answer, read_body
from capyctl.api.carrying import Carrying
from capyctl.api.limits import Limits
from capyctl.api.work import Pool, Work
from capyctl.contracts.management import Invite, Management
from capyctl.domain.canonical import canonical_json
from capyctl.domain.ids import HostId
from capyctl.messages.deployment import ReceiptKey
from capyctl.messages.hosts import ActOnHost, DrainHost, RevokeHost, UndrainHost
from capyctl.wire.host_bodies import host_fingerprint, read_host_action, read_invite
from capyctl.wire.paths import read_id_or_name

_ACTIONS: dict[str, Callable[..., ActOnHost]] = {
    "drain": DrainHost,
    "undrain": UndrainHost,
    "revoke": RevokeHost,
}


class Hosts:
    """Handlers of everything under ``/hosts``, and of ``/invitations``."""

    def __init__(
        self, management: Management, work: Work, carrying: Carrying, *, limits: Limits
    ) -> None:
        self._management = management
        self._work = work
        self._carrying = carrying
        self._limits = limits
        self._reads = Pool("reads of hosts", limits.loads_max)

    async def every(self) -> ResponseReturnValue:
        """GET /hosts."""
        check_no_query(request)

        async def read() -> str:
            return canonical_json(dict(await self._management.hosts()))

        return await self._read(read)

    async def one(self, id: str) -> ResponseReturnValue:
        """GET /hosts/{id or name}."""
        wanted = read_id_or_name(id, what="host")
        check_no_query(request)

        async def read() -> str:
            return canonical_json(dict(await self._management.host(wanted)))

        return await self._read(read)

    async def act(self, id: str) -> ResponseReturnValue:
        """POST /hosts/{id}/actions."""
        host = HostId(read_id_or_name(id, what="host"))
        key = self._carrying.key()
        scope = f"hosts:{host}"
        with self._carrying.take() as slot:
            action = read_host_action(await read_body(request, self._limits))
            fingerprint = host_fingerprint(scope, {"action": action})
            receipt = ReceiptKey(scope=scope, key=key, fingerprint=fingerprint)
            change = _ACTIONS[action](host=host, receipt=receipt)

            async def accept() -> str:
                return await self._management.act_on_host(host, change)

            return await self._carrying.carry_out(slot, receipt, accept, self._limits.answer_s_max)

    async def invite(self) -> ResponseReturnValue:
        """POST /invitations."""
        key = self._carrying.key()
        scope = "invitations"
        with self._carrying.take() as slot:
            body = read_invite(await read_body(request, self._limits))
            receipt = ReceiptKey(scope=scope, key=key, fingerprint=body.fingerprint(scope))

            async def accept() -> str:
                return await self._management.invite(
                    Invite(
                        name=body.name,
                        expires_in_ms=body.expires_in_ms,
                        recover=body.recover,
                        receipt=receipt,
                    )
                )

            return await self._carrying.carry_out(slot, receipt, accept, self._limits.answer_s_max)

    async def _read(self, read: Callable[[], Awaitable[str]]) -> ResponseReturnValue:
        with self._reads.take() as slot:
            within_s = self._limits.answer_s_max
            return json_answer(await self._work.answer(slot, read, within_s=within_s))
