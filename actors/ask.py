"""Ask an actor and wait for its answer: for the edges of a system, never inside an actor.

Two actors that wait for each other stand still; an actor tells, and reads on.
"""

from __future__ import annotations

from typing import Any, TypeVar

import trio

from .envelope import Asked, Reply
from .errors import AskTimedOut
from .ref import Ref

M = TypeVar("M")


async def ask(ref: Ref[M], message: M, *, within_s: float) -> Any:
    """Send ``message`` and return what the actor answers.

    Args:
        within_s: seconds to wait at most, from now; 0 or more.

    Raises:
        MailboxFull: the receiver is overloaded; nothing was enqueued.
        ActorGone: the receiver has gone, or ended or restarted before it answered.
        AskTimedOut: no answer in time.
        NotAnswered: the receiver handled the message and kept no way to answer it.
        Exception: whatever the receiver failed this ask with.

    Cancelling only ends the waiting: a message that was enqueued is handled all the same.
    """
    reply = Reply(ref.name)
    ref.mailbox.put(Asked(message, reply))
    try:
        with trio.move_on_after(within_s):
            return await reply.wait()
    finally:
        reply.leave()
    raise AskTimedOut(ref.name, message=type(message).__name__, within_s=within_s)
