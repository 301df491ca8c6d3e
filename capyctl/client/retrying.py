"""When the same request is sent again, and after which pause. Pure.

While an answer says ``retryable``, and while none comes, the same request can succeed: the same
key, the same bytes. Everything else gets the same answer again.
"""

from __future__ import annotations

import attrs

from capyctl.client.errors import ClientError, NotTheApi, RefusedByApi, Unanswered


@attrs.frozen(kw_only=True)
class Retries:
    """How often, and how patiently. Pauses double from ``pause_s`` to ``pause_s_max``."""

    attempts_max: int = 15
    pause_s: float = 1.0
    pause_s_max: float = 10.0
    codes: frozenset[str] | None = None
    """Refusals after which it is sent again; None: all that say ``retryable``."""
    waits_for_role: bool = True
    """Whether to try again where nothing listens at all; else the first try is the last."""


CHANGES = Retries()
"""Two minutes, which covers a measurement of a model's files and a stop that finishes."""
READS = Retries(attempts_max=8, pause_s=0.1, pause_s_max=2.0)


def covering(window_ms: int) -> Retries:
    """For a change that may have to wait for most of its window before it is accepted."""
    ramp_count = 4
    return Retries(attempts_max=ramp_count + 1 + round(window_ms / 1000 / Retries().pause_s_max))


def pause_before_next(retries: Retries, attempt: int, problem: ClientError) -> float | None:
    """Seconds until the next attempt; None: ``problem`` is the outcome.

    ``attempt``: the number of the one that failed, from 0.
    """
    if attempt + 1 >= retries.attempts_max or not _can_succeed(retries, attempt, problem):
        return None
    return min(retries.pause_s_max, retries.pause_s * 2.0 ** min(attempt, 30))


def _can_succeed(retries: Retries, attempt: int, problem: ClientError) -> bool:
    match problem:
        case Unanswered():
            return problem.sent or attempt > 0 or retries.waits_for_role
        case RefusedByApi() if retries.codes is not None:
            return problem.code in retries.codes
        case RefusedByApi() | NotTheApi():
            return problem.retryable
        case _:
            return False
