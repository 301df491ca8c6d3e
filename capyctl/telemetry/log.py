"""A role's own log: one JSON object a line, or plain text on a terminal. Never a secret."""

from __future__ import annotations

import contextlib
import datetime
import enum
import json
import math
import re
import threading
from collections.abc import Callable, Mapping
from typing import TextIO

FIELDS_MAX = 32
TEXT_CHARACTERS_MAX = 1024
LINE_CHARACTERS_MAX = 8 * 1024
TEXT_CHARACTERS_CUT = 32
"""Of each field on a line that would be longer: 32 such fields fit, escapes included."""
WITHHELD = "[withheld]"

_SECRET_NAME = re.compile(
    r"authorization|bearer|secret|password|passphrase|credential|token|(?:^|_)key$|api_?key", re.I
)
_SECRET_TEXT = re.compile(
    r"bearer\s|authorization\s*[:=]|api[-_]?key\s*[:=]|password\s*[:=]|secret\s*[:=]|token\s*[:=]"
    r"|private key-",
    re.I,
)


class Level(enum.Enum):
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


class Log:
    """Writes lines to one stream, each whole. May be called from any thread."""

    def __init__(
        self,
        stream: TextIO,
        *,
        role: str,
        clock_wall_ms: Callable[[], int],
        as_json: bool | None = None,
    ) -> None:
        """``as_json`` None: text when ``stream`` is a terminal, JSON otherwise."""
        self._stream = stream
        self._role = role
        self._clock_wall_ms = clock_wall_ms
        self._as_json = not stream.isatty() if as_json is None else as_json
        self._lock = threading.Lock()

    def event(self, name: str, /, *, level: Level = Level.INFO, **fields: object) -> None:
        """One line: what happened, and its figures.

        ``name`` is a fixed word of the program's, such as ``listener_opened``. Fields are plain
        values; other objects are shown as text. Their number and length are bounded, and a field
        whose name or text speaks of a credential is withheld. A stream that cannot be written
        to loses the line, never the caller.
        """
        shown = {key: _bounded(key, value) for key, value in list(fields.items())[:FIELDS_MAX]}
        at = datetime.datetime.fromtimestamp(self._clock_wall_ms() / 1000, datetime.UTC)
        stamp = at.strftime("%Y-%m-%dT%H:%M:%S.") + f"{at.microsecond // 1000:03d}Z"
        line = self._json if self._as_json else self._text
        self._write(line(stamp, level, name, shown))

    def plain(self, text: str) -> bool:
        """Write ``text`` as it is, where this log is read by people; whether it is."""
        if self._as_json:
            return False
        self._write(text)
        return True

    def warning(self, name: str, /, **fields: object) -> None:
        self.event(name, level=Level.WARNING, **fields)

    def error(self, name: str, /, **fields: object) -> None:
        self.event(name, level=Level.ERROR, **fields)

    def _write(self, text: str) -> None:
        with self._lock, contextlib.suppress(OSError, ValueError):
            self._stream.write(text + "\n")
            self._stream.flush()

    def _json(self, stamp: str, level: Level, name: str, shown: Mapping[str, object]) -> str:
        head = {"at": stamp, "level": level.value, "role": self._role, "event": name}
        line = json.dumps({**head, "fields": shown})
        if len(line) <= LINE_CHARACTERS_MAX:
            return line
        cut = {key: _cut(value, TEXT_CHARACTERS_CUT) for key, value in shown.items()}
        return json.dumps({**head, "fields": cut})

    def _text(self, stamp: str, level: Level, name: str, shown: Mapping[str, object]) -> str:
        words = [f"{key}={_quoted(value)}" for key, value in shown.items()]
        return " ".join([stamp, level.value.upper(), name, *words])[:LINE_CHARACTERS_MAX]


def _bounded(name: str, value: object) -> object:
    if isinstance(value, enum.Enum):
        value = value.value
    if isinstance(value, bool | int) or value is None:
        return value
    if isinstance(value, float) and math.isfinite(value):
        return value
    text = str(value)
    if _SECRET_NAME.search(name) or _SECRET_TEXT.search(text):
        return WITHHELD
    return _cut(text, TEXT_CHARACTERS_MAX)


def _cut(value: object, characters_max: int) -> object:
    if not isinstance(value, str) or len(value) <= characters_max:
        return value
    return f"{value[:characters_max]}… ({len(value)} characters)"


def _quoted(value: object) -> str:
    """For one line on a terminal: nothing in it moves the cursor or ends the line."""
    plain = isinstance(value, str) and value.isprintable() and not re.search(r"[\s\"=]", value)
    return str(value) if plain and value else json.dumps(value)
