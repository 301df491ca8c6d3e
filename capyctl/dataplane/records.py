"""What is remembered of one request when it is over: for the access log and the metrics."""

from __future__ import annotations

import enum
import re

import attrs

from capyctl.domain.ids import DeploymentId, InstanceId


class Outcome(enum.Enum):
    SERVED = "served"
    """The engine's answer went out whole."""
    ANSWERED = "answered"
    """By the plane itself: a listing, a health check."""
    REFUSED = "refused"
    """Not sent to an engine, or the engine rejected it."""
    ENGINE_FAILED = "engine_failed"
    CLIENT_CLOSED = "client_closed"
    """The client left, or did not read. Nobody's error."""
    CUT = "cut"
    """Broken off by a shutdown."""
    BUG = "bug"


@attrs.frozen(kw_only=True)
class RequestRecord:
    """One request, over. Times are seconds on the run's clock, durations seconds."""

    request_id: str
    client_request_id: str | None
    method: str
    path: str
    status: int
    """Sent to the client; 499 when it had left before any was."""
    outcome: Outcome
    code: str | None = None
    """Of the error body."""
    model: str | None = None
    deployment: DeploymentId | None = None
    instance: InstanceId | None = None
    streamed: bool = False
    arrived_s: float
    waited_s: float = 0.0
    """For a lease."""
    first_output_s: float | None = None
    """From arrival."""
    duration_s: float
    request_body_bytes: int = 0
    answer_bytes: int = 0
    prompt_tokens: int | None = None
    completion_tokens: int | None = None


_PROMPT = re.compile(rb'"(?:prompt|input)_tokens"\s*:\s*(\d{1,12})')
_COMPLETION = re.compile(rb'"(?:completion|output)_tokens"\s*:\s*(\d{1,12})')


def usage_in(tail: bytes) -> tuple[int | None, int | None]:
    """Prompt and completion tokens in an answer's last bytes, as far as they are told there."""
    start = tail.rfind(b'"usage"')
    if start < 0:
        return None, None
    prompt = _PROMPT.search(tail, start)
    completion = _COMPLETION.search(tail, start)
    return (
        int(prompt.group(1)) if prompt is not None else None,
        int(completion.group(1)) if completion is not None else None,
    )
