"""Which edges of the instance's table a run of worlds went along."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from capyctl.control import instance as body
from capyctl.machines.instance import Instance
from capyctl.machines.instance_table import TABLE, step
from capyctl.machines.table import Edge, Moment, Step

EdgeName = tuple[str, str]
"""State and message."""


def all_edges() -> frozenset[EdgeName]:
    return frozenset(
        (state.value, message.__name__)
        for state, row in TABLE.items()
        for message, edge in row.items()
        if isinstance(edge, Edge)
    )


@contextmanager
def counting(reached: Counter[EdgeName]) -> Iterator[None]:
    """Within the block, count each message that an instance's actor takes along an edge."""

    def counted(one: Instance, event: Any, moment: Moment) -> Step[Instance]:
        done = step(one, event, moment)
        if done != Step(data=one):
            reached[(one.state.value, type(event).__name__)] += 1
        return done

    body.step = counted  # type: ignore[attr-defined]
    try:
        yield
    finally:
        body.step = step  # type: ignore[attr-defined]
