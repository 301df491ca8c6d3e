"""Records to canonical JSON text and back, exactly, from the attrs classes themselves."""

from __future__ import annotations

from typing import Any, Generic, TypeVar

import msgspec

from capyctl.store.errors import RecordUnreadable

R = TypeVar("R")

_ENCODER = msgspec.json.Encoder(order="sorted")


class Codec(Generic[R]):
    """Text form of one record class.

    A field that was added after a row was written is filled from its default. A stored
    field that the class does not have is an error: dropping it would lose it at the next write.
    """

    def __init__(self, kind: type[R], *, table: str) -> None:
        self.table = table
        self._decoder = msgspec.json.Decoder(kind)

    def to_text(self, record: R) -> str:
        """Compact JSON with sorted keys, ready for `from_text`.

        Raises:
            TypeError: a field holds something that JSON cannot.
        """
        return _ENCODER.encode(record).decode()

    def from_text(self, text: str, *, row: str) -> R:
        """The record as it was stored.

        Raises:
            RecordUnreadable: unknown or missing fields, or a value of another type.
        """
        try:
            record = self._decoder.decode(text)
            again = _ENCODER.encode(record).decode()
        except (msgspec.MsgspecError, TypeError, ValueError) as problem:
            raise RecordUnreadable(self.table, row, str(problem)) from problem
        if again != text:
            unknown = _unknown(msgspec.json.decode(text), msgspec.json.decode(again), "$")
            if unknown is not None:
                raise RecordUnreadable(self.table, row, f"unknown stored field {unknown}")
        return record


def _unknown(stored: Any, known: Any, path: str) -> str | None:
    """Path of the first stored object key that the decoded record does not have."""
    if isinstance(stored, dict) and isinstance(known, dict):
        for name, value in stored.items():
            if name not in known:
                return f"{path}.{name}"
            deeper = _unknown(value, known[name], f"{path}.{name}")
            if deeper is not None:
                return deeper
    elif isinstance(stored, list) and isinstance(known, list):
        for index, (left, right) in enumerate(zip(stored, known, strict=False)):
            deeper = _unknown(left, right, f"{path}[{index}]")
            if deeper is not None:
                return deeper
    return None
