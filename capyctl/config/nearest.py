"""Where a setting that a document does not have was probably meant to be."""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Sequence
from types import UnionType
from typing import Annotated, Any, Union, get_args, get_origin

from pydantic import BaseModel

NEAREST_MAX = 3
NAME_CHARACTERS_MAX = 64
"""Longer names are like none; comparing them would take time."""
_CUTOFF = 0.75


def nearest(model: type[BaseModel], location: Sequence[str | int]) -> list[str]:
    """Dotted paths: of the same name in other blocks, else of names like it in its own.

    ``location`` is where pydantic met it, its own name at the end. Parts that are neither
    settings nor indices, such as those of a union's branch, end the look-out.
    """
    name = str(location[-1])
    if len(name) > NAME_CHARACTERS_MAX:
        return []
    elsewhere = [path for path in _paths(model) if path.rpartition(".")[2] == name]
    if elsewhere:
        return elsewhere[:NEAREST_MAX]
    block, prefix = _block_at(model, location[:-1])
    names = [] if block is None else list(block.model_fields)
    close = difflib.get_close_matches(name, names, n=NEAREST_MAX, cutoff=_CUTOFF)
    return [f"{prefix}{one}" for one in close]


def _paths(model: type[BaseModel], prefix: str = "") -> Iterator[str]:
    for name, field in model.model_fields.items():
        yield f"{prefix}{name}"
        block = _block_of(field.annotation)
        if block is not None:
            yield from _paths(block, f"{prefix}{name}.")


def _block_at(
    model: type[BaseModel], location: Sequence[str | int]
) -> tuple[type[BaseModel] | None, str]:
    block: type[BaseModel] | None = model
    prefix = ""
    for part in location:
        field = None if block is None else block.model_fields.get(str(part))
        block = None if field is None else _block_of(field.annotation)
        prefix += f"{part}."
    return block, prefix


def _block_of(annotation: Any) -> type[BaseModel] | None:
    """The block that an annotation stands for; None for a value, a list, or one of several."""
    if get_origin(annotation) is Annotated:
        return _block_of(get_args(annotation)[0])
    if get_origin(annotation) in (Union, UnionType):
        found = [block for block in map(_block_of, get_args(annotation)) if block is not None]
        return found[0] if len(found) == 1 else None
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    return None
