"""Carries a generation to its client, whole or as a stream, in the shape of one engine family."""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable
from typing import Protocol

import trio

from capyctl.simulated.generation import Generation, Scheduler
from capyctl.simulated.http_server import Exchange

WaitGone = Callable[[], Awaitable[None]]
"""Returns when the engine takes notice that the client is gone, and ends its request."""


class Shape(Protocol):
    """How one engine writes one answer."""

    async def open_stream(self, exchange: Exchange) -> None: ...

    async def reply_whole(
        self, exchange: Exchange, generation: Generation, texts: list[str]
    ) -> None: ...

    async def reply_error(self, exchange: Exchange, message: str) -> None:
        """Before anything was sent."""

    def first_chunks(self, generation: Generation) -> bytes: ...

    def piece(self, generation: Generation, index: int, text: str) -> bytes: ...

    def last_chunks(self, generation: Generation) -> bytes: ...

    def error_chunks(self, message: str) -> bytes:
        """After the stream began."""


async def answer_whole(
    exchange: Exchange,
    scheduler: Scheduler,
    generation: Generation,
    shape: Shape,
    wait_gone: WaitGone,
) -> None:
    """Produce everything, then reply. A client that leaves ends the work."""
    texts: list[list[str]] = [[] for _ in range(generation.choices)]
    async with trio.open_nursery() as nursery:
        nursery.start_soon(_end_when_gone, nursery.cancel_scope, wait_gone)
        await scheduler.run(generation, lambda index, text: texts[index].append(text))
        nursery.cancel_scope.cancel()
    if generation.error is not None:
        await shape.reply_error(exchange, generation.error)
    elif generation.finish is not None:
        await shape.reply_whole(exchange, generation, ["".join(words) for words in texts])


async def answer_stream(
    exchange: Exchange,
    scheduler: Scheduler,
    generation: Generation,
    shape: Shape,
    wait_gone: WaitGone,
) -> None:
    """Send each piece as it is produced; the head goes out with the first one."""
    pieces, received = trio.open_memory_channel[tuple[int, str]](math.inf)

    async def produce() -> None:
        with pieces:
            # Never waits for a slow client, as no engine does.
            await scheduler.run(generation, lambda index, text: pieces.send_nowait((index, text)))

    began = False
    async with trio.open_nursery() as nursery:
        nursery.start_soon(_end_when_gone, nursery.cancel_scope, wait_gone)
        nursery.start_soon(produce)
        async for index, text in received:
            if not began:
                began = True
                await shape.open_stream(exchange)
                await exchange.send(shape.first_chunks(generation))
            await exchange.send(shape.piece(generation, index, text))
        nursery.cancel_scope.cancel()
    await _finish(exchange, generation, shape, began)


async def _finish(exchange: Exchange, generation: Generation, shape: Shape, began: bool) -> None:
    if generation.error is not None and not began:
        await shape.reply_error(exchange, generation.error)
    elif generation.error is not None:
        await exchange.send(shape.error_chunks(generation.error))
        await exchange.close_stream()
    elif generation.finish is not None:
        if not began:
            await shape.open_stream(exchange)
            await exchange.send(shape.first_chunks(generation))
        await exchange.send(shape.last_chunks(generation))
        await exchange.close_stream()
    else:
        exchange.cut()


async def _end_when_gone(scope: trio.CancelScope, wait_gone: WaitGone) -> None:
    await wait_gone()
    scope.cancel()
