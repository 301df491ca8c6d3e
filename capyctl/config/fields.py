"""The scalars of every document: strict, with units as text, bounded."""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field
from pydantic_core import PydanticCustomError

from capyctl.domain.units import parse_bytes, parse_duration_s

SIZE_UNITS = "B, KiB, MiB, GiB or TiB"
DURATION_UNITS = "ms, s, m or h"
NAME_MAX_CHARACTERS = 256
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]")


class Closed(BaseModel):
    """A block of a document: unknown keys are refused, and no value is converted."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


def text_default(text: str) -> Any:
    """Default of a size or duration, in the words of the document."""
    return Field(default=text, validate_default=True)


def bad_value(detail: str, *, at: str = "") -> PydanticCustomError:
    """A value of the right kind that cannot stand. ``detail`` never holds the value.

    ``at``: of the block that is being checked, the field that is meant.
    """
    return PydanticCustomError("bad_value", "{detail}", {"detail": detail, "at": at})


def bad_kind(detail: str) -> PydanticCustomError:
    """A value of another kind than any that may stand here."""
    return PydanticCustomError("bad_kind", "{detail}", {"detail": detail})


def bad_topology(detail: str) -> PydanticCustomError:
    """A machine of a kind that this release does not run on."""
    return PydanticCustomError("bad_topology", "{detail}", {"detail": detail})


def bad_unit(detail: str) -> PydanticCustomError:
    return PydanticCustomError("bad_unit", "{detail}", {"detail": detail})


def _one(value: object) -> object:
    """``true`` equals 1, and is no version."""
    if isinstance(value, bool):
        raise bad_value("expected 1")
    return value


def read_size(value: object) -> int:
    """Bytes of ``12GiB``.

    Raises:
        PydanticCustomError: not a size.
    """
    try:
        return parse_bytes(value) if isinstance(value, str) else _no_text()
    except (ValueError, OverflowError) as problem:
        raise bad_unit(f"expected a number and {SIZE_UNITS}, for example 12GiB") from problem


def read_duration_s(value: object) -> float:
    """Seconds of ``30s``.

    Raises:
        PydanticCustomError: not a duration.
    """
    try:
        return parse_duration_s(value) if isinstance(value, str) else _no_text()
    except (ValueError, OverflowError) as problem:
        raise bad_unit(f"expected a number and {DURATION_UNITS}, for example 30s") from problem


def _no_text() -> Any:
    raise ValueError("not text")


def _name(value: str) -> str:
    if not value.strip() or len(value) > NAME_MAX_CHARACTERS or _CONTROL.search(value):
        raise bad_value("expected 1 to 256 characters, none of them a control character")
    return value


Size = Annotated[int, BeforeValidator(read_size), Field(ge=0, le=1 << 60)]
PositiveSize = Annotated[int, BeforeValidator(read_size), Field(gt=0, le=1 << 60)]
Duration = Annotated[float, BeforeValidator(read_duration_s), Field(ge=0)]
SchemaVersion = Annotated[Literal[1], BeforeValidator(lambda v: _one(v))]
Stated = Annotated[str, Field(min_length=1)]
Count = Annotated[int, Field(ge=1, le=1 << 31)]
Name = Annotated[str, BeforeValidator(lambda v: _name(v) if isinstance(v, str) else v)]
