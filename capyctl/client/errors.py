"""What a call of the client can end with, other than its result."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


class ClientError(Exception):
    """Any of the errors below."""


class Unanswered(ClientError):
    """Nothing came back, or it broke off.

    ``sent`` tells whether the request may have arrived: a change may then have been made, and
    the same key and body find out.
    """

    def __init__(self, reason: str, *, sent: bool) -> None:
        super().__init__(reason)
        self.sent = sent


class RefusedByApi(ClientError):
    """An error answer: ``code``, ``message``, ``details``, ``retryable`` and its ``status``."""

    def __init__(
        self,
        code: str,
        message: str,
        *,
        status: int,
        details: Mapping[str, Any] | None = None,
        retryable: bool = False,
    ) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.status = status
        self.details: Mapping[str, Any] = details or {}
        self.retryable = retryable

    def __str__(self) -> str:
        return f"{self.code}: {self.message}"


class NotTheApi(ClientError):
    """What answered does not speak this API, or not within its bounds.

    ``retryable`` where it looks like a proxy whose server is away.
    """

    def __init__(self, message: str, *, retryable: bool = False) -> None:
        super().__init__(message)
        self.retryable = retryable


class StartFailed(ClientError):
    """A start is over and not every instance serves. ``reason`` and ``hint`` are the API's."""

    def __init__(self, name: str, reason: str, hint: str | None) -> None:
        super().__init__(f"{name} was not started: {reason}" + (f". {hint}" if hint else ""))
        self.reason = reason
        self.hint = hint


class Vanished(ClientError):
    """The deployment was deleted while something was awaited of it."""


class WaitedTooLong(ClientError):
    """The bound came first. ``last`` is what was waited for last."""

    def __init__(self, last: str) -> None:
        super().__init__(last)
        self.last = last
