"""How to make one child, and what to do when it ends."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import attrs

from .body import Body
from .restart import RestartLimit

Restart = Literal["permanent", "transient", "temporary"]
Strategy = Literal["one_for_one", "one_for_all", "rest_for_one"]


@attrs.frozen
class ChildSpec:
    """Everything a supervisor needs to know about one child."""

    name: str
    """Unique in the system while the child is there; the name of its ref."""
    make: Callable[[], Body]
    """Makes one incarnation. Called for each start; an exception in it counts as a failure."""
    restart: Restart = attrs.field(
        default="transient",
        validator=attrs.validators.in_(("permanent", "transient", "temporary")),
    )
    """permanent: always; transient: after a failure; temporary: never."""
    limit: RestartLimit = attrs.field(factory=RestartLimit)
    """How many restarts before the supervisor gives up; of this child, not of all together."""
    stop_within_s: float | None = None
    """Seconds from being asked to stop until it is cancelled; None is the body's own figure."""
