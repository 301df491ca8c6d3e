"""A peer that has connected and is not known yet: its TLS handshake, bounded in time."""

from __future__ import annotations

import math
from collections.abc import Callable

import trio

from capyctl.dataplane.alarms import Alarms
from capyctl.dataplane.poller import PolledSocket
from capyctl.dataplane.tls import ListenerTls
from capyctl.dataplane.tls_socket import TlsSocket

HANDSHAKE_S_MAX = 10.0


class Handshake:
    """Ends in one call of ``on_end``: with an accepted peer's socket, or None when it is closed.

    A peer that is not accepted gets an end in order and nothing else, so that it knows that no
    byte of it was read.
    """

    __slots__ = ("_alarms", "_end_s", "_is_over", "_on_end", "_secured", "_tls", "armed_s")

    def __init__(
        self,
        alarms: Alarms,
        polled: PolledSocket,
        tls: ListenerTls,
        on_end: Callable[[TlsSocket | None], None],
    ) -> None:
        self._alarms = alarms
        self._tls = tls
        self._on_end = on_end
        self._secured = TlsSocket(polled, tls.checked_context())
        self._end_s = trio.current_time() + HANDSHAKE_S_MAX
        self._is_over = False
        self.armed_s = math.inf

    def begin(self) -> None:
        self._alarms.arm(self, self._end_s)
        self._secured.shake_hands(self._shaken)

    def give_up(self) -> None:
        """Close it, whoever it is."""
        if not self._is_over:
            self._secured.close()
            self._finish(None)

    def on_alarm(self, now_s: float) -> float:
        if now_s < self._end_s:
            return self._end_s
        self.give_up()
        return math.inf

    def _shaken(self, why_not: str | None) -> None:
        secured = self._secured
        if why_not is None and self._tls.accepts(secured.ssl):
            self._finish(secured)
            return
        if why_not is None:
            secured.end_sending()
        secured.close()
        self._finish(None)

    def _finish(self, secured: TlsSocket | None) -> None:
        self._is_over = True
        self._alarms.disarm(self)
        self._on_end(secured)
