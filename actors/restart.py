"""How often a child may restart. Pure: time comes in as an argument."""

from __future__ import annotations

import attrs


@attrs.frozen
class RestartLimit:
    """At most ``restarts_max`` restarts in any window of ``window_s`` seconds."""

    restarts_max: int = attrs.field(default=3, validator=attrs.validators.ge(0))
    window_s: float = attrs.field(default=30.0, validator=attrs.validators.gt(0))


@attrs.frozen
class RestartHistory:
    """The restarts that still count against a limit: never more than ``restarts_max`` instants."""

    limit: RestartLimit
    restarts_at_s: tuple[float, ...] = ()

    def after_failure(self, now_s: float) -> RestartHistory | None:
        """The history with a restart at ``now_s`` counted, or None when the limit is spent.

        ``now_s`` must not go backwards from call to call. A restart exactly ``window_s`` old
        counts no more.
        """
        recent = tuple(at_s for at_s in self.restarts_at_s if now_s - at_s < self.limit.window_s)
        if len(recent) >= self.limit.restarts_max:
            return None
        return attrs.evolve(self, restarts_at_s=(*recent, now_s))
