"""The address of one actor: what others hold instead of the actor."""

from __future__ import annotations

from typing import Generic, TypeVar

import attrs

from .mailbox import Mailbox

M_contra = TypeVar("M_contra", contravariant=True)


@attrs.frozen(eq=False, repr=False)
class Ref(Generic[M_contra]):
    """Where to send messages for one actor. Survives the actor's restarts; compares by identity.

    Use it from Trio's own thread only; from another one go through ``trio.from_thread``.
    """

    name: str
    mailbox: Mailbox
    """The runtime's side. Not for senders."""

    def tell(self, message: M_contra) -> None:
        """Enqueue ``message`` without waiting. Delivered at most once, in the order told.

        While the actor restarts, messages are accepted and wait for its next incarnation.

        Raises:
            MailboxFull: the receiver is overloaded; nothing was enqueued.
            ActorGone: the receiver has finally gone.
        """
        self.mailbox.put(message)

    @property
    def waiting_count(self) -> int:
        """Messages told and not yet handled."""
        return len(self.mailbox)

    @property
    def is_gone(self) -> bool:
        """Whether the actor has finally gone, so that no ``tell`` can succeed any more."""
        return self.mailbox.is_closed

    def __repr__(self) -> str:
        if self.is_gone:
            return f"<Ref {self.name}: gone>"
        return f"<Ref {self.name}: {len(self.mailbox)}/{self.mailbox.capacity} waiting>"
