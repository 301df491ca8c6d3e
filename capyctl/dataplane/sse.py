"""Reading along in an event stream, within bounds: first output, progress, where events end.

Pure. None of it decides which bytes pass; it looks at bytes that may hold pieces of chunked
framing, so it reads tolerantly and, in doubt, says what harms nobody.
"""

from __future__ import annotations

import re

import msgspec

LOOK_BYTES_MAX = 64 * 1024
"""After so many bytes without recognised output, output is taken for given."""
EVENT_BYTES_MAX = 1024 * 1024

_COMMENTS_ONLY = re.compile(rb"(?:[0-9a-fA-F]+\r\n)?(?::[^\r\n]*)?(?:\r?\n|:[^\r\n]*\r?\n)*")
_DATA = re.compile(rb"^data:[ ]?(.*?)\r?$", re.MULTILINE)
_QUIET_TYPES = frozenset(
    {
        "message_start",
        "ping",
        "content_block_start",
        "response.created",
        "response.in_progress",
        "response.queued",
        "response.output_item.added",
        "response.content_part.added",
    }
)
_QUIET_DELTA_KEYS = frozenset({"role"})
_decode = msgspec.json.Decoder().decode


def is_progress(data: bytes) -> bool:
    """False when ``data`` holds nothing but comment lines and line ends."""
    return b"data:" in data or _COMMENTS_ONLY.fullmatch(data) is None


def event_has_output(payload: bytes) -> bool:
    """Whether an event's data is output, and not only an opening: a role, a start, a ping."""
    try:
        event = _decode(payload)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return payload.strip() == b"[DONE]"
    if not isinstance(event, dict):
        return True
    choices = event.get("choices")
    if isinstance(choices, list):
        return any(_choice_has_output(choice) for choice in choices)
    return event.get("type") not in _QUIET_TYPES


def _choice_has_output(choice: object) -> bool:
    if not isinstance(choice, dict) or choice.get("finish_reason") or choice.get("text"):
        return True
    delta = choice.get("delta")
    if isinstance(delta, dict):
        return any(value for key, value in delta.items() if key not in _QUIET_DELTA_KEYS)
    return "text" not in choice and "delta" not in choice


class FirstOutput:
    """Watches a stream's first bytes until the first output has passed."""

    __slots__ = ("_seen",)

    def __init__(self) -> None:
        self._seen = b""

    def feed(self, data: bytes) -> bool:
        """True from the bytes on that complete the first event with output."""
        seen = self._seen + data
        if len(seen) > LOOK_BYTES_MAX:
            return True
        end = seen.rfind(b"\n")
        for line in _DATA.finditer(seen, 0, max(end, 0)):
            if event_has_output(line.group(1)):
                return True
        self._seen = seen[end + 1 :] if end >= 0 else seen
        return False


class EventSplitter:
    """Cuts a stream's payload after each event, however it arrives."""

    __slots__ = ("_rest",)

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, payload: bytes) -> list[bytes]:
        """The events that are complete now, blank lines included.

        An event of more than 1 MiB comes in several pieces.
        """
        data = self._rest + payload
        events = []
        position = 0
        while (end := _event_end(data, position)) > 0:
            events.append(data[position:end])
            position = end
        self._rest = data[position:]
        if len(self._rest) > EVENT_BYTES_MAX:
            events.append(self.rest())
        return events

    def rest(self) -> bytes:
        """What is left at the end of the stream."""
        rest, self._rest = self._rest, b""
        return rest


def _event_end(data: bytes, position: int) -> int:
    """Just after the next blank line; -1 when there is none yet."""
    plain = data.find(b"\n\n", position)
    carried = data.find(b"\r\n\r\n", position)
    if plain >= 0 and (carried < 0 or plain < carried):
        return plain + 2
    return carried + 4 if carried >= 0 else -1


def event_data(event: bytes) -> bytes | None:
    """The data of an event with a single data line; None for comments and others."""
    found = _DATA.search(event)
    return found.group(1) if found is not None else None
