"""Events as server-sent frames, byte for byte."""

from __future__ import annotations

import json
from collections.abc import Iterable

from capyctl.domain.canonical import canonical_json
from capyctl.domain.errors import Refused
from capyctl.domain.events import Event

HEARTBEAT = b": heartbeat\n\n"


def event_frames(incarnation: str, events: Iterable[Event]) -> bytes:
    """The frames of one page, as one piece of bytes."""
    return "".join([_frame(incarnation, event) for event in events]).encode()


def _frame(incarnation: str, event: Event) -> str:
    # The payload is canonical already; it is not parsed for being put in its place.
    return (
        f"id: {incarnation}:{event.seq}\nevent: {event.kind}\n"
        f'data: {{"api_version":"1","deployment_id":{json.dumps(event.deployment)},'
        f'"operation_id":{json.dumps(event.operation)},"payload":{event.payload_json},'
        f'"recorded_at_ms":"{event.recorded_at_ms}"}}\n\n'
    )


def last_frame(refused: Refused) -> bytes:
    """How an open stream says why it ends. It has no id, so that none is taken for a cursor."""
    error = {
        "code": refused.code,
        "resnapshot_required": refused.code == "cursor_expired",
        "retryable": refused.kind.retryable,
    }
    body = canonical_json({"api_version": "1", "error": error})
    return f"event: management_stream_error\ndata: {body}\n\n".encode()
