"""Errors a caller can act on. Bugs are never one of these: they crash the actor."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import attrs


class IllegalTransition(AssertionError):
    """A machine was given an event that its state has no edge for. Always a bug."""


@attrs.frozen(kw_only=True)
class ErrorKind:
    """One code of the management API: its status, and whether the same request can succeed."""

    code: str
    http_status: int
    retryable: bool = False


def _kinds(*rows: tuple[str, int, bool]) -> dict[str, ErrorKind]:
    return {code: ErrorKind(code=code, http_status=s, retryable=r) for code, s, r in rows}


MANAGEMENT_ERRORS = _kinds(
    ("unauthenticated", 401, False),
    ("forbidden", 403, False),
    ("host_policy_denied", 403, False),
    ("invalid_request", 400, False),
    ("invalid_config", 400, False),
    ("invalid_cursor", 400, False),
    ("cursor_expired", 410, False),
    ("body_too_large", 413, False),
    ("method_not_allowed", 405, False),
    ("not_found", 404, False),
    ("queue_full", 429, True),
    ("deadline_exceeded", 504, True),
    ("revision_conflict", 409, False),
    ("idempotency_conflict", 409, False),
    ("route_conflict", 409, False),
    ("runtime_retained", 409, False),
    ("lifecycle_conflict", 409, False),
    ("delete_requires_cleanup", 409, False),
    ("checkpoint_mismatch", 409, False),
    ("checkpoint_unusable", 409, False),
    ("model_source_failed", 409, False),
    ("startup_requires_empty_host", 409, False),
    ("profile_not_published", 409, False),
    ("checkpoint_digest_pending", 503, True),
    ("model_source_pending", 503, True),
    ("still_stopping", 503, True),
    ("capacity_blocked", 503, True),
    ("switch_failed", 503, True),
    ("host_ineligible", 503, True),
    ("host_not_revoked", 409, False),
    ("reconciliation_required", 503, True),
    ("unsupported_capability", 503, False),
    ("group_shape_unsupported", 501, False),
    ("internal", 500, False),
    ("observation_stale", 503, True),
    ("snapshot_unavailable", 503, True),
)


class Refused(Exception):
    """A change or read that is refused. Nothing was changed.

    ``kind.code`` is the stable public name; the message is for people and says what
    happened, with figures, and what to do. It never holds a credential or a value of
    a configuration document.
    """

    def __init__(self, code: str, message: str, details: Mapping[str, Any] | None = None) -> None:
        super().__init__(message)
        self.kind = MANAGEMENT_ERRORS[code]
        self.details: Mapping[str, Any] = details or {}

    @property
    def code(self) -> str:
        return self.kind.code

    @property
    def message(self) -> str:
        return str(self.args[0])

    def __repr__(self) -> str:
        return f"Refused({self.code!r}, {self.message!r})"


INFERENCE_ERRORS = _kinds(
    ("unauthorized", 401, False),
    ("invalid_request", 400, False),
    ("cache_salt_unsupported", 400, False),
    ("unsupported_media_type", 415, False),
    ("request_too_large", 413, False),
    ("unknown_model", 404, False),
    ("unsupported_route", 404, False),
    ("not_found", 404, False),
    ("method_not_allowed", 405, False),
    ("deployment_stopped", 409, False),
    ("deployment_inactive", 409, False),
    ("conflict", 409, False),
    ("queue_full", 429, True),
    ("insufficient_resources", 429, False),
    ("unsupported", 501, False),
    ("unavailable", 503, True),
    ("activation_uncertain", 503, True),
    ("shutting_down", 503, True),
    ("activation_failed", 500, False),
    ("engine_error", 500, False),
    ("internal", 500, False),
)


@attrs.frozen(kw_only=True)
class InferenceRefusal:
    """Why a request for a model is not served. A value: it waits in queues and is compared."""

    code: str
    message: str

    @property
    def kind(self) -> ErrorKind:
        return INFERENCE_ERRORS[self.code]
