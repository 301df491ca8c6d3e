"""The one exception of commands: a code, which decides the exit status, and words for people."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from capyctl.cli.exit_codes import exit_status


class CommandFailed(Exception):
    """The command ends without its result.

    ``retryable`` tells that the same request can succeed later.
    """

    def __init__(
        self,
        code: str,
        message: str,
        *,
        details: Mapping[str, Any] | None = None,
        retryable: bool = False,
    ) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.details: Mapping[str, Any] = details or {}
        self.retryable = retryable

    @property
    def exit_status(self) -> int:
        return exit_status(self.code)

    def __repr__(self) -> str:
        return f"CommandFailed({self.code!r}, {self.message!r})"
