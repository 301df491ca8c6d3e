"""Keeps children running; gives up upwards when one cannot be kept running."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, TypeVar

import attrs
import trio

from .body import STOP, Surroundings
from .child import Child
from .child_spec import ChildSpec, Restart, Strategy
from .errors import ActorGone, RestartsExceeded
from .failure import Failure
from .mailbox import Mailbox
from .ref import Ref
from .restart import RestartLimit

M = TypeVar("M")


@attrs.frozen
class _Exited:
    """One incarnation ended and nobody asked for it. From: the task that ran it."""

    child: Child
    incarnation: int
    problem: Exception | None


class Supervisor:
    """Starts its children in order, restarts what fails, stops in reverse order.

    Strategies: ``one_for_one`` restarts the child that ended; ``rest_for_one`` also those started
    after it; ``one_for_all`` all of them. A child that ends more often than its limit allows makes
    the supervisor stop the others and raise :class:`RestartsExceeded`.

    A supervisor is itself a child: use :meth:`as_child`. When it is restarted by its own supervisor
    it brings back every child it had, with the same refs; the counting of restarts begins anew.

    Args:
        name: who this is in traces; under a supervisor the child's name is used.
        children: started in this order, each when the one before it is ready.
    """

    stop_within_s = float("inf")
    """Not bounded here: it takes as long as its children, which are."""

    def __init__(
        self,
        name: str = "supervisor",
        *,
        strategy: Strategy = "one_for_one",
        children: Iterable[ChildSpec] = (),
    ) -> None:
        if strategy not in ("one_for_one", "one_for_all", "rest_for_one"):
            raise ValueError(f"{name}: no strategy is called {strategy!r}")
        self.name = name
        self.strategy: Strategy = strategy
        self._children: dict[str, Child] = {}
        self._ref: Ref[Any] = Ref(name, Mailbox(name, capacity=0))
        self._surroundings = Surroundings()
        self._is_attached = False
        self._is_finished = False
        self._is_ending = False
        self._is_held = False
        self._nursery: trio.Nursery | None = None
        self._to_start: list[Child] = []
        self._gate: Child | None = None
        self._task_status: trio.TaskStatus[Any] | None = None
        for spec in children:
            self.start_soon(spec)

    # Children.

    @property
    def names(self) -> tuple[str, ...]:
        """Its children's names, in starting order."""
        return tuple(self._children)

    def find(self, name: str) -> Ref[Any] | None:
        """The ref of one child, or None when there is none of that name."""
        child = self._children.get(name)
        return None if child is None else child.ref

    def start_soon(self, spec: ChildSpec) -> Ref[Any]:
        """Add a child and return its ref at once; what is told to it waits until it runs.

        Before the supervisor runs, this adds to what it will start in order.

        Raises:
            ActorGone: this supervisor has finally gone.
            ValueError: the name is in use.
        """
        if self._is_finished:
            raise ActorGone(self.name)
        if spec.name in self._children:
            raise ValueError(f"{self.name} has a child named {spec.name!r} already")
        child = Child(spec)
        if self._is_attached or self._nursery is not None:
            self._surroundings.directory.enter(child.ref)
        self._children[spec.name] = child
        if self._nursery is not None and not self._is_ending:
            self._start(child)
        return child.ref

    async def start_child(self, spec: ChildSpec) -> Ref[Any]:
        """Add a child and return its ref when its ``on_start`` is done, be it after restarts.

        Cancelling ends the waiting; the child stays. Never await this from within a child's own
        ``on_start`` or ``handle``: that is what :meth:`start_soon` is for.

        Raises:
            ActorGone: this supervisor has gone, or the child went before it was ever ready.
            ValueError: the name is in use.
        """
        self.start_soon(spec)
        child = self._children[spec.name]
        await child.settled.wait()
        if not child.was_ready:
            raise ActorGone(spec.name, f"went before it was ready ({child.failure or 'stopped'})")
        return child.ref

    def stop_soon(self, name: str) -> None:
        """Ask a child to go for good, and see to it. Does nothing when there is none of that name.

        It is cancelled if it does not end within its ``stop_within_s``.
        """
        child = self._children.get(name)
        if child is None or child.is_leaving:
            return
        child.is_leaving = True
        if child.down.is_set() or self._nursery is None:
            self._remove(child)
        else:
            self._nursery.start_soon(child.end, name=f"{self.name}: ending {name}")

    async def stop_child(self, name: str) -> None:
        """As :meth:`stop_soon`, and return when the child has finally gone.

        Cancelling ends the waiting; the child goes all the same. A child must not await its own
        end: an actor stops itself by ``self.stop()``.
        """
        child = self._children.get(name)
        if child is None:
            await trio.lowlevel.checkpoint()
            return
        self.stop_soon(name)
        await child.gone.wait()

    def watch(self, name: str, watcher: Ref[M], message: Callable[[Failure | None], M]) -> None:
        """Tell ``watcher`` once when the child has finally gone; restarts are not told.

        ``message`` is called with the failure its last incarnation ended by, or None. The notice is
        not lost to a full mailbox, but it is to a restart of the watcher: watch again in
        ``on_start``. Watching again with the same ref replaces the earlier watch.

        Raises:
            ActorGone: there is no such child (any more).
        """
        child = self._children.get(name)
        if child is None:
            raise ActorGone(name)
        child.watch(watcher, message)

    def unwatch(self, name: str, watcher: Ref[Any]) -> None:
        """Forget a watch. Does nothing when there is none."""
        child = self._children.get(name)
        if child is not None:
            child.unwatch(watcher)

    # A supervisor as a child.

    def as_child(
        self, *, restart: Restart = "permanent", limit: RestartLimit | None = None
    ) -> ChildSpec:
        """How to run this very supervisor under another one."""
        return ChildSpec(self.name, lambda: self, restart, limit or RestartLimit())

    @property
    def ref(self) -> Ref[Any]:
        """Names the supervisor in the directory. It takes no messages."""
        return self._ref

    def attach(self, ref: Ref[Any], surroundings: Surroundings) -> None:
        self.name = ref.name
        ref.mailbox.capacity = 0
        self._ref = ref
        self._surroundings = surroundings
        self._is_attached = True

    def finish(self, failure: Failure | None) -> None:
        """It will not run again: its children have finally gone, the last one first."""
        self._is_finished = True
        for child in reversed(list(self._children.values())):
            self._remove(child)
        self._ref.mailbox.close()

    async def run(self, *, task_status: trio.TaskStatus[Any] = trio.TASK_STATUS_IGNORED) -> None:
        """Live until asked to stop. Cancelling cancels all children at once, in no order.

        Raises:
            RestartsExceeded: a child could not be kept running; all children are down.
        """
        assert self._nursery is None, f"{self.name} runs already"
        spent: RestartsExceeded | None = None
        self._task_status = task_status
        try:
            async with trio.open_nursery() as nursery:
                self._open(nursery)
                try:
                    await self._tend()
                except RestartsExceeded as raised:
                    spent = raised
                finally:
                    self._is_ending = self._is_held = True
                await self._pause(list(self._children.values()))
        finally:
            self._nursery = None
            self._to_start, self._gate = [], None
            self._ref.mailbox.reset("ended")
            if not self._is_attached:
                self.finish(None)
        if spent is not None:
            raise spent

    def _open(self, nursery: trio.Nursery) -> None:
        for child in self._children.values():
            self._surroundings.directory.enter(child.ref)
            child.history = attrs.evolve(child.history, restarts_at_s=())
        self._nursery = nursery
        self._is_ending = self._is_held = False
        self._gate = None
        self._to_start = list(self._children.values())
        self._start_next()

    async def _tend(self) -> None:
        while True:
            item = await self._ref.mailbox.next()
            if item is STOP:
                return
            assert isinstance(item, _Exited)
            await self._decide(item)

    async def _decide(self, exited: _Exited) -> None:
        child, problem = exited.child, exited.problem
        is_past = child.is_pausing or child.incarnation != exited.incarnation
        if is_past or child.gone.is_set():
            return  # is restarted with others, or has been, or was removed
        history = child.history.after_failure(trio.current_time())
        if history is None:
            limit = child.spec.limit
            raise RestartsExceeded(
                child.name, restarts_max=limit.restarts_max, window_s=limit.window_s
            ) from problem
        child.history = history
        if (observer := self._surroundings.observer) is not None:
            observer.restarted(child.name, len(history.restarts_at_s))
        await self._restart_from(child)

    async def _restart_from(self, child: Child) -> None:
        if self.strategy == "one_for_one":
            self._start(child)
            return
        everyone = list(self._children.values())
        first = everyone.index(child) if self.strategy == "rest_for_one" else 0
        affected = everyone[first:]
        again = self._to_start + [one for one in affected if one.spec.restart != "temporary"]
        if self._gate in affected:
            self._gate = None
        self._is_held = True
        for one in affected:
            one.is_leaving |= one.spec.restart == "temporary" and not one.down.is_set()
        await self._pause(affected)
        # Others may have come or gone meanwhile; those that came are running.
        self._to_start = [one for one in self._children.values() if one in again]
        self._is_held = False
        self._start_next()

    async def _pause(self, children: list[Child]) -> None:
        """End these, the last one first, to be started again or to stay down."""
        for child in children:
            child.is_pausing = True
        for child in reversed(children):
            await child.end()

    # Incarnations.

    def _start_next(self) -> None:
        """Start what waits for its turn, once the one before it is ready."""
        if self._is_held or self._gate is not None:
            return
        if self._to_start:
            self._gate = self._to_start.pop(0)
            self._start(self._gate)
        elif self._task_status is not None:
            self._task_status.started(self._ref)
            self._task_status = None

    def _start(self, child: Child) -> None:
        assert self._nursery is not None
        child.begin()
        self._nursery.start_soon(self._run_child, child, name=child.name)

    async def _run_child(self, child: Child) -> None:
        incarnation = child.incarnation
        problem: Exception | None = None
        is_cancelled = True
        try:
            problem = await child.run_once(self._surroundings, lambda: self._ready(child))
            is_cancelled = False
        finally:
            if (observer := self._surroundings.observer) is not None:
                observer.exited(child.name, child.failure)
            child.down.set()
            comes_back = child.is_pausing or is_cancelled
            if child.is_leaving or not (comes_back or child.is_due_again(problem)):
                self._remove(child)
            elif not comes_back:
                self._ref.mailbox.put_system(_Exited(child, incarnation, problem))

    def _ready(self, child: Child) -> None:
        child.was_ready = True
        child.settled.set()
        if (observer := self._surroundings.observer) is not None:
            observer.started(child.name, child.incarnation)
        self._pass_gate(child)

    def _pass_gate(self, child: Child) -> None:
        if self._gate is child:
            self._gate = None
            self._start_next()

    def _remove(self, child: Child) -> None:
        if self._children.get(child.name) is not child:
            return
        del self._children[child.name]
        if child in self._to_start:
            self._to_start.remove(child)
        self._surroundings.directory.leave(child.ref)
        child.go(child.failure)
        if (observer := self._surroundings.observer) is not None:
            observer.gone(child.name)
        if self._nursery is not None:
            self._pass_gate(child)
