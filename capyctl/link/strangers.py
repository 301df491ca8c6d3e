"""Connections of whoever knocks: how many at a time, and how much is said of them."""

from __future__ import annotations

from collections.abc import Callable

import trio

from capyctl.link.handshake import HandshakeFailed

STRANGERS_COUNT_MAX = 256
SAID_COUNT_MAX = 20
"""Refusals told one by one; after that one a second, with how many there were beside it."""
SAID_PER_S_MAX = 1.0
SAME_S = 60.0
"""The same of one address is told no sooner again: a host at another server dials for ever."""
SAME_COUNT_MAX = 64
"""What is remembered for that."""


class Strangers:
    """Peers of whom nothing is known yet. One more than there may be takes the oldest's place.

    A machine of ours is known within milliseconds, so it gets in however many hold a connection
    and say nothing.
    """

    def __init__(self, count_max: int = STRANGERS_COUNT_MAX) -> None:
        self._count_max = count_max
        self._scopes: dict[trio.CancelScope, None] = {}

    def meet(self) -> trio.CancelScope:
        """The scope to shake hands in; hand it to `part` afterwards, whatever came of it."""
        if len(self._scopes) >= self._count_max:
            oldest = next(iter(self._scopes))
            self.part(oldest)
            oldest.cancel()
        scope = trio.CancelScope()
        self._scopes[scope] = None
        return scope

    def part(self, scope: trio.CancelScope) -> None:
        self._scopes.pop(scope, None)

    def pushed_out(self) -> HandshakeFailed:
        return HandshakeFailed(
            f"no TLS handshake, and more than {self._count_max} connections wait for one"
        )


class Rate:
    """Tokens that come back with time."""

    def __init__(self, per_s: float, *, at_once: float | None = None) -> None:
        """``at_once``: how many may be taken together; a second's worth unless it is said."""
        self._per_s = per_s
        self._most = per_s if at_once is None else at_once
        self._left = self._most
        self._at_s: float | None = None

    def take(self, now_s: float) -> bool:
        """Whether there was one."""
        if self._at_s is not None:
            self._left = min(self._most, self._left + (now_s - self._at_s) * self._per_s)
        self._at_s = now_s
        if self._left < 1:
            return False
        self._left -= 1
        return True


class Refusals:
    """Tells refusals of strangers, few enough that no flood of them fills a disk."""

    def __init__(self, log: Callable[[str, str], None]) -> None:
        """``log(address, why)``."""
        self._log = log
        self._rate = Rate(SAID_PER_S_MAX, at_once=SAID_COUNT_MAX)
        self._unsaid_count = 0
        self._told_at_s: dict[tuple[str, str], float] = {}

    def tell(self, address: str, why: str) -> None:
        now_s = trio.current_time()
        told_at_s = self._told_at_s.get((address, why), -SAME_S)
        if now_s - told_at_s < SAME_S or not self._rate.take(now_s):
            self._unsaid_count += 1
            return
        self._told_at_s.pop((address, why), None)
        self._told_at_s[address, why] = now_s
        if len(self._told_at_s) > SAME_COUNT_MAX:
            del self._told_at_s[next(iter(self._told_at_s))]
        if self._unsaid_count:
            why += f" ({self._unsaid_count} more were refused before, from whatever address)"
        self._unsaid_count = 0
        self._log(address, why)


def address_of(raw: trio.SocketStream) -> str:
    """Who is at the other end, for a log."""
    try:
        return str(raw.socket.getpeername()[0])
    except OSError:
        return "an address that is gone"
