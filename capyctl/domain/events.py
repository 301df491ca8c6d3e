"""The committed history: events, their place in it, and the answers kept for replays."""

from __future__ import annotations

from collections.abc import Mapping

import attrs

from capyctl.domain.ids import DeploymentId, OperationId

EVENT_PAYLOAD_BYTES_MAX = 16 * 1024


@attrs.frozen(kw_only=True)
class NewEvent:
    """An event before it is committed: it has no place in the history yet."""

    kind: str
    deployment: DeploymentId | None
    operation: OperationId | None
    payload: Mapping[str, object]
    """JSON object; integers are strings but for ``instance``. At most 16 KiB as JSON."""


@attrs.frozen(kw_only=True)
class Event:
    """One committed event."""

    seq: int
    """1, 2, 3 … without a gap within one incarnation."""
    kind: str
    deployment: DeploymentId | None
    operation: OperationId | None
    payload_json: str
    """Compact JSON object with sorted keys."""
    recorded_at_ms: int


@attrs.frozen(kw_only=True)
class Receipt:
    """The stored answer to an accepted change."""

    scope: str
    """``create``, ``replace:<id>``, ``actions:<id>`` or ``instance:<id>/<index>``."""
    key: str
    fingerprint: str
    """SHA-256, hexadecimal, of the canonical request."""
    response: str
    """The JSON body that was answered, byte for byte."""


@attrs.frozen(kw_only=True)
class Cursor:
    """A place in the history of one database incarnation. Text form: ``<ULID>:<seq>``."""

    incarnation: str
    seq: int

    def __str__(self) -> str:
        return f"{self.incarnation}:{self.seq}"
