"""Python's own log in a role's: what libraries and the API write there becomes an event as well."""

from __future__ import annotations

import contextlib
import logging
import traceback
from collections.abc import Iterator

from capyctl.telemetry.log import TEXT_CHARACTERS_MAX, Level, Log

_LEVELS = ((logging.ERROR, Level.ERROR), (logging.WARNING, Level.WARNING), (0, Level.INFO))


@contextlib.contextmanager
def forwarded(log: Log) -> Iterator[None]:
    """Within the block, warnings and errors of Python's log are lines of ``log``."""
    handler = _Forwarder(log)
    root = logging.getLogger()
    root.addHandler(handler)
    try:
        yield
    finally:
        root.removeHandler(handler)


class _Forwarder(logging.Handler):
    def __init__(self, log: Log) -> None:
        super().__init__(logging.WARNING)
        self._log = log

    def emit(self, record: logging.LogRecord) -> None:
        level = next(ours for least, ours in _LEVELS if record.levelno >= least)
        fields: dict[str, object] = {"logger": record.name, "message": _message(record)}
        error = record.exc_info[1] if record.exc_info else None
        if error is not None:
            fields["problem"] = repr(error)
            fields["traceback"] = last_lines(traceback.format_exception(error))
        self._log.event("logged", level=level, **fields)


def last_lines(lines: list[str]) -> str:
    """The end of a traceback, where it says what failed, as much as one field takes."""
    return "".join(lines)[-TEXT_CHARACTERS_MAX:]


def _message(record: logging.LogRecord) -> str:
    """A message whose arguments do not fit it is shown without them."""
    try:
        return record.getMessage()
    except (TypeError, ValueError):
        return str(record.msg)
