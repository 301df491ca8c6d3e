"""llama-server's resumable streams: with ``X-Conversation-Id`` a hang-up ends nothing."""

from __future__ import annotations

import trio

from capyctl.simulated.answering import Shape
from capyctl.simulated.generation import Generation, Scheduler
from capyctl.simulated.http_server import Exchange

RING_BYTES_MAX = 4 << 20
KEPT_S = 300.0
CONVERSATIONS_MAX = 1_024


class Conversation:
    """One stream's bytes so far. Its work goes on without readers."""

    def __init__(self) -> None:
        self._bytes = b""
        self._dropped = 0
        self._more = trio.Event()
        self.is_complete = False
        self.is_ended = False
        """Deleted: readers are cut off."""
        self.scope = trio.CancelScope()

    def add(self, piece: bytes) -> None:
        self._bytes += piece
        excess = max(0, len(self._bytes) - RING_BYTES_MAX)
        self._bytes, self._dropped = self._bytes[excess:], self._dropped + excess
        self._wake()

    def complete(self) -> None:
        self.is_complete = True
        self._wake()

    def end(self) -> None:
        self.is_ended = True
        self.scope.cancel()
        self._wake()

    def _wake(self) -> None:
        self._more.set()
        self._more = trio.Event()

    async def read_to(self, exchange: Exchange, begin: int) -> None:
        """Send everything from byte ``begin`` on, and what comes, until the client is gone."""
        at = begin
        while not exchange.hung_up.is_set() and not self.is_ended:
            piece = self._bytes[max(0, at - self._dropped) :]
            at = self._dropped + len(self._bytes)
            if piece:
                await exchange.send(piece)
            elif self.is_complete:
                await exchange.close_stream()
                return
            else:
                await self._more_or_gone(exchange)
        exchange.cut()

    async def _more_or_gone(self, exchange: Exchange) -> None:
        async with trio.open_nursery() as nursery:

            async def gone() -> None:
                await exchange.hung_up.wait()
                nursery.cancel_scope.cancel()

            nursery.start_soon(gone)
            await self._more.wait()
            nursery.cancel_scope.cancel()


class Conversations:
    def __init__(self, nursery: trio.Nursery) -> None:
        self._nursery = nursery
        self._found: dict[str, Conversation] = {}

    def find(self, name: str) -> Conversation | None:
        return self._found.get(name)

    def delete(self, name: str) -> None:
        conversation = self._found.pop(name, None)
        if conversation is not None:
            conversation.end()

    def start(
        self, name: str, scheduler: Scheduler, generation: Generation, shape: Shape
    ) -> Conversation:
        self.delete(name)
        conversation = self._found[name] = Conversation()
        while len(self._found) > CONVERSATIONS_MAX:
            self.delete(next(iter(self._found)))
        self._nursery.start_soon(self._run, name, conversation, scheduler, generation, shape)
        return conversation

    async def _run(
        self,
        name: str,
        conversation: Conversation,
        scheduler: Scheduler,
        generation: Generation,
        shape: Shape,
    ) -> None:
        def emit(index: int, text: str) -> None:
            if generation.produced_count == 0 and index == 0:
                conversation.add(shape.first_chunks(generation))
            conversation.add(shape.piece(generation, index, text))

        with conversation.scope:
            await scheduler.run(generation, emit)
            if generation.error is not None:
                conversation.add(shape.error_chunks(generation.error))
            else:
                conversation.add(shape.last_chunks(generation))
            conversation.complete()
            await trio.sleep(KEPT_S)
            self._found.pop(name, None)
