"""What may be watched of a running system of actors, and a bounded record of it in memory."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator

import trio

from .failure import Failure


class Observer:
    """Subclass and override what is of interest. Called in the run's own thread, between two steps
    of an actor, so it must be quick, must not raise, and sees things in the order they happen.
    """

    def started(self, name: str, incarnation: int) -> None:
        """An actor has run its ``on_start``; the first incarnation is 1."""

    def handled(self, name: str, message: str, waiting_count: int, took_s: float) -> None:
        """An actor handled a message of the class ``message``, or failed on it.

        Args:
            waiting_count: messages that waited behind it when it was taken.
            took_s: seconds of Trio's clock from its taking to the end of ``handle``.
        """

    def exited(self, name: str, failure: Failure | None) -> None:
        """An incarnation is over, all its tasks included; None means without failing."""

    def restarted(self, name: str, restarts_count: int) -> None:
        """A child is about to be started again, for the n-th time within its window."""

    def gone(self, name: str) -> None:
        """An actor has finally gone: its ref is closed, its watchers are told."""


class Observers(Observer):
    """Several observers as one, told in order."""

    def __init__(self, *observers: Observer) -> None:
        self._observers = observers

    def started(self, name: str, incarnation: int) -> None:
        for one in self._observers:
            one.started(name, incarnation)

    def handled(self, name: str, message: str, waiting_count: int, took_s: float) -> None:
        for one in self._observers:
            one.handled(name, message, waiting_count, took_s)

    def exited(self, name: str, failure: Failure | None) -> None:
        for one in self._observers:
            one.exited(name, failure)

    def restarted(self, name: str, restarts_count: int) -> None:
        for one in self._observers:
            one.restarted(name, restarts_count)

    def gone(self, name: str) -> None:
        for one in self._observers:
            one.gone(name)


class Trace(Observer):
    """The last ``lines_max`` things that happened, as readable lines with Trio's clock."""

    def __init__(self, *, lines_max: int = 1_000) -> None:
        self._seen: deque[tuple[float, str, str]] = deque(maxlen=lines_max)

    def __iter__(self) -> Iterator[str]:
        return iter(self.lines())

    def lines(self, *names: str) -> list[str]:
        """The lines, oldest first; of the actors named only, if any are."""
        return [
            f"{at_s:12.3f} s  {name}  {what}"
            for at_s, name, what in self._seen
            if not names or name in names
        ]

    def steps(self, *names: str) -> list[str]:
        """The same without the clock: what tests compare."""
        return [f"{name} {what}" for _, name, what in self._seen if not names or name in names]

    def clear(self) -> None:
        self._seen.clear()

    def __str__(self) -> str:
        return "\n".join(self.lines())

    def started(self, name: str, incarnation: int) -> None:
        self._note(name, "started" if incarnation == 1 else f"started (incarnation {incarnation})")

    def handled(self, name: str, message: str, waiting_count: int, took_s: float) -> None:
        notes = [f"{waiting_count} waiting"] if waiting_count else []
        notes += [f"took {took_s * 1000:.1f} ms"] if took_s >= 0.0001 else []
        self._note(name, f"handled {message}" + (f" ({', '.join(notes)})" if notes else ""))

    def exited(self, name: str, failure: Failure | None) -> None:
        self._note(name, "exited" if failure is None else f"failed: {failure.type}: {failure.text}")

    def restarted(self, name: str, restarts_count: int) -> None:
        self._note(name, f"restarts ({restarts_count} in its window)")

    def gone(self, name: str) -> None:
        self._note(name, "gone")

    def _note(self, name: str, what: str) -> None:
        self._seen.append((trio.current_time(), name, what))
