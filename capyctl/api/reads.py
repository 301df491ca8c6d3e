"""The routes that only read, all but the events."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Mapping, Sequence

import trio
from quart import ResponseReturnValue, request

from capyctl.api.answers import check_no_query, json_answer
from capyctl.api.limits import Limits
from capyctl.api.work import Pool, Work
from capyctl.contracts.management import Management
from capyctl.domain.canonical import canonical_json
from capyctl.domain.errors import Refused
from capyctl.domain.ids import DeploymentId
from capyctl.wire.paths import read_deployment_id, read_id_or_name, read_log_id
from capyctl.wire.query import read_query
from capyctl.wire.redaction import redacted

KIB_DEFAULT = 64
KIB_MAX = 256
_DIGITS = re.compile(r"[0-9]{1,9}")


def no_phases() -> Mapping[str, object]:
    """The body of metrics/latency where nothing measures it."""
    return {"api_version": "1", "phases": []}


def no_sources() -> Sequence[str]:
    """The remote sources in use where there are none."""
    return ()


class Reads:
    """Handlers of GET. A slot is held until its read has ended, not until the client has."""

    def __init__(
        self,
        management: Management,
        work: Work,
        *,
        limits: Limits,
        latency: Callable[[], Mapping[str, object]],
        model_sources: Callable[[], Sequence[str]],
    ) -> None:
        self._management = management
        self._work = work
        self._limits = limits
        self._latency = latency
        self._model_sources = model_sources
        self._reads = Pool("reads", limits.reads_max)
        self._loads = Pool("reads of the load", limits.loads_max)
        self._logs = Pool("reads of engine logs", limits.logs_max)

    async def snapshot(self) -> ResponseReturnValue:
        """GET /snapshot."""
        check_no_query(request)
        return await self._answer(self._reads, self._management.snapshot)

    async def effective_config(self, id: str) -> ResponseReturnValue:
        """GET /deployments/{id or name}/effective-config."""
        wanted = read_id_or_name(id)
        check_no_query(request)

        async def read() -> str:
            return canonical_json(redacted(await self._management.effective_config(wanted)))

        return await self._answer(self._reads, read)

    async def model_sources(self) -> ResponseReturnValue:
        """GET /model-sources."""
        check_no_query(request)

        async def read() -> str:
            return canonical_json({"api_version": "1", "referenced": [*self._model_sources()]})

        return await self._answer(self._reads, read)

    async def engine_log(self, id: str) -> ResponseReturnValue:
        """GET /deployments/{id}/engine-log."""
        deployment = read_log_id(id)
        asked = read_query(request.scope["query_string"], ("instance", "kib"))
        instance = _number(asked, "instance")
        kib = _number(asked, "kib")
        kib = KIB_DEFAULT if kib is None else kib
        if not 1 <= kib <= KIB_MAX:
            raise Refused("invalid_request", f"kib must be a number from 1 to {KIB_MAX}")

        async def read() -> str:
            body = await self._management.engine_log(deployment, instance=instance, kib=kib)
            return canonical_json(dict(body))

        return await self._answer(self._logs, read)

    async def load(self) -> ResponseReturnValue:
        """GET /metrics/load."""
        asked = read_query(request.scope["query_string"], ("deployment",)).get("deployment")
        deployment: DeploymentId | None = None if asked is None else read_deployment_id(asked)

        async def read() -> str:
            return canonical_json(dict(await self._management.load(deployment)))

        return await self._answer(self._loads, read)

    async def latency(self) -> ResponseReturnValue:
        """GET /metrics/latency."""
        check_no_query(request)

        async def read() -> str:
            return canonical_json(dict(self._latency()))

        return await self._answer(self._loads, read)

    async def openapi(self) -> ResponseReturnValue:
        """GET /openapi.json."""
        check_no_query(request)
        return json_answer(await trio.to_thread.run_sync(_description))

    async def _answer(
        self, pool: Pool, read: Callable[[], Awaitable[bytes | str]]
    ) -> ResponseReturnValue:
        with pool.take() as slot:
            within_s = self._limits.answer_s_max
            return json_answer(await self._work.answer(slot, read, within_s=within_s))


def _description() -> str:
    # Its schemas take a while to load and are seldom asked for.
    from capyctl.wire.openapi import openapi_json

    return openapi_json()


def _number(fields: Mapping[str, str], name: str) -> int | None:
    text = fields.get(name)
    if text is None:
        return None
    if _DIGITS.fullmatch(text) is None:
        raise Refused("invalid_request", f"{name} must be a decimal number")
    return int(text)
