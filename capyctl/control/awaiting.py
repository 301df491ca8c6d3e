"""Changes that wait for another actor's word, for as long as that may take."""

from __future__ import annotations

from typing import Any, TypeAlias

from actors import ReplyTo, Timers
from capyctl.messages.deployment import Act, Replace, Unanswered

ANSWER_S = 10.0

Waiting: TypeAlias = tuple[Act | Replace, ReplyTo | None]


class Awaiting:
    """Of one deployment's actor. Placement and the catalogue answer at once; one that failed
    meanwhile never does."""

    def __init__(self, timers: Timers[Any]) -> None:
        self._timers = timers
        self._waiting: dict[str, Waiting] = {}

    def expect(self, request: str, change: Act | Replace, reply: ReplyTo | None) -> None:
        """`Unanswered` comes when no word did in `ANSWER_S`."""
        self._waiting[request] = (change, reply)
        self._timers.set(f"answer/{request}", ANSWER_S, Unanswered(request=request))

    def take(self, request: str) -> Waiting | None:
        """What the word is for; None when that was given up, or never ours."""
        self._timers.cancel(f"answer/{request}")
        return self._waiting.pop(request, None)
