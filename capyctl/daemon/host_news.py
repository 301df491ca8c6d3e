"""What a server's log says of its hosts: when each came and went, by name, and what that means."""

from __future__ import annotations

from typing import Any

import attrs

from capyctl.control.directory import Directory
from capyctl.domain.hosts import HostState
from capyctl.domain.ids import HostId
from capyctl.telemetry.log import Log


@attrs.define(eq=False)
class HostNews:
    """Says each change once."""

    directory: Directory
    log: Log
    silent_s: float
    """After which a host is suspended."""
    lost_s: float
    _said: dict[HostId, str] = attrs.field(factory=dict)

    def online(self, host: HostId) -> None:
        if self._is_news(host, "online"):
            self.log.event("host_online", **self._fields(host))

    def suspended(self, host: HostId) -> None:
        if self._is_news(host, "suspended"):
            what = f"nothing was heard for {self.silent_s:g} s: no more requests go there"
            self.log.warning("host_suspended", **self._fields(host), message=what)

    def lost(self, host: HostId) -> None:
        record = self.directory.hosts.get(host)
        if record is not None and record.state is HostState.REVOKED:
            if self._is_news(host, "revoked"):
                self.log.warning("host_revoked", **self._fields(host))
        elif self._is_news(host, "lost"):
            what = (
                f"nothing was heard for {self.lost_s:g} s: what runs there is uncertain and stays "
                "charged. See that capyctl runs there and reaches this server"
            )
            self.log.warning("host_lost", **self._fields(host), message=what)

    def _is_news(self, host: HostId, state: str) -> bool:
        before, self._said[host] = self._said.get(host), state
        return before != state

    def _fields(self, host: HostId) -> dict[str, Any]:
        record = self.directory.hosts.get(host)
        there = sum(
            one.host == host for mine in self.directory.instances.values() for one in mine.values()
        )
        return {"host": host, "name": None if record is None else record.name, "instances": there}
