"""One request's right to one engine: taken when a slot and an open gate are, given back once."""

from __future__ import annotations

from typing import TYPE_CHECKING

import attrs

from capyctl.domain.ids import InstanceId
from capyctl.domain.launches import Endpoint

if TYPE_CHECKING:
    from capyctl.gates.gate import Gate


@attrs.define(kw_only=True, eq=False)
class Lease:
    """Where one request is sent, and what it must give back.

    `Admission.try_enter` and `Admission.serve_waiting` make them; `Admission.leave` takes them
    back, exactly once.
    """

    endpoint: Endpoint
    instance: InstanceId
    generation: int
    """Which opening of the gate it was taken under: one launch, or one wake of it."""
    gate: Gate = attrs.field(repr=False)
    closed: bool = False

    def mark_closed(self) -> None:
        """For `Admission.leave`.

        Raises:
            AssertionError: it was given back before. Always a bug of the caller.
        """
        assert not self.closed, f"the lease on {self.instance} was given back twice"
        self.closed = True
