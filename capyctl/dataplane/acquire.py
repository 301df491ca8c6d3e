"""A request's place in its deployment's queue."""

from __future__ import annotations

from capyctl.dataplane.parking import Bell
from capyctl.domain.errors import InferenceRefusal
from capyctl.gates.lease import Lease


class Place:
    """What waits in the queue for one request; it rings when it is answered."""

    __slots__ = ("_bell", "body_bytes", "lease", "refusal", "since_s")

    def __init__(self, bell: Bell, since_s: float, body_bytes: int) -> None:
        self._bell = bell
        self.since_s = since_s
        self.body_bytes = body_bytes
        self.lease: Lease | None = None
        self.refusal: InferenceRefusal | None = None

    @property
    def answered(self) -> bool:
        return self.lease is not None or self.refusal is not None

    def grant(self, lease: Lease) -> None:
        self.lease = lease
        self._bell.ring()

    def refuse(self, refusal: InferenceRefusal) -> None:
        self.refusal = refusal
        self._bell.ring()
