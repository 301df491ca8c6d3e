"""Takes secrets out of configuration before it is shown: by the names of fields and options."""

from __future__ import annotations

import itertools
import re
from collections.abc import Mapping, Sequence

REDACTED = "[redacted]"
_ALONE = frozenset(
    {"credential", "credentials", "secret", "secrets", "password", "passwd", "token", "apikey"}
)
_WITH_KEY = frozenset({"api", "private", "admin", "access"})
_KEY = frozenset({"key", "keys"})
_ENVIRONMENTS = frozenset({"env", "environment"})
_CAMEL = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")
_OPTION = re.compile(r"(--?[A-Za-z][\w.-]*)(?:([=\s]\s*)(.*))?", re.DOTALL)


def redacted(value: object) -> object:
    """A copy of JSON-like ``value`` as dicts, lists and scalars, without secrets.

    A field whose name tells of a secret loses its value whatever that is, None apart; an
    environment loses all its values; in a list, so does what follows ``--api-key`` and its like.
    """
    if isinstance(value, Mapping):
        return {str(name): _field(str(name), inner) for name, inner in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, str | bytes):
        return _items(value)
    return value


def is_secret_name(name: str) -> bool:
    """Whether a field or option of this name holds a secret. ``max_total_tokens`` does not."""
    words = re.split(r"[_.-]+", _CAMEL.sub("_", name).lower().strip("_.-"))
    if not _ALONE.isdisjoint(words):
        return True
    return any(
        (one in _WITH_KEY and other in _KEY) or (one in _KEY and other in _WITH_KEY)
        for one, other in itertools.pairwise(words)
    )


def _field(name: str, value: object) -> object:
    if value is None:
        return None
    if is_secret_name(name):
        return REDACTED
    if name in _ENVIRONMENTS and isinstance(value, Mapping):
        return {str(variable): REDACTED for variable in value}
    return redacted(value)


def _items(values: Sequence[object]) -> list[object]:
    shown: list[object] = []
    value_is_secret = False
    for value in values:
        if value_is_secret and not (isinstance(value, str) and value.startswith("--")):
            shown.append(REDACTED)
            value_is_secret = False
            continue
        option = _OPTION.fullmatch(value) if isinstance(value, str) else None
        secret = option is not None and is_secret_name(option[1])
        value_is_secret = secret and option is not None and option[2] is None
        if secret and option is not None and option[2] is not None:
            shown.append(f"{option[1]}{option[2]}{REDACTED}")
        else:
            shown.append(redacted(value))
    return shown
