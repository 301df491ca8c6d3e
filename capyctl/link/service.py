"""A host's side of the link: it does what the server asks of it, once, whatever the wire does."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

import attrs
import trio

from capyctl.contracts.host import Host
from capyctl.contracts.hosts import CapabilityMissing, Openings, Strays
from capyctl.domain.hosts import HostPublication
from capyctl.domain.ids import LaunchId
from capyctl.domain.launches import LaunchRecord
from capyctl.link.calls import record_of
from capyctl.link.doing import Doing
from capyctl.link.session import Session
from capyctl.wire.link import (
    CALLS_COUNT_MAX,
    BadFrame,
    Call,
    Error,
    Frame,
    FrameTooLarge,
    Progress,
    Published,
    Result,
    ServerFrame,
    Synced,
    write_frame,
)
from capyctl.wire.link_calls import (
    CHEAP,
    METHODS,
    HostCall,
    Prepare,
    error_frame,
    from_wire,
    to_wire,
)

KEPT_BYTES_MAX = 4 * 1024 * 1024
"""Answers that wait for their ack, all together; the largest cheap ones go first."""
PROGRESS_S = 0.5
"""Between two pieces of news of one download, unless its total changes."""
STRAYS_S = 30.0
"""How long an agreement waits for strays to be ended; after that they are ended beside it."""


@attrs.define(eq=False, kw_only=True)
class HostCallState:
    """A call of the server, from its arrival until the server has its end."""

    id: str
    method: str
    call: HostCall
    scope: trio.CancelScope = attrs.field(factory=trio.CancelScope)
    answer: bytes | None = None
    value: Any = None
    progressed_at_s: float = -1.0
    total_bytes: int = -1


class HostService:
    """Outlives every session. `open_host_service` makes one."""

    def __init__(
        self,
        host: Host,
        *,
        strays: Strays,
        openings: Openings | None,
        publication: HostPublication,
        epoch: str,
        first_generation: int,
        nursery: trio.Nursery,
        log: Callable[..., None],
    ) -> None:
        self.epoch = epoch
        self.host = host
        self.publication = publication
        self._strays = strays
        self._nursery = nursery
        self._log = log
        self._doing = Doing(host, openings, first_generation)
        self._calls: dict[str, HostCallState] = {}
        self._kept_bytes = 0
        self._session: Session[ServerFrame] | None = None
        self._ending: trio.CancelScope | None = None

    @property
    def open_count(self) -> int:
        """Calls that the server has not seen the end of."""
        return len(self._calls)

    @property
    def kept_bytes(self) -> int:
        """Of answers that the server has not acknowledged."""
        return self._kept_bytes

    # -- sessions ---------------------------------------------------------------------------

    async def agree(self, launches: Sequence[LaunchRecord], calls: Sequence[str]) -> Synced:
        """Drop what the server has dropped, and end every engine of ours that it does not know.

        A server that began anew has dropped every call.

        Returns when they are gone, or after half a minute; they are ended in any case.
        """
        wanted, known = frozenset(calls), {record.launch for record in launches}
        for state in list(self._calls.values()):
            if state.id in wanted:
                continue
            if isinstance(state.value, LaunchRecord) and state.value.launch in known:
                self.forget(state.id)  # the server has it; only its ack was lost
            else:
                self.drop(state.id)
        keep = known | self._expected()
        self._doing.keep_only(keep)
        await self._end_strays(frozenset(keep))
        for record in launches:
            self._doing.know(record)
        return Synced(
            running={record.launch: self.host.is_running(record) for record in launches},
            calls=sorted(self._calls),
        )

    def _expected(self) -> set[LaunchId]:
        """Launches that open calls are about: made, or just being made."""
        found = set()
        for state in self._calls.values():
            record = record_of(state.call)
            if isinstance(state.call, Prepare):
                found.add(state.call.order.launch)
            elif record is not None:
                found.add(record.launch)
        return found

    async def _end_strays(self, keep: frozenset[LaunchId]) -> None:
        if self._ending is not None:
            self._ending.cancel()
        scope = self._ending = trio.CancelScope()
        ended = trio.Event()

        async def end() -> None:
            try:
                with scope:
                    gone = await self._strays.end_others(keep)
                    if gone:
                        self._log("unknown_engines_ended", launches=sorted(gone))
            except Exception as problem:
                self._log("unknown_engines_not_ended", problem=repr(problem))
            finally:
                ended.set()

        self._nursery.start_soon(end)
        with trio.move_on_after(STRAYS_S):
            await ended.wait()

    def attach(self, session: Session[ServerFrame], published: HostPublication) -> None:
        """A session is agreed: the server is told what has ended, or changed, meanwhile."""
        self._session = session
        if published != self.publication:
            self._post(Published(publication=to_wire(self.publication)))
        for state in self._calls.values():
            if state.answer is not None:
                session.post_bytes(state.answer)

    def detach(self, session: Session[ServerFrame]) -> None:
        """The session is over; what runs goes on."""
        if self._session is session:
            self._session = None

    def publish(self, publication: HostPublication) -> None:
        """From now on this is what the host says of itself; a live server is told at once."""
        if publication != self.publication:
            self.publication = publication
            self._post(Published(publication=to_wire(publication)))

    # -- calls ------------------------------------------------------------------------------

    def begin(self, frame: Call) -> None:
        """Do it, unless it is being done or is done: then its answer is told again.

        Raises:
            BadFrame: there are too many.
        """
        known = self._calls.get(frame.id)
        if known is not None:
            if known.answer is not None and self._session is not None:
                self._session.post_bytes(known.answer)
            return
        kind = METHODS.get(frame.method)
        if kind is None:
            missing = CapabilityMissing(frame.method)
            self._post(error_frame(frame.id, missing, running=None))
            return
        if len(self._calls) >= CALLS_COUNT_MAX:
            raise BadFrame(f"more than {CALLS_COUNT_MAX} calls are open")
        try:
            call = from_wire(kind, frame.params)
        except BadFrame as problem:
            # Closing would bring the same call again, and again.
            self._post(error_frame(frame.id, problem, running=None))
            return
        state = HostCallState(id=frame.id, method=frame.method, call=call)
        self._calls[frame.id] = state
        self._nursery.start_soon(self._perform, state)

    def forget(self, id: str) -> None:
        """The server has the end of this call."""
        state = self._calls.pop(id, None)
        if state is not None and state.answer is not None:
            self._kept_bytes -= len(state.answer)

    def drop(self, id: str) -> None:
        """Nobody waits for this call: end it, and discard what it had prepared."""
        state = self._calls.get(id)
        self.forget(id)
        if state is None:
            return
        state.scope.cancel()
        if isinstance(state.value, LaunchRecord):
            self._nursery.start_soon(self._discard, state.value)

    async def _discard(self, record: LaunchRecord) -> None:
        try:
            await self.host.discard(record)
        except Exception as problem:
            self._log("launch_not_discarded", launch=record.launch, problem=repr(problem))

    async def _perform(self, state: HostCallState) -> None:
        def progress(bytes_done: int, bytes_total: int) -> None:
            self._tell_progress(state, bytes_done, bytes_total)

        with state.scope:
            try:
                state.value = await self._doing.do(state.call, progress)
            except Exception as problem:
                frame: Frame = self._failed(state, problem)
            else:
                frame = Result(
                    id=state.id, value=to_wire(state.value), running=self._running(state)
                )
            self._answer(state, frame)

    def _failed(self, state: HostCallState, problem: Exception) -> Error:
        frame = error_frame(state.id, problem, running=self._running(state))
        if frame.type == "failed":
            self._log("call_failed", method=state.method, problem=repr(problem))
        return frame

    def _running(self, state: HostCallState) -> bool | None:
        record = record_of(state.call)
        return None if record is None else self.host.is_running(record)

    def _answer(self, state: HostCallState, frame: Frame) -> None:
        if self._calls.get(state.id) is not state:
            # It was dropped as it ended.
            if isinstance(state.value, LaunchRecord):
                self._nursery.start_soon(self._discard, state.value)
            return
        try:
            state.answer = write_frame(frame)
        except FrameTooLarge as problem:
            state.answer = write_frame(self._failed(state, problem))
        self._kept_bytes += len(state.answer)
        if self._session is not None:
            self._session.post_bytes(state.answer)
        self._shed()

    def _shed(self) -> None:
        """Forget large answers that may be had again, where too much waits for the server."""
        while self._kept_bytes > KEPT_BYTES_MAX:
            cheap = [s for s in self._calls.values() if s.answer and s.method in CHEAP]
            if not cheap:
                return
            self.forget(max(cheap, key=lambda s: len(s.answer or b"")).id)

    def _tell_progress(self, state: HostCallState, bytes_done: int, bytes_total: int) -> None:
        now_s = trio.current_time()
        recent = now_s - state.progressed_at_s < PROGRESS_S
        if self._session is None or (recent and bytes_total == state.total_bytes):
            return
        state.progressed_at_s, state.total_bytes = now_s, bytes_total
        self._post(Progress(id=state.id, bytes_done=bytes_done, bytes_total=bytes_total))

    def _post(self, frame: Frame) -> None:
        if self._session is not None:
            self._session.post(frame)

    @property
    def records(self) -> tuple[LaunchRecord, ...]:
        """Launches that the server knows, or is about to know."""
        return tuple(self._doing.records.values())

    def known(self, launch: str) -> LaunchRecord | None:
        """The record of a launch, where the server has told it."""
        return self._doing.records.get(LaunchId(launch))


@asynccontextmanager
async def open_host_service(
    host: Host,
    *,
    strays: Strays,
    publication: HostPublication,
    openings: Openings | None = None,
    epoch: str,
    first_generation: int = 0,
    log: Callable[..., None],
) -> AsyncIterator[HostService]:
    """What a host does for its server, until the block is left. Engines stay.

    Args:
        openings: the ingress; None on a host without one.
        epoch: a ULID that no earlier process of this host had.
        first_generation: drawn by chance, so that openings of an earlier process have others.
        log: ``log(event, **fields)``.
    """
    async with trio.open_nursery() as nursery:
        yield HostService(
            host,
            strays=strays,
            openings=openings,
            publication=publication,
            epoch=epoch,
            first_generation=first_generation,
            nursery=nursery,
            log=log,
        )
        nursery.cancel_scope.cancel()
