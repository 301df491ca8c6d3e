"""How unkind a world is: few faults in a run, and strong ones."""

from __future__ import annotations

import random

import attrs


@attrs.frozen(kw_only=True)
class Faults:
    """Chances are per event, times are the most that may pass. All zero: everything settles."""

    crash_chance: float = 0.0
    """An engine ends by itself, some time after its start."""
    unfit_chance: float = 0.0
    hang_chance: float = 0.0
    """An engine never answers its probe."""
    prepare_chance: float = 0.0
    """No latch: a port is taken, or the executable is missing."""
    undying_chance: float = 0.0
    """An engine that was killed cannot be shown to be gone for a while."""
    busy_chance: float = 0.0
    """An engine says that requests run, though none does."""
    end_delay_max_s: float = 0.0
    park_refused_chance: float = 0.0
    park_broken_chance: float = 0.0
    park_hang_chance: float = 0.0
    residue_chance: float = 0.0
    """A park frees less than was planned."""
    wake_broken_chance: float = 0.0
    unmeasurable_chance: float = 0.0
    message_delay_max_s: float = 0.0
    senders_cross: bool = False
    """Messages of different senders to one receiver may overtake each other."""
    commit_delay_max_s: float = 0.0
    store_breaks_after_count: int | None = None
    restarts_count: int = 0
    """Ends of the daemon, each at some commit."""
    actor_crash_chance: float = 0.0
    """A commit fails its actor as a bug would: the supervisor restarts it from the store."""
    sample_lag_max_s: float = 0.0
    unproven_chance: float = 0.0
    """A request ends without the engine having shown it."""
    slow_request_chance: float = 0.0
    """A request that outlasts a drain."""
    link_every_s: float = 0.0
    """How often something befalls each wire of a fleet, on average; 0: never."""
    link_down_max_s: float = 0.0
    link_delay_max_s: float = 0.0
    host_kills_every_s: float = 0.0
    """How often each host's daemon is killed, on average, a quarter of them with the machine."""
    host_down_max_s: float = 0.0
    digest_differs_chance: float = 0.0
    """A host has other files than the others."""


_KINDS: tuple[dict[str, object], ...] = (
    {"crash_chance": 0.5},
    {"unfit_chance": 0.3, "hang_chance": 0.15},
    {"prepare_chance": 0.4},
    {"undying_chance": 0.4, "end_delay_max_s": 20.0},
    {"busy_chance": 0.4, "unproven_chance": 0.3},
    {"park_refused_chance": 0.5},
    {"park_broken_chance": 0.3, "park_hang_chance": 0.1, "wake_broken_chance": 0.3},
    {"residue_chance": 0.6},
    {"unmeasurable_chance": 0.5},
    {"message_delay_max_s": 5.0},
    {"message_delay_max_s": 20.0, "senders_cross": True},
    {"commit_delay_max_s": 3.0},
    {"store_breaks_after_count": 120},
    {"restarts_count": 3},
    {"restarts_count": 6, "commit_delay_max_s": 1.0},
    {"actor_crash_chance": 0.02},
    {"sample_lag_max_s": 30.0},
    {"slow_request_chance": 0.3},
)
_AT_ONCE_MAX = 5
_FLEET_KINDS: tuple[dict[str, object], ...] = (
    {"link_every_s": 60.0, "link_down_max_s": 15.0},
    {"link_every_s": 150.0, "link_down_max_s": 200.0},
    {"link_every_s": 300.0, "link_down_max_s": 30.0, "link_delay_max_s": 3.0},
    {"host_kills_every_s": 200.0, "host_down_max_s": 20.0},
    {"host_kills_every_s": 400.0, "host_down_max_s": 200.0},
    {"digest_differs_chance": 0.4},
    {"link_delay_max_s": 8.0},
)
_FLEET_AT_ONCE_MAX = 3


def draw_faults(chance: random.Random) -> Faults:
    """None to five kinds of trouble for one world."""
    drawn: dict[str, object] = {}
    for kind in chance.sample(_KINDS, chance.randint(0, _AT_ONCE_MAX)):
        drawn.update(kind)
    return attrs.evolve(Faults(), **drawn)  # type: ignore[arg-type]


def draw_fleet_faults(chance: random.Random) -> Faults:
    """As `draw_faults`, less of each, and what befalls wires and hosts."""
    drawn: dict[str, object] = {}
    for kind in chance.sample(_KINDS, chance.randint(0, _FLEET_AT_ONCE_MAX)):
        drawn.update(kind)
    for kind in chance.sample(_FLEET_KINDS, chance.randint(0, _FLEET_AT_ONCE_MAX)):
        drawn.update(kind)
    return attrs.evolve(Faults(), **drawn)  # type: ignore[arg-type]
