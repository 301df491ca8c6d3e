"""Waiting for a new connection to an engine to stand: bounded, and given up with its client."""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable

import trio

from capyctl.dataplane.client import Client
from capyctl.dataplane.engine_link import EngineLink
from capyctl.dataplane.pool import EnginePool
from capyctl.domain.launches import Endpoint


class Dial:
    """For one request. Whoever it serves calls `look` at each alarm of its client."""

    __slots__ = ("_client", "_end_s", "_is_over", "_pool", "_timeout_s")

    def __init__(self, client: Client, pool: EnginePool, timeout_s: float) -> None:
        self._client = client
        self._pool = pool
        self._timeout_s = timeout_s
        self._end_s = math.inf
        self._is_over = False

    async def connect(
        self, owner: Hashable, endpoint: Endpoint, given_up: Callable[[], bool]
    ) -> EngineLink | None:
        """A new connection, or None: refused, too slow, or given up. Cancelling closes it."""
        client = self._client
        try:
            address = await self._address(endpoint)
            link = self._pool.open(owner, endpoint, address)
        except (OSError, trio.TooSlowError):
            return None
        if link.connected:
            return link
        link.watch_connect(client.bell.ring)
        self._is_over = False
        self._end_s = trio.current_time() + self._timeout_s
        client.arm(self._end_s)
        try:
            while not (link.connected or link.error or self._is_over or given_up()):
                await client.bell.wait()
        finally:
            self._end_s = math.inf
            if not link.connected:
                link.close()
        return link if link.connected else None

    async def _address(self, endpoint: Endpoint) -> str:
        if endpoint.ingress is None:
            return endpoint.host
        with trio.fail_after(self._timeout_s):
            return await self._pool.names.address(endpoint.host)

    def look(self, now_s: float) -> float:
        """When to look again; infinity while nothing is awaited."""
        if now_s >= self._end_s:
            self._end_s = math.inf
            self._is_over = True
            self._client.bell.ring()
        return self._end_s
