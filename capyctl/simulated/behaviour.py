"""How one simulated engine behaves: how long things take, what it draws, what goes wrong."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

import attrs

from capyctl.domain.units import TIB, gib, parse_bytes

SECONDS_MAX = 86_400.0
TOKENS_MAX = 1_000_000
BYTES_MAX = 1_024 * TIB
"""Of any one size. More than any machine has, and far from where figures lose their last digits."""
SHOWN_CHARACTERS_MAX = 60
SHOWN_DIGITS_MAX = 24


class BadDocument(ValueError):
    """A simulated machine's document cannot be used; the message names the key."""


@attrs.frozen(kw_only=True)
class Faults:
    """What goes wrong. Tokens count from 1 in each request."""

    dies_while_loading: bool = False
    never_ready: bool = False
    """It loads for ever."""
    health_too_early: bool = False
    """`/health` says 200 while it loads."""
    wrong_model_name: bool = False
    """It serves under another name than it was told."""
    dies_at_token: int | None = None
    error_event_at_token: int | None = None
    """The request ends with an error event."""
    stall_at_token: int | None = None
    """The request goes silent with its connection open."""
    exit_code: int = 1
    """With which it dies."""
    ignores_sigterm: bool = False
    forks_child: bool = False
    """A child in its process group that outlives it and ignores SIGTERM."""
    refuses_park: bool = False
    park_frees_nothing: bool = False
    hangs_on_wake: bool = False
    dies_on_wake: bool = False
    gibberish_after_wake: bool = False
    slow_disconnect_s: float | None = None
    """It notices that a client hung up only after so long."""
    first_launches: int | None = None
    """Only the first so many launches of the model have these faults; None: all."""


@attrs.frozen(kw_only=True)
class Behaviour:
    """One engine's times, figures and faults."""

    load_s: float = 0.6
    park_s: float = 0.1
    wake_s: float = 0.25
    first_token_s: float = 0.02
    tokens_per_s: float = 200.0
    """Of each request. 0: as fast as it goes."""
    reply_tokens: int = 64
    """Length of an answer that nothing cuts short; up to a quarter more by the prompt."""
    worker_loss_s: float = 4.0
    """From the death of a worker to the end of the engine."""
    release_lag_s: float = 0.0
    """From the answer to a park until its memory is free."""
    weights_bytes: int | None = None
    """Drawn for weights. None: what the files have."""
    kv_cache_bytes: int | None = None
    residue_bytes: int | None = None
    """Drawn on the device while parked."""
    residue_growth_bytes: int = 0
    """So much more is left behind by each park after the first."""
    extra_bytes: int = 0
    """Drawn on the device beyond what it was charged, while it is loaded."""
    faults: Faults = attrs.field(factory=Faults)


T = TypeVar("T", Behaviour, Faults)


def read_behaviour(stated: object, at: str, defaults: Behaviour) -> Behaviour:
    """``defaults`` with what a mapping of a document states.

    Sizes are stated without their unit in the key: ``residue: 1GiB`` (or bytes).

    Raises:
        BadDocument: a key is unknown or its value is out of bounds; ``at`` is said.
    """
    given = dict(_mapping(stated, at))
    faults = _evolve(defaults.faults, _mapping(given.pop("faults", {}), f"{at}.faults"), at)
    return attrs.evolve(_evolve(defaults, given, at), faults=faults)


def write_behaviour(behaviour: Behaviour) -> dict[str, Any]:
    """The mapping that `read_behaviour` makes this behaviour of."""
    found = {
        key: value
        for key, value in _keys(behaviour).items()
        if key != "faults" and getattr(behaviour, value) is not None
    }
    written = {key: getattr(behaviour, name) for key, name in found.items()}
    faults = {
        name: value
        for name, value in attrs.asdict(behaviour.faults).items()
        if value != getattr(Faults(), name)
    }
    return written | ({"faults": faults} if faults else {})


def _keys(values: Behaviour | Faults) -> dict[str, str]:
    """Document key to field name: bytes are stated without their unit."""
    return {field.name.removesuffix("_bytes"): field.name for field in attrs.fields(type(values))}


def _mapping(value: object, at: str) -> Mapping[str, object]:
    if value is None:
        return {}
    if not isinstance(value, Mapping) or not all(isinstance(key, str) for key in value):
        raise BadDocument(f"{at} must be a mapping of names")
    return value


def _evolve(values: T, stated: Mapping[str, object], at: str) -> T:
    keys = _keys(values)
    where = f"{at}.faults" if isinstance(values, Faults) else at
    unknown = sorted(set(stated) - set(keys))
    if unknown:
        known = ", ".join(sorted(keys))
        raise BadDocument(
            f"{where}.{unknown[0][:SHOWN_CHARACTERS_MAX]} is not known; known are {known}"
        )
    changes: dict[str, Any] = {
        keys[key]: _value(keys[key], value, f"{where}.{key}") for key, value in stated.items()
    }
    return attrs.evolve(values, **changes)


def _value(name: str, value: object, at: str) -> object:
    if name.endswith("_bytes"):
        return read_bytes(value, at)
    if name.endswith("_s"):
        return read_number(value, at, SECONDS_MAX if name != "tokens_per_s" else TOKENS_MAX)
    if name == "exit_code":
        return read_count(value, at, 0, 255)
    if name.endswith(("_at_token", "_tokens")) or name == "first_launches":
        return read_count(value, at, 1, TOKENS_MAX)
    if not isinstance(value, bool):
        raise BadDocument(f"{at} is {shown(value)}; true or false is expected")
    return value


def read_bytes(value: object, at: str) -> int:
    """Bytes from a number of them or a text such as ``24GiB``.

    Raises:
        BadDocument: neither, or above `BYTES_MAX`.
    """
    found = value
    if isinstance(value, str):
        try:
            found = parse_bytes(value)
        except ValueError:
            found = None
    if not isinstance(found, int) or isinstance(found, bool) or found < 0:
        raise BadDocument(f"{at} is {shown(value)}; a size such as 24GiB is expected")
    if found > BYTES_MAX:
        raise BadDocument(f"{at} is {shown(value)}; at most {gib(BYTES_MAX)} are possible")
    return found


def shown(value: object) -> str:
    """A value of a document as messages say it: its beginning, when it is long."""
    if isinstance(value, int) and not isinstance(value, bool) and abs(value) > 10**SHOWN_DIGITS_MAX:
        return f"a number of more than {SHOWN_DIGITS_MAX} digits"
    if not isinstance(value, str | int | float | bool | None):
        return f"a {type(value).__name__}"
    text = repr(value[: SHOWN_CHARACTERS_MAX + 1] if isinstance(value, str) else value)
    return text if len(text) <= SHOWN_CHARACTERS_MAX else f"{text[:SHOWN_CHARACTERS_MAX]}…"


def read_number(value: object, at: str, value_max: float) -> float:
    """Raises:
    BadDocument: not a number from 0 to ``value_max``.
    """
    if isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value <= value_max:
        return float(value)
    raise BadDocument(f"{at} is {shown(value)}; a number from 0 to {value_max:g} is expected")


def read_count(value: object, at: str, value_min: int, value_max: int) -> int:
    """Raises:
    BadDocument: not a whole number within the bounds.
    """
    if isinstance(value, int) and not isinstance(value, bool) and value_min <= value <= value_max:
        return value
    raise BadDocument(
        f"{at} is {shown(value)}; a whole number from {value_min} to {value_max} is expected"
    )
