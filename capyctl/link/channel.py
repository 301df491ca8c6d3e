"""What a session talks through: whole messages, in order, until it is closed or cut."""

from __future__ import annotations

from typing import Protocol


class ChannelClosed(Exception):
    """Nothing more comes or goes. ``why`` is a few words for a log."""

    def __init__(self, why: str) -> None:
        super().__init__(why)
        self.why = why


class Channel(Protocol):
    async def send(self, data: bytes) -> None:
        """Hand over one message; returns when there is room for it, not when it has arrived.

        One sender at a time. Cancelling may leave the channel of no use.

        Raises:
            ChannelClosed: by either side, or the way between them is cut.
        """

    async def receive(self) -> bytes:
        """The next message. One receiver at a time; cancelling loses nothing.

        Raises:
            ChannelClosed: see there; also when a message was larger than a frame may be.
        """

    async def aclose(self, why: str) -> None:
        """Close, and tell the other side if that can be done within a second or two.

        Also where it is closed already. Cancelling closes without a word.
        """
