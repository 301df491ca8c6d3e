"""Everything that runs, from its opening to its orderly end."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from typing import Any

import trio

from .body import STOP, Directory, Surroundings
from .child_spec import ChildSpec, Restart, Strategy
from .errors import ActorGone
from .observer import Observer
from .ref import Ref
from .restart import RestartLimit
from .supervisor import Supervisor

STOP_WITHIN_S = 30.0


class System:
    """The root supervisor and the directory of all refs. Made by :func:`open_system`."""

    def __init__(self, root: Supervisor, directory: Directory) -> None:
        self.root = root
        self._directory = directory

    @property
    def names(self) -> tuple[str, ...]:
        """Every actor and supervisor at any depth, the oldest first."""
        return self._directory.names

    def find(self, name: str) -> Ref[Any] | None:
        """The ref of that name, at any depth, or None."""
        return self._directory.find(name)

    def ref(self, name: str) -> Ref[Any]:
        """The ref of that name, at any depth.

        Raises:
            ActorGone: there is none (any more).
        """
        ref = self._directory.find(name)
        if ref is None:
            raise ActorGone(name)
        return ref

    def start_soon(self, spec: ChildSpec) -> Ref[Any]:
        """As :meth:`Supervisor.start_soon`, at the top."""
        return self.root.start_soon(spec)

    async def start_child(self, spec: ChildSpec) -> Ref[Any]:
        """As :meth:`Supervisor.start_child`, at the top."""
        return await self.root.start_child(spec)

    async def stop_child(self, name: str) -> None:
        """As :meth:`Supervisor.stop_child`, at the top."""
        await self.root.stop_child(name)

    async def open_floor(
        self,
        name: str,
        *,
        strategy: Strategy = "one_for_one",
        children: Iterable[ChildSpec] = (),
        restart: Restart = "permanent",
        limit: RestartLimit | None = None,
    ) -> Supervisor:
        """A supervisor above all that was started before; it stops before they do.

        Returns when all of ``children`` are ready.
        """
        floor = Supervisor(name, strategy=strategy, children=children)
        await self.root.start_child(floor.as_child(restart=restart, limit=limit))
        return floor

    def __repr__(self) -> str:
        return f"<System {self.root.name}: {len(self.names)} running>"


@asynccontextmanager
async def open_system(
    floors: Iterable[ChildSpec] = (),
    *,
    name: str = "system",
    strategy: Strategy = "one_for_one",
    observer: Observer | None = None,
    stop_within_s: float = STOP_WITHIN_S,
) -> AsyncIterator[System]:
    """Run actors for as long as the ``async with`` block lasts.

    ``floors`` (actors, or supervisors by ``as_child``) start in order, each when the one below is
    ready, and the block is entered when all are. When the block is left, by whatever way, they are
    asked to stop in reverse order, each when the one above has gone; cancelling the block does not
    cancel the actors. What has not stopped after ``stop_within_s`` seconds is cancelled.

    Raises:
        RestartsExceeded: a child at the top could not be kept running. The block is cancelled.
    """
    directory = Directory()
    root = Supervisor(name, strategy=strategy, children=floors)
    root.attach(root.ref, Surroundings(directory=directory, observer=observer))
    system = System(root, directory)
    running = _Running(root)
    raised: BaseException | None = None
    async with trio.open_nursery() as nursery:
        nursery.start_soon(running.run, name=name)
        try:
            with running.block:
                await running.ready.wait()
                yield system
        except BaseException as problem:
            # Raised again below, outside the nursery, which would wrap it into a group.
            raised = problem
        await running.stop(stop_within_s)
    if running.problem is not None:
        _raise_both(running.problem, raised)
    if raised is not None:
        raise raised


class _Running:
    """The root's run, shielded from whatever cancels the block."""

    def __init__(self, root: Supervisor) -> None:
        self._root = root
        self._scope = trio.CancelScope(shield=True)
        self._done = trio.Event()
        self.block = trio.CancelScope()
        self.ready = trio.Event()
        self.problem: Exception | None = None

    async def run(self) -> None:
        try:
            with self._scope:
                await self._root.run(task_status=self)
        except Exception as problem:
            self.problem = problem
            self.block.cancel()
        finally:
            self._root.finish(None)
            self._done.set()

    def started(self, value: object = None) -> None:
        self.ready.set()

    async def stop(self, within_s: float) -> None:
        self._root.ref.mailbox.put_system(STOP)
        with trio.CancelScope(shield=True):
            with trio.move_on_after(within_s):
                await self._done.wait()
            self._scope.cancel()
            await self._done.wait()


def _raise_both(problem: Exception, raised: BaseException | None) -> None:
    if isinstance(raised, Exception):
        raise ExceptionGroup("the system failed, and so did its block", [problem, raised])
    raise problem
