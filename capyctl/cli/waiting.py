"""Looks again and again, within a bound, and shows what a command waits for."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from capyctl.cli.client import Client
from capyctl.cli.progress import Progress
from capyctl.client.judging import Pending

POLL_S = 0.5
T = TypeVar("T")


def wait_for(
    client: Client,
    look: Callable[[Mapping[str, Any]], T | Pending],
    *,
    until_ms: int,
    progress: Progress,
    every_s: float = POLL_S,
) -> T:
    """What ``look`` makes of the first snapshot that it does not call `Pending`.

    A management API that is busy, or away for a while, is asked again.

    Args:
        until_ms: Unix time.

    Raises:
        WaitedTooLong: the bound came first; at least one snapshot was asked for.
        CommandFailed: whatever ``look`` raises, and a read that is refused for good.
    """
    try:
        return client.wait(
            look,
            until_ms=until_ms,
            every_s=every_s,
            on_wait=lambda what: progress.show(what, until_ms),
        )
    finally:
        progress.end()
