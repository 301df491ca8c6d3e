"""Errors a user of the runtime can act on. Anything else is a bug and propagates."""

from __future__ import annotations


class MailboxFull(Exception):
    """The receiver is overloaded. Nothing was enqueued: shed the work or try later."""

    def __init__(self, name: str, *, capacity: int) -> None:
        super().__init__(f"{name}: {capacity} messages wait already; try later")
        self.name = name
        self.capacity = capacity


class ActorGone(Exception):
    """The receiver has finally gone; or, to an asker, restarted before it answered.

    Raised by ``tell`` it is final: this ref will never work again. Raised by ``ask`` it says only
    that no answer will come; whether the message had an effect is not known.
    """

    def __init__(self, name: str, why: str = "has gone and takes no more messages") -> None:
        super().__init__(f"{name} {why}")
        self.name = name
        self.why = why


class AskTimedOut(Exception):
    """No answer within the time given. Whether the message had an effect is not known."""

    def __init__(self, name: str, *, message: str, within_s: float) -> None:
        super().__init__(f"{name}: no answer to {message} within {within_s:g} s")
        self.name = name
        self.message = message
        self.within_s = within_s


class NotAnswered(Exception):
    """The actor handled an asked message without taking its reply token: a bug in the actor."""

    def __init__(self, name: str, *, message: str) -> None:
        super().__init__(
            f"{name} handled {message} and kept no way to answer it; "
            "tell this message, or call reply_to() while handling it"
        )
        self.name = name
        self.message = message


class AlreadyAnswered(Exception):
    """This reply token was used before; the first answer stands. A bug at the second answerer."""

    def __init__(self, name: str) -> None:
        super().__init__(f"{name}: this asker has been answered already; the first answer stands")
        self.name = name


class RestartsExceeded(Exception):
    """A child kept failing faster than its limit allows; its supervisor gives up.

    The last failure is the ``__cause__`` (None when the child ended without one).
    """

    def __init__(self, name: str, *, restarts_max: int, window_s: float) -> None:
        super().__init__(
            f"{name} ended again after {restarts_max} restarts within {window_s:g} s; "
            "its supervisor gives up"
        )
        self.name = name
        self.restarts_max = restarts_max
        self.window_s = window_s


class Lagged(Exception):
    """A subscriber read too slowly and was dropped. Subscribe again from a known place."""

    def __init__(self, topic: str, *, capacity: int) -> None:
        super().__init__(f"{topic}: more than {capacity} values were waiting; subscribe again")
        self.topic = topic
        self.capacity = capacity
