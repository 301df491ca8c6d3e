"""How Python looks for garbage in a daemon: seldom, and not at what stays.

A look at everything that 1,000 deployments are made of takes 0.25 s, and every stream stands
still for as long. Nearly all of it stays until the daemon ends.
"""

from __future__ import annotations

import gc

YOUNG_COUNT_MAX = 25_000
"""New objects until the youngest are looked at. A list of 100 hosts is made of some 20,000: with
Python's own 700 they grew old before they were sent, and one in 70 lists took 0.3 s."""


def look_seldom() -> None:
    """For a process that begins to load."""
    gc.set_threshold(YOUNG_COUNT_MAX, *gc.get_threshold()[1:])


def leave_out_what_stays() -> None:
    """All that was loaded until now is not looked at any more."""
    gc.collect()
    gc.freeze()
