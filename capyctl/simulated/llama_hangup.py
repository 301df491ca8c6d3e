"""When llama-server notices that a client is gone: late, later with polled slots, or never."""

from __future__ import annotations

import trio

from capyctl.simulated.http_server import Exchange

CHECK_S = 1.0
CANCEL_S = 0.5
"""From the check to the end of the work."""


class Results:
    """Tells of every result that the server's queue hands out."""

    def __init__(self) -> None:
        self._next = trio.Event()

    def post(self) -> None:
        self._next.set()
        self._next = trio.Event()

    async def wait(self) -> None:
        await self._next.wait()


async def wait_noticed(exchange: Exchange, results: Results, *, is_stream: bool) -> None:
    """Returns when the hang-up is acted on.

    The check runs a second after the last look. Without a stream any other result, a poll of
    the slots for one, starts that second again, so that a fast poller keeps a request alive
    that nobody waits for.
    """
    while True:
        with trio.move_on_after(CHECK_S) as second:
            if is_stream:
                await trio.sleep_forever()
            await results.wait()
        if second.cancelled_caught and exchange.hung_up.is_set():
            break
    await trio.sleep(CANCEL_S)
