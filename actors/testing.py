"""What tests of actors need: a run that ends, and an address whose messages the test awaits."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Generic, TypeVar

import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from .envelope import Asked, ReplyTo
from .mailbox import CAPACITY_COUNT, Mailbox
from .ref import Ref

M = TypeVar("M")
R = TypeVar("R")

VIRTUAL_MAX_S = 7 * 24 * 3600.0
REAL_MAX_S = 60.0


async def bounded(main: Callable[[], Awaitable[R]]) -> R:
    """Await ``main()``, for at most seven days of a mock clock or one minute of a real one.

    Raises:
        trio.TooSlowError: it did not end; usually everything waits for something else.
    """
    is_virtual = isinstance(trio.lowlevel.current_clock(), MockClock)
    with trio.fail_after(VIRTUAL_MAX_S if is_virtual else REAL_MAX_S):
        return await main()


def run_bounded(
    main: Callable[[], Awaitable[R]],
    *,
    clock: trio.abc.Clock | None = None,
    instruments: Sequence[trio.abc.Instrument] = (),
) -> R:
    """As ``trio.run``, but a deadlock is an error within seven virtual days or one real minute."""
    return trio.run(bounded, main, clock=clock, instruments=instruments)


def run_virtual(main: Callable[[], Awaitable[R]]) -> R:
    """:func:`run_bounded` on a fresh clock that jumps: for tests that are not async themselves."""
    return run_bounded(main, clock=MockClock(autojump_threshold=0))


class Probe(Generic[M]):
    """Stands where an actor would. The test reads what is told or asked."""

    def __init__(self, name: str = "probe", *, capacity: int = CAPACITY_COUNT) -> None:
        self._mailbox = Mailbox(name, capacity=capacity)
        self.ref: Ref[M] = Ref(name, self._mailbox)
        """Give this to whatever is tested."""

    async def next(self, *, within_s: float = 3600.0) -> M:
        """The next message, told or asked.

        Raises:
            trio.TooSlowError: none came within ``within_s`` seconds.
        """
        message, _ = await self.next_asked(within_s=within_s)
        return message

    async def next_asked(self, *, within_s: float = 3600.0) -> tuple[M, ReplyTo | None]:
        """The next message and the way to answer it, which is None when it was told."""
        with trio.fail_after(within_s):
            return _opened(await self._mailbox.next())

    def drain(self) -> list[M]:
        """All messages that wait now, without waiting for more."""
        return [_opened(item)[0] for item in self._mailbox.drain()]

    async def settle(self) -> list[M]:
        """Let every task run until all are blocked, then :meth:`drain`."""
        await wait_all_tasks_blocked()
        return self.drain()

    def close(self) -> None:
        """Go, as an actor goes: telling it raises ActorGone from now on."""
        self._mailbox.close()

    def __repr__(self) -> str:
        return f"<Probe {self.ref.name}: {len(self._mailbox)} waiting>"


def _opened(item: Any) -> tuple[Any, ReplyTo | None]:
    if type(item) is not Asked:
        return item, None
    item.reply.taken = True
    return item.message, ReplyTo(item.reply)
