"""What a host does for one call: the method itself, and the opening and closing of its ingress."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, assert_never

from capyctl.contracts.checkpoints import Progress
from capyctl.contracts.engines import ParkRefused
from capyctl.contracts.host import EndOutcome, Host
from capyctl.contracts.hosts import Openings
from capyctl.domain.ids import LaunchId
from capyctl.domain.launches import LaunchRecord
from capyctl.wire import link_calls as c


class Doing:
    """The host's methods by the values of `wire.link_calls`.

    Requests get to an engine from its proof until it is parked, told to end, or gone. Each
    proof and each wake is an opening of its own, with a number no other opening has.
    """

    def __init__(self, host: Host, openings: Openings | None, first_generation: int) -> None:
        self._host = host
        self._openings = openings
        self._generation = first_generation
        self._open: dict[LaunchId, int] = {}
        self.records: dict[LaunchId, LaunchRecord] = {}
        """Of the launches that the server knows, or is about to know."""

    def know(self, record: LaunchRecord) -> None:
        self.records[record.launch] = record

    def keep_only(self, launches: Collection[LaunchId]) -> None:
        """Forget all others, and let nothing through to them."""
        for launch in list(self._open):
            if launch not in launches:
                self._close(launch)
        for launch in list(self.records):
            if launch not in launches:
                del self.records[launch]

    async def do(self, call: c.HostCall, progress: Progress) -> Any:
        """The value that answers the call; raises what the method raises."""
        host = self._host
        match call:
            case c.Measure():
                return await host.measure(
                    call.model_path, weights_file=call.weights_file, declared=call.declared
                )
            case c.Fetch():
                return c.Fetched(total_bytes=await host.fetch(call.source, progress))
            case c.Prepare():
                record = await host.prepare(call.order)
                self.know(record)
                return record
            case c.Run():
                await host.run(call.record)
                return c.Nothing()
            case c.Discard():
                await host.discard(call.record)
                self._gone(call.record)
                return c.Nothing()
            case c.WaitReady():
                return await self._wait_ready(call)
            case c.WaitExit():
                status = await host.wait_exit(call.record)
                self._close(call.record.launch)
                return status
            case c.Park():
                return await self._park(call.record)
            case c.Wake():
                await host.wake(call.record)
                return c.Woken(generation=self._let_in(call.record))
            case c.End():
                return await self._end(call)
            case c.LogTail():
                return await self._log_tail(call)
            case _:
                assert_never(call)

    async def _wait_ready(self, call: c.WaitReady) -> c.Ready:
        self.know(call.record)
        canary = await self._host.wait_ready(call.record, call.order)
        return c.Ready(
            canary=canary,
            peak=dict(self._host.start_peak(call.record)),
            generation=self._let_in(call.record),
        )

    async def _park(self, record: LaunchRecord) -> Any:
        generation = self._open.get(record.launch)
        self._close(record.launch)
        try:
            return await self._host.park(record)
        except ParkRefused:
            if generation is not None:
                self._let_in(record, generation)
            raise

    async def _end(self, call: c.End) -> c.Ended:
        """Requests that are inside may finish while it waits for idle; new ones are refused."""
        self._close(call.record.launch)
        outcome = await self._host.end(call.record, grace_s=call.grace_s, idle_s=call.idle_s)
        if outcome is EndOutcome.GONE:
            self._gone(call.record)
        return c.Ended(outcome=outcome)

    async def _log_tail(self, call: c.LogTail) -> c.Tail:
        bytes_max = min(call.bytes_max, c.LOG_TAIL_BYTES_MAX)
        found = await self._host.log_tail(call.record, bytes_max=bytes_max)
        return c.Tail() if found is None else c.bounded_tail(*found)

    # -- the ingress ------------------------------------------------------------------------

    def _let_in(self, record: LaunchRecord, generation: int | None = None) -> int:
        if self._openings is None:
            return 0
        if generation is None:
            self._generation += 1
            generation = self._generation
        self._open[record.launch] = generation
        endpoint = self._host.endpoint(record)
        self._openings.open(record.launch, endpoint, generation=generation)
        return generation

    def _close(self, launch: LaunchId) -> None:
        if self._open.pop(launch, None) is not None and self._openings is not None:
            self._openings.close(launch)

    def _gone(self, record: LaunchRecord) -> None:
        self._close(record.launch)
        self.records.pop(record.launch, None)
