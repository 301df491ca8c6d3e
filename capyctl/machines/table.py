"""The shape every machine shares: a table of edges, and one function that walks it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Generic, Protocol, TypeVar

import attrs

from capyctl.domain.errors import IllegalTransition
from capyctl.domain.events import NewEvent
from capyctl.domain.operations import Operation


@attrs.frozen(kw_only=True)
class Moment:
    """Time and fresh names, as they come in with an event."""

    now_ms: int
    """Wall clock, milliseconds since 1970."""
    session_epoch: int
    fresh: Callable[[], str]
    """A new ULID each call."""


class HasState(Protocol):
    @property
    def state(self) -> Any: ...


D = TypeVar("D", bound=HasState)


@attrs.frozen(kw_only=True)
class Step(Generic[D]):
    """What one event did: the data after it, what is recorded with it, what is to be done."""

    data: D
    operations: tuple[Operation, ...] = ()
    """Operations that changed; committed with the data."""
    events: tuple[NewEvent, ...] = ()
    """History; committed with the data."""
    effects: tuple[Any, ...] = ()
    """What the actor must do after the commit, in order."""


Run = Callable[[D, Any, Moment], Step[D]]


@attrs.frozen
class Edge(Generic[D]):
    to: frozenset[Any]
    run: Run[D]


@attrs.frozen
class Ignored:
    """This event is harmless in this state, and why."""

    why: str


Table = Mapping[Any, Mapping[type, "Edge[D] | Ignored"]]


def to(*states: Any, by: Run[D]) -> Edge[D]:
    """An edge that ends in one of ``states``."""
    return Edge(frozenset(states), by)


def walk(table: Table[D], data: D, event: object, moment: Moment) -> Step[D]:
    """Apply one event.

    Raises:
        IllegalTransition: the table has no edge for this event in this state.
    """
    edge = table[data.state].get(type(event))
    if isinstance(edge, Ignored):
        return Step(data=data)
    if edge is None:
        raise IllegalTransition(f"{type(event).__name__} in {data.state.value}: {data!r}")
    step = edge.run(data, event, moment)
    assert step.data.state in edge.to, (
        f"{type(event).__name__}: {data.state.value} -> {step.data.state.value} is not on the table"
    )
    return step
