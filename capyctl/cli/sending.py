"""Sends reads and changes until they are answered: the same bytes again, within bounds."""

from __future__ import annotations

from typing import Any

from capyctl.cli.client import ANSWER_S_MAX, PREFIX, Client, Unanswered
from capyctl.cli.failure import CommandFailed
from capyctl.cli.journal import Step
from capyctl.cli.surroundings import Surroundings

READ_ATTEMPTS_MAX = 6
CHANGE_ATTEMPTS_MAX = 4
READ_PAUSE_S = 0.1
CHANGE_PAUSE_S = 1.0
AGAIN = frozenset({"queue_full", "deadline_exceeded"})
"""Refusals after which the same change is sent again without asking the user."""


def read(client: Client, here: Surroundings, path: str) -> dict[str, Any]:
    """A read, again for as long as the API is busy: at most `READ_ATTEMPTS_MAX` times.

    Raises:
        CommandFailed: refused, or ``management_unavailable``.
    """
    for attempt in range(READ_ATTEMPTS_MAX):
        is_last = attempt == READ_ATTEMPTS_MAX - 1
        try:
            return client.get(f"{PREFIX}{path}")
        except Unanswered as problem:
            if is_last or not problem.sent:
                raise client.unreachable(problem) from problem
        except CommandFailed as failure:
            if is_last or not failure.retryable:
                raise
        here.sleep(READ_PAUSE_S * 2**attempt)
    raise AssertionError("the last attempt returns or raises")


def read_snapshot(client: Client, here: Surroundings) -> dict[str, Any]:
    """The whole snapshot. Raises as `read`."""
    return read(client, here, "/snapshot")


def send_change(
    client: Client, here: Surroundings, step: Step, *, within_s: float = ANSWER_S_MAX
) -> dict[str, Any]:
    """Send a recorded change; while it stays unanswered, the same key and bytes again.

    Raises:
        CommandFailed: refused, or ``management_unavailable``, ``deadline_exceeded`` after
            `CHANGE_ATTEMPTS_MAX` attempts: it may have been made, and its key finds out.
    """
    for attempt in range(CHANGE_ATTEMPTS_MAX):
        is_last = attempt == CHANGE_ATTEMPTS_MAX - 1
        try:
            answer = client.send(
                step.method, step.path, key=step.key, body=step.body.encode(), within_s=within_s
            )
        except Unanswered as problem:
            if is_last or (not problem.sent and attempt == 0):
                raise client.unreachable(problem) from problem
        else:
            failure = answer.failure
            if failure is None:
                return dict(answer.fields)
            if is_last or failure.code not in AGAIN:
                raise failure
        here.sleep(CHANGE_PAUSE_S * 2**attempt)
    raise AssertionError("the last attempt returns or raises")
