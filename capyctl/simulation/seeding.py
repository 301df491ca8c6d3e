"""The one place that touches Trio's scheduler randomness, so that a seed decides everything.

Trio shuffles each batch of runnable tasks. Its Hypothesis plugin makes the shuffle
deterministic; this uses the same two private names for a seed of its own, and a test fails
when a release of Trio moves them.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager

from trio._core import _run


@contextmanager
def seeded_scheduler(seed: int) -> Iterator[None]:
    """Within the block, one seed gives one order of tasks."""
    before, state = _run._ALLOW_DETERMINISTIC_SCHEDULING, _run._r.getstate()
    _run._ALLOW_DETERMINISTIC_SCHEDULING = True  # type: ignore[misc]
    _run._r.seed(seed)
    try:
        yield
    finally:
        _run._ALLOW_DETERMINISTIC_SCHEDULING = before  # type: ignore[misc]
        _run._r.setstate(state)


def part(seed: int, name: str) -> random.Random:
    """A stream of chance of its own for one part of a world: others do not disturb it."""
    return random.Random(f"{seed}/{name}")
