"""Work that outlives the client that asked for it, and the slots it holds until its end."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from typing import Generic, Protocol, TypeVar

import trio

from capyctl.domain.errors import Refused

T = TypeVar("T")
_log = logging.getLogger(__name__)


class Pool:
    """A number of slots. Nobody waits for one: without a free slot the request is refused."""

    def __init__(self, what: str, count_max: int) -> None:
        self._what = what
        self._count_max = count_max
        self._taken_count = 0

    def take(self) -> Slot:
        """Raises Refused(``queue_full``) when all are taken."""
        if self._taken_count >= self._count_max:
            raise Refused(
                "queue_full",
                f"Too many {self._what} at once: {self._taken_count} are under way and no more "
                "are let in. Send the request again in a second or two",
            )
        self._taken_count += 1
        return Slot(self)

    def put_back(self) -> None:
        """For `Slot` only."""
        self._taken_count -= 1


class Slot:
    """One place in a pool. As a context it is given back at the end, unless work took it over."""

    def __init__(self, pool: Pool) -> None:
        self._pool = pool
        self._is_held = True
        self._is_taken_over = False

    def take_over(self) -> None:
        """From now on only `give_back` frees it, not the end of the context."""
        self._is_taken_over = True

    def give_back(self) -> None:
        """Free it; again is harmless."""
        if self._is_held:
            self._is_held = False
            self._pool.put_back()

    def __enter__(self) -> Slot:
        return self

    def __exit__(self, *exc: object) -> None:
        if not self._is_taken_over:
            self.give_back()


class Held(Protocol):
    """What a job holds while it runs: a slot, or something that holds one itself."""

    def take_over(self) -> None:
        """The job begins."""

    def give_back(self) -> None:
        """The job has ended."""


class _Result(Generic[T]):
    def __init__(self) -> None:
        self.ended = trio.Event()
        self.value: T
        self.error: Exception | None = None
        self.is_known = False


class Work:
    """Runs jobs in a nursery that no request owns."""

    def __init__(self, nursery: Callable[[], trio.Nursery]) -> None:
        self._nursery = nursery

    async def answer(self, held: Held, job: Callable[[], Awaitable[T]], *, within_s: float) -> T:
        """What the job returned or raised, when that comes within ``within_s`` seconds.

        The job goes on after that, and when this is cancelled; ``held`` is its own until it ends.

        Raises:
            Refused: ``deadline_exceeded`` when it takes longer; or the job's own.
        """
        result: _Result[T] = _Result()
        held.take_over()
        try:
            self._nursery().start_soon(self._run, held, job, result)
        except BaseException:
            held.give_back()
            raise
        with trio.move_on_after(within_s):
            await result.ended.wait()
        if not result.ended.is_set():
            raise Refused(
                "deadline_exceeded",
                f"There was no answer within {within_s:g} seconds. The work goes on: send the same "
                "request again, a change under the same key",
            )
        if result.error is not None:
            raise result.error
        if not result.is_known:
            raise Refused("reconciliation_required", "The daemon is stopping; ask again later")
        return result.value

    @staticmethod
    async def _run(held: Held, job: Callable[[], Awaitable[T]], result: _Result[T]) -> None:
        try:
            result.value = await job()
            result.is_known = True
        except Refused as refused:
            result.error = refused
        except Exception as problem:
            # The client may be gone: what failed is told here, once, with its traceback.
            _log.exception("a request of the management API failed")
            result.error = Refused("internal", "An internal error; the daemon's log says more")
            result.error.__cause__ = problem
        finally:
            held.give_back()
            result.ended.set()
