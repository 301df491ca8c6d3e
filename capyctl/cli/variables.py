"""Engine variables on the command line and in the caller's own variables."""

from __future__ import annotations

from collections.abc import Mapping

from capyctl.cli.failure import CommandFailed


def pair_of(text: str, flag: str) -> tuple[str, str]:
    """Name and value of ``NAME=VALUE``. Raises CommandFailed, without the value."""
    name, equals, value = text.partition("=")
    if not equals or not name:
        raise CommandFailed("usage", f"{flag}: expected NAME=VALUE")
    return name, value


def listed(environ: Mapping[str, str], name: str) -> list[str]:
    """The parts of a variable that holds several, separated by semicolons."""
    return [part.strip() for part in environ.get(name, "").split(";") if part.strip()]
