"""TCP resets on a real link: whenever they come, each call is done once and comes to its end."""

from __future__ import annotations

import contextlib
import random
import socket
import struct

import pytest
import trio

from capyctl.contracts.host import EndOutcome
from tests.link.fakes import order
from tests.link.test_websocket import open_site

pytestmark = pytest.mark.slow
AT_ONCE = struct.pack("ii", 1, 0)


class Breaker:
    """What lies between a host and its server; resets both of its connections when told to."""

    def __init__(self, server_port: int) -> None:
        self._server_port = server_port
        self._ends: list[trio.SocketStream] = []
        self.port = 0
        self.count = 0

    async def open(self, nursery: trio.Nursery) -> None:
        listeners = await trio.open_tcp_listeners(0, host="127.0.0.1")
        self.port = listeners[0].socket.getsockname()[1]
        nursery.start_soon(trio.serve_listeners, self._carry, listeners)

    def reset(self) -> bool:
        """Whether there was a connection to reset."""
        ends, self._ends = self._ends, []
        for end in ends:
            end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, AT_ONCE)
            end.socket.close()
        return bool(ends)

    async def _carry(self, near: trio.SocketStream) -> None:
        self.count += 1
        async with await trio.open_tcp_stream("127.0.0.1", self._server_port) as far:
            self._ends = [near, far]
            async with trio.open_nursery() as nursery:
                nursery.start_soon(_pump, near, far)
                nursery.start_soon(_pump, far, near)


async def _pump(source: trio.SocketStream, sink: trio.SocketStream) -> None:
    with contextlib.suppress(trio.BrokenResourceError, trio.ClosedResourceError, OSError):
        async for data in source:
            await sink.send_all(data)
        await sink.send_eof()


async def test_every_call_is_done_once_through_resets(tmp_path):
    async with open_site(tmp_path) as site:
        breaker = Breaker(site.port)
        await breaker.open(site.nursery)
        site.start_host(port=breaker.port)
        await site.events.wait("online")
        site.machine.takes_s = dict.fromkeys(("prepare", "run", "wait_ready", "end"), 0.05)
        chance = random.Random(1)

        async def through_a_reset(call, *args, **named):
            """Make the call, and reset the connection while it is under way somewhere."""
            site.nursery.start_soon(later, chance.uniform(0.0, 0.1))
            return await call(*args, **named)

        async def later(after_s: float) -> None:
            await trio.sleep(after_s)
            breaker.reset()

        wanted = order()
        record = await through_a_reset(site.remote.prepare, wanted)
        site.directory.launches[record.launch] = record
        await through_a_reset(site.remote.run, record)
        assert await through_a_reset(site.remote.wait_ready, record, wanted) == "canary"
        ended = await through_a_reset(site.remote.end, record, grace_s=0, idle_s=0)

        assert ended is EndOutcome.GONE
        assert breaker.count > 1
        counts = site.machine.calls.items()
        done = {method: count for (method, about), count in counts if about == record.launch}
        assert done == {"prepare": 1, "run": 1, "wait_ready": 1, "end": 1}
        assert site.machine.alive == set()
