"""Which edges of the instance's table a run of worlds went along."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from capyctl.machines import instance_table
from capyctl.machines.instance_table import TABLE
from capyctl.machines.table import Edge, Moment, Step, Table, walk

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
    """Within the block, count each message that takes an instance along an edge."""

    def counted(table: Table[Any], data: Any, event: object, moment: Moment) -> Step[Any]:
        done = walk(table, data, event, moment)
        if isinstance(table[data.state][type(event)], Edge):
            reached[(data.state.value, type(event).__name__)] += 1
        return done

    instance_table.walk = counted  # type: ignore[attr-defined]
    try:
        yield
    finally:
        instance_table.walk = walk  # type: ignore[attr-defined]
