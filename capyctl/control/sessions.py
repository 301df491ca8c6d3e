"""How each host that is not this machine is reached now. Written by what hears it; read by all."""

from __future__ import annotations

import enum

import attrs

from capyctl.domain.devices import MemorySample
from capyctl.domain.hosts import Compatibility
from capyctl.domain.ids import HostId


class SessionState(enum.Enum):
    ONLINE = "online"
    SUSPENDED = "suspended"
    """Silent for a while: nothing new goes there, what is under way waits."""
    AWAITED = "awaited"
    """Not met since this daemon began: nothing is known of it, and it may come any moment."""
    LOST = "lost"
    """Silent, or awaited, for so long that it is not counted on."""


@attrs.define(eq=False, kw_only=True)
class Session:
    """One host's, as far as this daemon has seen it. Outlives every actor."""

    state: SessionState = SessionState.AWAITED
    since_s: float
    """When it came to that state."""
    recorded: SessionState = SessionState.AWAITED
    """What an event was last stored of."""
    compatibility: Compatibility = Compatibility.SUPPORTED
    fresh_due: bool = False
    """It came back as another one, or after it was lost, and not all have been told yet."""


@attrs.define(eq=False)
class Sessions:
    """By host. This machine itself has none: it is always there."""

    memory: dict[HostId, MemorySample] = attrs.field(factory=dict)
    """The newest look at the memory of each host, this machine's included."""
    untaken: set[HostId] = attrs.field(factory=set)
    """Hosts of which placement was told that there is a look, and has not taken it in yet."""
    _by_host: dict[HostId, Session] = attrs.field(factory=dict)

    def of(self, host: HostId) -> Session | None:
        """None for this machine, and for one that nobody enrolled."""
        return self._by_host.get(host)

    def state(self, host: HostId) -> SessionState:
        found = self._by_host.get(host)
        return SessionState.ONLINE if found is None else found.state

    def is_lost(self, host: HostId) -> bool:
        """Whether nothing is known of what runs there now."""
        return self.state(host) in (SessionState.LOST, SessionState.AWAITED)

    def may_return_soon(self, host: HostId) -> bool:
        """Whether it is worth waiting for, though nothing can begin there now."""
        return self.state(host) in (SessionState.SUSPENDED, SessionState.AWAITED)

    def expect(self, host: HostId, now_s: float) -> Session:
        """The host's session; awaited until it comes."""
        found = self._by_host.get(host)
        if found is None:
            found = self._by_host[host] = Session(since_s=now_s)
        return found

    def move(self, host: HostId, state: SessionState, now_s: float) -> None:
        found = self.expect(host, now_s)
        if found.state is not state:
            found.state, found.since_s = state, now_s
