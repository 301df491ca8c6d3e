"""One mailbox, one owner of state, one message at a time."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Generic, TypeVar, TypeVarTuple

import trio

from .body import STOP, Surroundings
from .envelope import Asked, Reply, ReplyTo
from .errors import NotAnswered
from .failure import Failure
from .mailbox import CAPACITY_COUNT, Mailbox
from .observer import Observer
from .ref import Ref
from .timers import Alarm, Timers

M = TypeVar("M")
Ts = TypeVarTuple("Ts")

ENDED = "ended or restarted before it answered"


class Actor(Generic[M]):
    """One incarnation of an actor. Subclass it and implement :meth:`handle`.

    Slow work goes to :meth:`spawn` and comes back as a message, so that the mailbox is never held
    up by the world. An exception that leaves :meth:`on_start`, :meth:`handle` or a spawned task
    ends the incarnation; what follows is its supervisor's decision. An object runs once: a restart
    makes a new one, which keeps the ref.

    Args:
        name: who this is, in errors and traces. Under a supervisor the child's name is used.
        capacity: messages that may wait. Full is an error at the sender.
    """

    stop_within_s: float = 5.0
    """Seconds from being asked to stop until whatever still runs is cancelled."""

    def __init__(self, name: str, *, capacity: int = CAPACITY_COUNT) -> None:
        assert capacity > 0, f"{name}: a mailbox of capacity {capacity} takes no message"
        self.name = name
        self.capacity = capacity
        self.timers: Timers[M] = Timers()
        self._ref: Ref[M] | None = None
        self._observer: Observer | None = None
        self._is_attached = False
        self._work: trio.Nursery | None = None
        self._reader: trio.lowlevel.Task | None = None
        self._reply: Reply | None = None
        self._token: ReplyTo | None = None
        self._owed: dict[Reply, None] = {}

    # For subclasses to implement.

    async def on_start(self) -> None:
        """First effects of a fresh incarnation, from durable state. Runs before any message."""

    async def handle(self, message: M) -> None:
        """Decide and act on one message. Cancelled when the actor must end now."""
        raise NotImplementedError

    # For subclasses to call.

    @property
    def ref(self) -> Ref[M]:
        """This actor's address. Under a supervisor it is known from ``on_start`` on."""
        if self._ref is None:
            self._ref = Ref(self.name, Mailbox(self.name, capacity=self.capacity))
        return self._ref

    def spawn(self, fn: Callable[[*Ts], Awaitable[object]], *args: *Ts) -> trio.CancelScope:
        """Run ``fn(*args)`` as a task of this incarnation; it is cancelled when that ends.

        An exception in it takes the actor down: turn expected failures into messages.

        Returns:
            A scope that cancels this one task.
        """
        if self._work is None:
            raise RuntimeError(f"{self.name}: spawn() from on_start on, while the actor runs")
        scope = trio.CancelScope()
        self._work.start_soon(_within, scope, fn, args, name=f"{self.name}: {_name_of(fn)}")
        return scope

    def stop(self) -> None:
        """Finish the message at hand, cancel spawned tasks, then exit without a failure.

        What waits in the mailbox is not handled.
        """
        self.ref.mailbox.put_system(STOP)

    def reply_to(self) -> ReplyTo | None:
        """The way back to whoever asked the message at hand; None when it was told.

        Only within :meth:`handle`, not in spawned tasks. The token may be kept and used later. One
        that is never used fails its asker when this incarnation ends.
        """
        if trio.lowlevel.current_task() is not self._reader:
            raise RuntimeError(f"{self.name}: reply_to() only within handle(), not in other tasks")
        if self._reply is None:
            return None
        if self._token is None:
            self._token = ReplyTo(self._reply)
            self._reply.taken = True
        return self._token

    # For whoever runs it.

    def attach(self, ref: Ref[Any], surroundings: Surroundings) -> None:
        assert self._ref is None, (
            f"{ref.name}: take self.ref in on_start, not before the actor runs"
        )
        self.name = ref.name
        ref.mailbox.capacity = self.capacity
        self._ref = ref
        self._observer = surroundings.observer
        self._is_attached = True

    async def run(self, *, task_status: trio.TaskStatus[Ref[M]] = trio.TASK_STATUS_IGNORED) -> None:
        """Live. A supervisor calls this; so may a test: ``ref = await nursery.start(actor.run)``.

        Cancelling ends the incarnation at once, the message at hand included.
        """
        assert self._work is None, f"{self.name}: an actor object runs once"
        ref = self.ref
        try:
            async with trio.open_nursery() as work:
                self._work = work
                self.timers.open(work, ref.mailbox)
                try:
                    await self.on_start()
                    task_status.started(ref)
                    await self._read(ref.mailbox)
                finally:
                    self._let_go(ref.mailbox)
                work.cancel_scope.cancel()
        finally:
            if not self._is_attached:
                ref.mailbox.close()

    def finish(self, failure: Failure | None) -> None:
        """Nothing outlives an incarnation but its ref, which is the supervisor's."""

    async def _read(self, mailbox: Mailbox) -> None:
        self._reader = trio.lowlevel.current_task()
        while True:
            item = await mailbox.next()
            kind = type(item)
            if item is STOP:
                return
            if kind is Asked:
                await self._handle_asked(mailbox, item)
            elif kind is not Alarm:
                await self._handle_seen(mailbox, item)
            elif self.timers.claim(item):
                await self._handle_seen(mailbox, item.message)

    async def _handle_asked(self, mailbox: Mailbox, asked: Asked) -> None:
        reply = asked.reply
        if not reply.settled:
            reply.held = self._owed
            self._owed[reply] = None
        self._reply = reply
        await self._handle_seen(mailbox, asked.message)
        self._reply = self._token = None
        if not reply.taken:
            reply.settle(None, NotAnswered(self.name, message=type(asked.message).__name__))

    async def _handle_seen(self, mailbox: Mailbox, message: M) -> None:
        if self._observer is None:
            await self.handle(message)
            return
        waiting_count, since_s = len(mailbox), trio.current_time()
        try:
            await self.handle(message)
        finally:
            took_s = trio.current_time() - since_s
            self._observer.handled(self.name, type(message).__name__, waiting_count, took_s)

    def _let_go(self, mailbox: Mailbox) -> None:
        """From here on, messages are for the next incarnation."""
        self._reader = None
        mailbox.reset(ENDED)
        for reply in list(self._owed):
            reply.abandon(ENDED)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name}>"


async def _within(
    scope: trio.CancelScope, fn: Callable[[*Ts], Awaitable[object]], args: tuple[*Ts]
) -> None:
    with scope:
        await fn(*args)


def _name_of(fn: Callable[..., object]) -> str:
    return getattr(fn, "__qualname__", None) or repr(fn)
