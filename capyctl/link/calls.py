"""The server's open calls to one host: sent until they have an end, and ended exactly once."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any

import attrs
import trio

from capyctl.contracts.checkpoints import Progress
from capyctl.contracts.clock import Ids
from capyctl.contracts.engines import EngineBroken
from capyctl.contracts.hosts import HostFailed
from capyctl.domain.launches import LaunchRecord
from capyctl.link.session import Session
from capyctl.wire.link import (
    Ack,
    BadFrame,
    Call,
    Cancel,
    Error,
    FrameTooLarge,
    HostFrame,
    Result,
    write_frame,
)
from capyctl.wire.link import Progress as ProgressFrame
from capyctl.wire.link_calls import (
    ONCE,
    RESULTS,
    HostCall,
    exception_of,
    from_wire,
    method_of,
    to_wire,
)

OPEN_COUNT_MAX = 2048
"""Calls to one host at a time; further ones wait. The host takes twice as many."""


@attrs.define(eq=False, kw_only=True)
class OpenCall:
    """A call that somebody waits for."""

    id: str
    call: HostCall
    method: str
    data: bytes = attrs.field(repr=False)
    """Its frame."""
    progress: Progress | None = None
    sent_to: str | None = None
    """The epoch of the host's process that it was last sent to."""
    done: trio.Event = attrs.field(factory=trio.Event)
    value: Any = None
    problem: Exception | None = None


class OpenCalls:
    """By id, in the order they were made."""

    def __init__(self, ids: Ids, answered: Callable[[OpenCall, bool | None], None]) -> None:
        """``answered`` is told of each end that the host gives, before the caller goes on, with
        what the host says of whether the launch's process runs (None: the call was of none)."""
        self._ids = ids
        self._answered = answered
        self._open: dict[str, OpenCall] = {}
        self._room = trio.Semaphore(OPEN_COUNT_MAX)
        self._session: Session[HostFrame] | None = None
        self._epoch = ""

    @property
    def open_ids(self) -> list[str]:
        return list(self._open)

    async def make(self, call: HostCall, progress: Progress | None = None) -> Any:
        """Have the host do it, and wait for its end: through reconnects, without a bound.

        Cancelling takes it back: the host cancels it, or never hears of it.

        Raises:
            what the method's contract says; HostFailed for what none foresees; EngineBroken
            with ``host_restarted`` for a park or wake whose host process has ended since.
        """
        async with self._room:
            open_call = self._opened(call, progress)
            try:
                self._send(open_call)
                await open_call.done.wait()
            finally:
                if self._open.pop(open_call.id, None) is not None:
                    self._take_back(open_call)
            if open_call.problem is not None:
                raise open_call.problem
            return open_call.value

    def _opened(self, call: HostCall, progress: Progress | None) -> OpenCall:
        id, method = self._ids.ulid(), method_of(call)
        try:
            data = write_frame(Call(id=id, method=method, params=to_wire(call)))
        except FrameTooLarge as problem:
            raise HostFailed(f"{method} cannot be sent: {problem}") from problem
        made = OpenCall(id=id, call=call, method=method, data=data, progress=progress)
        self._open[id] = made
        return made

    def _send(self, open_call: OpenCall) -> None:
        if self._session is not None:
            open_call.sent_to = self._epoch
            self._session.post_bytes(open_call.data)

    def _take_back(self, open_call: OpenCall) -> None:
        if self._session is not None and open_call.sent_to == self._epoch:
            self._session.post(Cancel(id=open_call.id))

    # -- the session ------------------------------------------------------------------------

    def attach(self, session: Session[HostFrame], epoch: str, has: Collection[str]) -> None:
        """A session is agreed: send what the host has not, and take back what nobody wants.

        Args:
            epoch: the host's process; a park or wake that was sent to another one fails.
            has: ids of calls that the host knows, so goes on with.
        """
        self._session, self._epoch = session, epoch
        for id in has:
            if id not in self._open:
                session.post(Cancel(id=id))
        for open_call in list(self._open.values()):
            if open_call.id in has:
                open_call.sent_to = epoch
            elif open_call.method in ONCE and open_call.sent_to not in (None, epoch):
                self._fail_restarted(open_call)
            else:
                self._send(open_call)

    def detach(self) -> None:
        """There is no session; calls wait for the next one."""
        self._session = None

    def _fail_restarted(self, open_call: OpenCall) -> None:
        detail = f"the host's daemon ended in the middle of a {open_call.method}"
        self._end(open_call, None, problem=EngineBroken("host_restarted", detail))

    # -- what the host says -----------------------------------------------------------------

    def take(self, frame: Result | Error | ProgressFrame) -> None:
        """An answer, or news of a call; late ones change nothing."""
        open_call = self._open.get(frame.id)
        if isinstance(frame, ProgressFrame):
            if open_call is not None and open_call.progress is not None:
                open_call.progress(frame.bytes_done, frame.bytes_total)
            return
        if open_call is not None:
            self._end(open_call, frame.running, problem=_outcome(open_call, frame))
        if self._session is not None:
            self._session.post(Ack(id=frame.id))

    def _end(self, open_call: OpenCall, running: bool | None, *, problem: Exception | None) -> None:
        del self._open[open_call.id]
        open_call.problem = problem
        self._answered(open_call, running)
        open_call.done.set()


def _outcome(open_call: OpenCall, frame: Result | Error) -> Exception | None:
    """What the call's caller is to meet; the value is put into the call."""
    if isinstance(frame, Error):
        return exception_of(frame)
    try:
        open_call.value = from_wire(RESULTS[open_call.method], frame.value)
    except BadFrame as problem:
        # Closing would bring the same answer again, and again.
        return HostFailed(f"the host answered {open_call.method} with {problem}")
    return None


def record_of(call: HostCall) -> LaunchRecord | None:
    """The launch that a call is about, where it is known as one."""
    found: LaunchRecord | None = getattr(call, "record", None)
    return found
