"""How results look: aligned tables, a summary with indented values, and JSON."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

MISSING = "-"


def cell(value: object) -> str:
    """One value as people read it; ``-`` for what is not there."""
    if value is None or value == "" or value == [] or value == {}:
        return MISSING
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list | tuple):
        return ", ".join(cell(one) for one in value)
    return str(value)


def stated(value: object) -> str:
    """One value as a document states it, where people may want to write it down."""
    return str(value).lower() if isinstance(value, bool) else cell(value)


def table(head: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Columns aligned by two spaces; the last is not padded."""
    lines = [[*head], *([cell(value) for value in row] for row in rows)]
    widths = [max(len(line[column]) for line in lines) for column in range(len(head))]
    return "\n".join(
        "  ".join(
            text.ljust(width) if column < len(head) - 1 else text
            for column, (text, width) in enumerate(zip(line, widths, strict=True))
        ).rstrip()
        for line in lines
    )


def summary(line: str, values: Iterable[tuple[str, object]] = ()) -> str:
    """A sentence, then indented names and values. Values that are None are left out."""
    held = [(name, cell(value)) for name, value in values if value is not None]
    width = max((len(name) for name, _ in held), default=0)
    return "\n".join([line, *(f"  {name.ljust(width)}  {value}" for name, value in held)])


def record(value: Mapping[str, Any], indent: int = 0) -> str:
    """Everything of a record, as nested names and values."""
    lines: list[str] = []
    space = "  " * indent
    for name, held in value.items():
        if isinstance(held, Mapping) and held:
            lines += [f"{space}{name}:", record(held, indent + 1)]
        elif isinstance(held, list) and any(isinstance(one, Mapping) for one in held):
            lines.append(f"{space}{name}:")
            for position, one in enumerate(held):
                lines.append(f"{space}  [{position}]")
                lines.append(record(one, indent + 2) if isinstance(one, Mapping) else cell(one))
        else:
            lines.append(f"{space}{name}: {stated(held)}")
    return "\n".join(lines)


def to_json(value: object, *, indented: bool) -> str:
    """Indented for a terminal, otherwise one line."""
    if indented:
        return json.dumps(value, indent=2, ensure_ascii=False)
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False)


def seconds(milliseconds: object) -> str:
    """``610 s`` of 610000."""
    if not isinstance(milliseconds, int):
        return MISSING
    return f"{milliseconds / 1000:g} s"
