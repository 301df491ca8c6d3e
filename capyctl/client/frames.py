"""Server-sent events out of bytes, in whatever pieces they come."""

from __future__ import annotations

import json

from capyctl.client.errors import NotTheApi
from capyctl.client.models import Event

FRAME_BYTES_MAX = 1 << 20


class Frames:
    """Collects bytes and gives out whole frames."""

    def __init__(self) -> None:
        self._held = b""

    def feed(self, data: bytes) -> list[Event]:
        """The events that these bytes complete; comments are left out.

        Raises:
            NotTheApi: a frame is no event of this API, or has more than `FRAME_BYTES_MAX` bytes.
        """
        *blocks, self._held = (self._held + data).split(b"\n\n")
        if len(self._held) > FRAME_BYTES_MAX:
            raise NotTheApi(f"an event has more than {FRAME_BYTES_MAX} bytes")
        read = (_read(block.decode(errors="replace")) for block in blocks)
        return [event for event in read if event is not None]


def _read(block: str) -> Event | None:
    cursor, kind, data = None, "message", []
    for line in block.splitlines():
        name, _, value = line.partition(":")
        text = value.removeprefix(" ")
        if name == "id":
            cursor = text
        elif name == "event":
            kind = text
        elif name == "data":
            data.append(text)
    if not data:
        return None
    try:
        row = json.loads("\n".join(data))
    except (ValueError, RecursionError) as problem:
        raise NotTheApi("an event's data is not JSON") from problem
    if not isinstance(row, dict):
        raise NotTheApi("an event's data is no object")
    return Event.read(cursor, kind, row)
