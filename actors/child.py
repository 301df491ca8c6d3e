"""A supervisor's record of one child: what stays when incarnations come and go."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import attrs
import trio

from .body import STOP, Body, Surroundings
from .child_spec import ChildSpec
from .failure import Failure, part_cancelled, unwrap
from .mailbox import Mailbox
from .ref import Ref
from .restart import RestartHistory

STOP_WITHIN_S = 5.0
"""For a child of which no incarnation was ever made."""


class Child:
    """Owns the ref. Exactly one task runs its incarnations, one after the other."""

    def __init__(self, spec: ChildSpec) -> None:
        self.spec = spec
        self.name = spec.name
        self.ref: Ref[Any] = Ref(spec.name, Mailbox(spec.name))
        self.history = RestartHistory(spec.limit)
        self.incarnation = 0
        self.settled = trio.Event()
        """It was ready once, or has gone."""
        self.was_ready = False
        self.gone = trio.Event()
        self.down = trio.Event()
        """No incarnation runs. A new event for each incarnation."""
        self.down.set()
        self.is_leaving = False
        """It was asked to go for good."""
        self.is_pausing = False
        """It was ended by its supervisor, which knows what comes next."""
        self.failure: Failure | None = None
        """Of the last incarnation, when that ended by one."""
        self._body: Body | None = None
        self._scope = trio.CancelScope()
        self._watchers: dict[Ref[Any], Callable[[Failure | None], Any]] = {}

    def begin(self) -> None:
        """An incarnation is about to run: :meth:`run_once` follows."""
        self.incarnation += 1
        self.is_pausing = False
        self.failure = None
        self.down = trio.Event()
        self._scope = trio.CancelScope()

    def is_due_again(self, problem: Exception | None) -> bool:
        """Whether a child that ended by itself is to be restarted."""
        if self.spec.restart == "transient":
            return problem is not None
        return self.spec.restart == "permanent"

    async def run_once(
        self, surroundings: Surroundings, on_ready: Callable[[], None]
    ) -> Exception | None:
        """Live one incarnation; what it failed with, or None.

        Raises only what is not a failure: cancellation from outside, an interrupt.
        """
        problem: Exception | None = None
        try:
            with self._scope:
                body = self._next_body()
                body.attach(self.ref, surroundings)
                await body.run(task_status=_Ready(on_ready))
        except Exception as raised:
            problem = unwrap(raised)
        except BaseExceptionGroup as group:
            failed, others = part_cancelled(group)
            problem = None if failed is None else unwrap(failed)
            if others is not None:
                self._note(problem)
                raise others from None
        self._note(problem)
        return problem

    async def end(self) -> None:
        """Ask the incarnation to stop, cancel it when its time is over, return when it is down."""
        if self.down.is_set():
            return
        down = self.down
        self.ref.mailbox.put_system(STOP)
        with trio.move_on_after(self._stop_within_s):
            await down.wait()
            return
        self._scope.cancel()
        await down.wait()

    def watch(self, watcher: Ref[Any], message: Callable[[Failure | None], Any]) -> None:
        self._watchers[watcher] = message

    def unwatch(self, watcher: Ref[Any]) -> None:
        self._watchers.pop(watcher, None)

    def go(self, failure: Failure | None) -> None:
        """Finally: close the ref, tell the watchers."""
        self.ref.mailbox.close()
        if self._body is not None:
            self._body.finish(failure)
        self.gone.set()
        self.settled.set()
        for watcher, message in self._watchers.items():
            watcher.mailbox.put_past_bound(message(failure))

    def _next_body(self) -> Body:
        body = self.spec.make()
        if self._body is not None and self._body is not body:
            self._body.finish(self.failure)
        self._body = body
        return body

    @property
    def _stop_within_s(self) -> float:
        if self.spec.stop_within_s is not None:
            return self.spec.stop_within_s
        return STOP_WITHIN_S if self._body is None else self._body.stop_within_s

    def _note(self, problem: Exception | None) -> None:
        self.failure = None if problem is None else Failure.of(self.name, problem)


@attrs.frozen
class _Ready:
    """Stands where Trio's task status would: a child says when it is ready."""

    _on_ready: Callable[[], None]

    def started(self, value: object = None) -> None:
        self._on_ready()
