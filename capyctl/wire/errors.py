"""The error envelope: the one shape of every refusal of the management API."""

from __future__ import annotations

from capyctl.domain.canonical import canonical_json
from capyctl.domain.errors import Refused


def error_json(refused: Refused) -> bytes:
    """The body of an error answer: compact, keys sorted, UTF-8. Its status is the kind's."""
    body = {
        "api_version": "1",
        "error": {
            "code": refused.code,
            "details": dict(refused.details),
            "message": refused.message,
            "operation_id": None,
            "retryable": refused.kind.retryable,
        },
    }
    return canonical_json(body).encode()
