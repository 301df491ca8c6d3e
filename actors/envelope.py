"""What the runtime wraps around a message that is asked: the way back to the asker."""

from __future__ import annotations

from typing import Any

import attrs

from .errors import ActorGone, AlreadyAnswered
from .slot import Slot


class Reply:
    """One asker's wait. Settled at most once: answered, failed, or given up by either side."""

    __slots__ = ("_problem", "_slot", "_value", "answered", "held", "name", "settled", "taken")

    def __init__(self, name: str) -> None:
        self.name = name
        """Of the actor that is asked."""
        self.taken = False
        """The actor has the token."""
        self.answered = False
        """The token was used."""
        self.settled = False
        """The asker has what it will get, or has left."""
        self.held: dict[Reply, None] | None = None
        """The running actor's record of whom it owes an answer."""
        self._slot = Slot()
        self._value: Any = None
        self._problem: Exception | None = None

    async def wait(self) -> Any:
        if not self.settled:
            await self._slot.wait()
        if self._problem is not None:
            raise self._problem
        return self._value

    def settle(self, value: Any, problem: Exception | None = None) -> None:
        """Give the asker its answer. Does nothing when it has one or has left."""
        if self.settled:
            return
        self._value = value
        self._problem = problem
        self._slot.wake()
        self.leave()

    def leave(self) -> None:
        """Nobody waits any more."""
        self.settled = True
        if self.held is not None:
            self.held.pop(self, None)
            self.held = None

    def abandon(self, why: str) -> None:
        """The actor ends, so no answer will come."""
        self.settle(None, ActorGone(self.name, why))


@attrs.frozen(eq=False, repr=False)
class ReplyTo:
    """The right to answer one asker, once. May be kept and used after other messages.

    When the asker has left (timed out, cancelled) or has been told that the actor ended, answering
    does nothing.
    """

    _reply: Reply

    @property
    def is_awaited(self) -> bool:
        """Whether the asker still waits. An answer that costs much may be skipped when not."""
        return not self._reply.settled

    def answer(self, value: Any) -> None:
        """Make ``ask`` return ``value``.

        Raises:
            AlreadyAnswered: this token was used before.
        """
        self._use()
        self._reply.settle(value)

    def fail(self, problem: Exception) -> None:
        """Make ``ask`` raise ``problem``: the normal way to refuse.

        Raises:
            AlreadyAnswered: this token was used before.
        """
        self._use()
        self._reply.settle(None, problem)

    def _use(self) -> None:
        if self._reply.answered:
            raise AlreadyAnswered(self._reply.name)
        self._reply.answered = True

    def __repr__(self) -> str:
        state = "answered" if self._reply.answered else "open" if self.is_awaited else "left"
        return f"<ReplyTo asker of {self._reply.name}: {state}>"


class Asked:
    """A message in a mailbox whose sender waits for an answer."""

    __slots__ = ("message", "reply")

    def __init__(self, message: Any, reply: Reply) -> None:
        self.message = message
        self.reply = reply
