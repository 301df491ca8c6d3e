"""A request's place in its deployment's queue."""

from __future__ import annotations

from capyctl.dataplane.failures import Failure, failure
from capyctl.dataplane.parking import Bell
from capyctl.domain.errors import InferenceRefusal
from capyctl.gates.admission import Admission
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

    def give_up(self, admission: Admission, now_s: float) -> None:
        """Leave the queue, or give back a lease that came too late to be used."""
        admission.withdraw(self)
        if self.lease is not None:
            admission.leave(self.lease, now_s)


def waited_too_long(admission: Admission, within_s: float) -> Failure:
    """A request's deadline has come while it waited: for a slot, or for the model itself."""
    if admission.any_open:
        taken = f"all {admission.running_max} running requests of this model stayed taken"
        return failure("queue_full", f"{taken} for {within_s:g} s")
    return failure("unavailable", f"the model was not ready within {within_s:g} s")
