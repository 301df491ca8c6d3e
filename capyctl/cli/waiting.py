"""Looks again and again, within a bound, until what a command waits for has come about."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import attrs

from capyctl.cli.client import PREFIX, Client, Unanswered
from capyctl.cli.failure import CommandFailed
from capyctl.cli.progress import Progress
from capyctl.cli.surroundings import Surroundings

POLL_S = 0.5
T = TypeVar("T")


@attrs.frozen
class Pending:
    """Not yet; ``what`` is being waited for."""

    what: str


class WaitedTooLong(Exception):
    """The bound came first. ``last`` is the last thing that was waited for."""

    def __init__(self, last: str) -> None:
        super().__init__(last)
        self.last = last


def wait_for(
    client: Client,
    here: Surroundings,
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
    what = ""
    try:
        while True:
            found = _look_once(client, look)
            if not isinstance(found, Pending):
                return found
            what = found.what
            left_s = (until_ms - here.wall_ms()) / 1000
            if left_s <= 0:
                raise WaitedTooLong(what)
            progress.show(what, until_ms)
            here.sleep(min(every_s, left_s))
    finally:
        progress.end()


def _look_once(client: Client, look: Callable[[Mapping[str, Any]], T | Pending]) -> T | Pending:
    try:
        snapshot = client.get(f"{PREFIX}/snapshot")
    except Unanswered as problem:
        return Pending(f"capyctl at {client.role.address} does not answer: {problem}")
    except CommandFailed as failure:
        if failure.retryable:
            return Pending(f"capyctl at {client.role.address} is busy: {failure.code}")
        raise
    return look(snapshot)
