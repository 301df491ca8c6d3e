"""Where a follower of the events goes on: after the last id, or from a new snapshot. Pure."""

from __future__ import annotations

import attrs

from capyctl.client.errors import ClientError, RefusedByApi
from capyctl.client.models import Event
from capyctl.client.retrying import Retries, pause_before_next

STREAM_FAILED = "management_stream_error"
SILENCE_S_MAX = 40.0
"""A comment comes every 15 s on a stream with nothing to tell."""
STREAMS = Retries(attempts_max=30, pause_s=0.2, pause_s_max=10.0)
"""Attempts in a row without an event between them."""


@attrs.define
class Following:
    """One follower's place. ``cursor`` None: a snapshot has to be read first."""

    retries: Retries = STREAMS
    cursor: str | None = None
    _attempt: int = attrs.field(default=0, init=False)

    def is_told(self, event: Event) -> bool:
        """Takes an event in; False for the last frame of a stream that failed."""
        if event.kind == STREAM_FAILED:
            error = event.payload.get("error")
            if isinstance(error, dict) and error.get("resnapshot_required"):
                self.cursor = None
            return False
        self.cursor = event.cursor or self.cursor
        self._attempt = 0
        return True

    def ended(self) -> float:
        """The stream came to its end, as it does every five minutes. Seconds until the next."""
        return 0.0 if self._attempt == 0 else self.retries.pause_s

    def broke(self, problem: ClientError) -> float:
        """The stream did not open, or broke. Seconds until the next attempt.

        Raises:
            ClientError: ``problem``, where another attempt would not help, or there were enough.
        """
        if isinstance(problem, RefusedByApi) and problem.code == "cursor_expired":
            self.cursor = None
            return 0.0
        pause_s = pause_before_next(self.retries, self._attempt, problem)
        if pause_s is None:
            raise problem
        self._attempt += 1
        return pause_s
