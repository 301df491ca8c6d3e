"""Why a request is not served, and the bytes that say so: an answer, or a stream's last event.

Every error body is flat (`code`, `message`, `retryable`) and carries an OpenAI-style `error`.
"""

from __future__ import annotations

from http import HTTPStatus

import attrs
import msgspec

from capyctl.domain.errors import INFERENCE_ERRORS, InferenceRefusal

ENGINE_REJECTED = "engine_rejected"
ENGINE_BROKE = "engine_broke"
UNTAKEN = frozenset({"unknown_launch", "stale_generation", "closed", "unreachable", "stopping"})
"""Words of an ingress that answers in place of an engine, which has got nothing of the request;
with `ENGINE_BROKE` it had. They stand in the header ``x-capyctl-ingress``."""
REJECTIONS = frozenset({400, 413, 422})
MESSAGE_CHARS_MAX = 512
"""Of an engine's own message."""

_TYPES = {
    401: "authentication_error",
    404: "not_found_error",
    409: "conflict_error",
    429: "rate_limit_error",
}
_REASONS = {status.value: status.phrase.encode() for status in HTTPStatus}


def status_line(status: int) -> bytes:
    return b"HTTP/1.1 %d %b\r\n" % (status, _REASONS.get(status, b"Unknown"))


@attrs.frozen(kw_only=True)
class Failure:
    """One refusal or failure, complete: what the client sees, and what the log says."""

    code: str
    message: str
    status: int
    retryable: bool = False
    param: str | None = None
    """The field of the request at fault."""
    allow: str | None = None
    """Methods that the path has, on a 405."""
    ingress_word: str | None = None
    """Of `UNTAKEN` or `ENGINE_BROKE`, where an ingress tells it to its server."""

    @property
    def body(self) -> bytes:
        flat: dict[str, object] = {"code": self.code, "message": self.message}
        if self.retryable:
            flat["retryable"] = True
        flat["error"] = {
            "message": self.message,
            "type": _TYPES.get(
                self.status, "server_error" if self.status >= 500 else "invalid_request_error"
            ),
            "param": self.param,
            "code": self.code,
        }
        return msgspec.json.encode(flat)

    @property
    def event(self) -> bytes:
        """The last event of a stream that broke. No ``[DONE]`` follows it."""
        return b"data: %b\n\n" % self.body

    @property
    def headers(self) -> bytes:
        """Header lines that belong to the failure itself."""
        lines = [b"Content-Type: application/json\r\n"]
        if self.status == 429:
            lines.append(b"Retry-After: 1\r\n")
        if self.status == 401:
            lines.append(b"WWW-Authenticate: Bearer\r\n")
        if self.ingress_word is not None:
            lines.append(b"x-capyctl-ingress: %b\r\n" % self.ingress_word.encode())
        if self.allow is not None:
            lines.append(b"Allow: %b\r\n" % self.allow.encode())
        if self.code == "shutting_down":
            lines.append(b"Retry-After: 5\r\nCache-Control: no-store\r\n")
        return b"".join(lines)


def failure(
    code: str, message: str, *, param: str | None = None, allow: str | None = None
) -> Failure:
    """A failure with the status and retryability that its code has."""
    kind = INFERENCE_ERRORS[code]
    return Failure(
        code=code,
        message=message,
        status=kind.http_status,
        retryable=kind.retryable,
        param=param,
        allow=allow,
    )


def refused(refusal: InferenceRefusal) -> Failure:
    return failure(refusal.code, refusal.message)


def malformed(message: str, status: int = 400) -> Failure:
    """A request that is no HTTP request, or over a bound of its form (408, 431)."""
    return Failure(code="invalid_request", message=message, status=status)


def engine_refused(status: int, body: bytes, ingress_word: str | None) -> Failure:
    """An engine's answer that is no success, or with a word of its ingress that it gave none.

    Its 400, 413 and 422 with a JSON body are `engine_rejected`, with its own status and message;
    all others are `engine_error`.
    """
    answer = _decoded(body)
    if answer is None:
        return failure("engine_error", f"the engine answered {status}")
    told = engine_message(answer)
    if ingress_word is not None and told:
        return failure("engine_error", told[:MESSAGE_CHARS_MAX])
    if status in REJECTIONS:
        message = (told or body.decode(errors="replace"))[:MESSAGE_CHARS_MAX]
        return Failure(code=ENGINE_REJECTED, message=message, status=status)
    said = f": {told[:MESSAGE_CHARS_MAX]}" if told else ""
    return failure("engine_error", f"the engine answered {status}{said}")


def _decoded(body: bytes) -> object:
    """What a JSON body says; None for any other."""
    try:
        return msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None


def engine_message(answer: object) -> str | None:
    """The sentence in an engine's error body, whichever of the usual shapes it has."""
    for _ in range(3):
        if isinstance(answer, str):
            return answer or None
        if not isinstance(answer, dict):
            return None
        answer = next(
            (answer[key] for key in ("error", "message", "detail") if answer.get(key)), None
        )
    return answer if isinstance(answer, str) else None


def untaken_by_ingress(word: str | None, body: bytes) -> str | None:
    """Why an ingress has passed a request to no engine; None when it may have.

    ``word`` is the one in its answer's head, None in an engine's own answer.
    """
    if word not in UNTAKEN:
        return None
    return engine_message(_decoded(body)) or word


def nobody_took(why: str | None, *, elsewhere: bool) -> Failure:
    """No engine has accepted the request. ``elsewhere``: the last one is on another machine."""
    if not elsewhere:
        return failure("engine_error", "the engine does not accept connections")
    said = f" ({why[:MESSAGE_CHARS_MAX]})" if why else ""
    what = "does not take the request" if why else "cannot be reached"
    return failure("unavailable", f"the machine that serves this model {what}{said}")


SHUTTING_DOWN = failure("shutting_down", "the server is shutting down; try again later")
