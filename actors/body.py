"""What a supervisor can keep running, and what it hands down to it."""

from __future__ import annotations

from typing import Any, Protocol

import attrs
import trio

from .failure import Failure
from .observer import Observer
from .ref import Ref


class Directory:
    """Name to ref, for everything that runs in one system. Names are unique while in use."""

    def __init__(self) -> None:
        self._refs: dict[str, Ref[Any]] = {}

    def enter(self, ref: Ref[Any]) -> None:
        """Raises ValueError when another actor has this name. Entering twice does nothing."""
        if self._refs.setdefault(ref.name, ref) is not ref:
            raise ValueError(f"an actor named {ref.name!r} is running already; names are unique")

    def leave(self, ref: Ref[Any]) -> None:
        if self._refs.get(ref.name) is ref:
            del self._refs[ref.name]

    def find(self, name: str) -> Ref[Any] | None:
        return self._refs.get(name)

    @property
    def names(self) -> tuple[str, ...]:
        """Every name in use, the oldest first."""
        return tuple(self._refs)


@attrs.frozen(kw_only=True)
class Surroundings:
    """What all actors of one system share."""

    directory: Directory = attrs.field(factory=Directory)
    observer: Observer | None = None


class Body(Protocol):
    """One incarnation of a child: an actor or a supervisor."""

    @property
    def stop_within_s(self) -> float:
        """Seconds from being asked to stop until it is cancelled."""

    def attach(self, ref: Ref[Any], surroundings: Surroundings) -> None:
        """Take the ref that outlives this incarnation. Called once, before :meth:`run`."""

    async def run(self, *, task_status: trio.TaskStatus[Any]) -> None:
        """Live until asked to stop; ``task_status.started`` when ready for work."""

    def finish(self, failure: Failure | None) -> None:
        """It will not run again; whatever it kept for that may go."""


class Stop:
    """Read from the system lane: finish the message at hand and exit."""

    def __repr__(self) -> str:
        return "STOP"


STOP = Stop()
