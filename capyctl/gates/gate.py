"""Where requests enter one instance. Its actor alone opens and closes it; requests only count."""

from __future__ import annotations

import math
from collections.abc import Callable

import attrs

from capyctl.domain.ids import InstanceId
from capyctl.domain.launches import Endpoint

STARTING = "starting"
SWITCH = "switch"
PARK = "park"
STOP = "stop"
ENGINE_EXIT = "engine_exit"
HOST_SESSION = "host_session"

LAUNCH_REASONS = frozenset({STARTING, PARK, STOP, ENGINE_EXIT})
"""Reasons about what an engine was doing: its next readiness ends them."""

KV_CALM_RATIO = 0.8
KV_PENALTY_MAX = 8


@attrs.frozen(kw_only=True)
class EngineLoad:
    """What an engine said of itself when it was last asked."""

    request_count: int
    """Requests that it runs and requests that wait inside it."""
    kv_used_ratio: float = 0.0
    fresh_until_s: float
    """On the clock of the times given to `Admission`; later than this it counts for nothing."""

    def penalty(self) -> int:
        """Added to the score when the KV cache is nearly full: 1 to 8 above a ratio of 0.8."""
        if self.kv_used_ratio <= KV_CALM_RATIO:
            return 0
        fullness = (self.kv_used_ratio - KV_CALM_RATIO) / (1.0 - KV_CALM_RATIO)
        return min(KV_PENALTY_MAX, math.ceil(round(fullness * KV_PENALTY_MAX, 6)))


class Gate:
    """Open or closed, for which reasons, and how many requests are inside.

    It is open only while no reason is left and an endpoint is set. Not open is the first
    state: an endpoint comes with `open_for`. Everything is synchronous, so that what is
    checked and what is counted cannot drift apart.
    """

    __slots__ = (
        "_changed",
        "_freed",
        "_on_empty",
        "_reasons",
        "endpoint",
        "generation",
        "instance",
        "is_open",
        "last_used_s",
        "lease_count",
        "load",
        "unproven_count",
    )

    def __init__(self, instance: InstanceId) -> None:
        self.instance = instance
        self.endpoint: Endpoint | None = None
        self.generation = 0
        self.is_open = False
        self.lease_count = 0
        """Requests inside whose end is still to come."""
        self.unproven_count = 0
        """Requests that ended without the engine having shown it; they keep their slots."""
        self.last_used_s: float | None = None
        """When a request last left; None when none ever did."""
        self.load: EngineLoad | None = None
        self._reasons: dict[str, None] = {}
        self._on_empty: Callable[[], None] | None = None
        self._changed: Callable[[], None] | None = None
        self._freed: Callable[[int], None] | None = None

    def __repr__(self) -> str:
        state = "open" if self.is_open else "closed for " + ", ".join(self.closed_for)
        return f"<Gate {self.instance} {state}, {self.lease_count}+{self.unproven_count} inside>"

    @property
    def closed_for(self) -> tuple[str, ...]:
        """Why it is closed, oldest reason first; empty when open."""
        if not self._reasons and self.endpoint is None:
            return (STARTING,)
        return tuple(self._reasons)

    @property
    def held_count(self) -> int:
        """Slots this gate takes of its deployment's running requests."""
        return self.lease_count + self.unproven_count

    def score(self, now_s: float) -> int:
        """How loaded the instance is, a full KV cache included; the lowest is entered."""
        load = self.load
        if load is None or now_s > load.fresh_until_s:
            return self.held_count
        return max(self.held_count, load.request_count) + load.penalty()

    def open_for(self, endpoint: Endpoint, generation: int) -> None:
        """The engine answers at ``endpoint``: set it, and end the reasons that a launch ends.

        Reasons of others (``switch``, ``host_session``) keep it closed. Waiters of its
        deployment are served before this returns.
        """
        self.endpoint = endpoint
        self.generation = generation
        self.load = None
        for reason in [r for r in self._reasons if r in LAUNCH_REASONS]:
            del self._reasons[reason]
        self._settle_state()

    def close(self, reason: str) -> None:
        """Let nobody in until `reopen` for the same reason. Those inside are not touched."""
        self._reasons[reason] = None
        self._settle_state()

    def reopen(self, reason: str) -> None:
        """Take one reason away; the gate opens with the last one. A reason not there is fine."""
        self._reasons.pop(reason, None)
        self._settle_state()

    def watch_empty(self, callback: Callable[[], None]) -> None:
        """Have ``callback`` called once, when the gate is closed and nobody is inside.

        That may be now, before this returns. A later watch takes an earlier one's place, and
        opening the gate drops the watch: a drain that was given up reports nothing.
        """
        self._on_empty = callback
        self._report_empty()

    def settle_unproven(self) -> int:
        """The engine was seen idle or gone: give back the slots of the unproven requests.

        Returns how many there were. Waiters are served from them before this returns.
        """
        count, self.unproven_count = self.unproven_count, 0
        if count and self._freed is not None:
            self._freed(count)
        self._report_empty()
        return count

    def attach(self, changed: Callable[[], None], freed: Callable[[int], None]) -> None:
        """For the gate's `Admission`: who is told of openings, closings and settled slots."""
        assert self._changed is None, f"the gate of {self.instance} has an admission already"
        self._changed = changed
        self._freed = freed

    def detach(self) -> None:
        self._changed = None
        self._freed = None

    def count_in(self) -> None:
        assert self.is_open, f"a request entered the closed gate of {self.instance}"
        self.lease_count += 1

    def count_out(self, now_s: float, *, unproven: bool) -> None:
        assert self.lease_count > 0, f"a request left {self.instance}, which had none"
        self.lease_count -= 1
        self.last_used_s = now_s
        if unproven:
            self.unproven_count += 1

    def count_moved(self) -> None:
        """A request went to another instance before this one's engine had it."""
        assert self.lease_count > 0, f"a request left {self.instance}, which had none"
        self.lease_count -= 1
        self.report_if_empty()

    def report_if_empty(self) -> None:
        if not self.is_open:
            self._report_empty()

    def _settle_state(self) -> None:
        was_open = self.is_open
        self.is_open = not self._reasons and self.endpoint is not None
        if self.is_open and not was_open:
            self._on_empty = None
        if self.is_open != was_open and self._changed is not None:
            self._changed()
        self._report_empty()

    def _report_empty(self) -> None:
        callback = self._on_empty
        if callback is None or self.is_open or self.lease_count or self.unproven_count:
            return
        self._on_empty = None
        callback()
