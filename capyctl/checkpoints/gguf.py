"""Reads a GGUF header, bounded, and tells the shape of the model's attention from it."""

from __future__ import annotations

import struct
from collections.abc import Mapping
from typing import BinaryIO, TypeAlias

import attrs

from capyctl.checkpoints.gguf_layouts import refuse_layout
from capyctl.checkpoints.headers import COUNT_MAX, LAYERS_MAX, HeaderError
from capyctl.domain.checkpoints import AttentionShape
from capyctl.domain.units import MIB

METADATA_BYTES_MAX = 64 * MIB
KEYS_MAX = 1 << 20
STRING_BYTES_MAX = MIB
ARRAY_ITEMS_MAX = 1 << 20
KEPT_ITEMS_MAX = 4_096
"""Longer arrays are vocabularies; they are stepped over."""

Scalar: TypeAlias = int | float | bool | str
Value: TypeAlias = Scalar | tuple[Scalar, ...]

_MAGIC = b"GGUF"
_STRING, _ARRAY, _BOOL = 8, 9, 7
_FORMATS = {
    0: "<B", 1: "<b", 2: "<H", 3: "<h", 4: "<I", 5: "<i", 6: "<f", 7: "<B", 10: "<Q", 11: "<q",
    12: "<d",
}  # fmt: skip


@attrs.frozen(kw_only=True)
class GgufHeader:
    """What the metadata says; long arrays left out."""

    version: int
    tensor_count: int
    values: Mapping[str, Value]

    @property
    def architecture(self) -> str:
        found = self.values.get("general.architecture")
        return found if isinstance(found, str) else ""


def read_header(file: BinaryIO) -> GgufHeader:
    """Read the metadata from the start of a GGUF file of version 2 or 3. Blocks.

    Reads at most 64 MiB, 1,048,576 keys, strings of 1 MiB and arrays of 1,048,576 items.

    Raises:
        HeaderError: not such a file, cut short, or beyond a bound.
    """
    reader = _Reader(file)
    if reader.take(4) != _MAGIC:
        raise HeaderError("not a GGUF file: it does not start with GGUF")
    version = reader.number("<I")
    if version not in (2, 3):
        raise HeaderError(f"GGUF version {version} is not readable; versions 2 and 3 are")
    tensor_count, key_count = reader.number("<Q"), reader.number("<Q")
    if key_count > KEYS_MAX:
        raise HeaderError(f"{key_count} metadata keys; at most {KEYS_MAX} are read")
    values: dict[str, Value] = {}
    for _ in range(key_count):
        key = reader.text()
        value = reader.value(reader.number("<I"))
        if value is not None:
            values[key] = value
    return GgufHeader(version=version, tensor_count=tensor_count, values=values)


class _Reader:
    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._left = METADATA_BYTES_MAX

    def take(self, count: int) -> bytes:
        if count > self._left:
            raise HeaderError(f"metadata of more than {METADATA_BYTES_MAX // MIB} MiB")
        self._left -= count
        found = self._file.read(count)
        if len(found) != count:
            raise HeaderError("the file ends inside its metadata")
        return found

    def number(self, layout: str) -> int:
        found: int = struct.unpack(layout, self.take(struct.calcsize(layout)))[0]
        return found

    def bytes_of_string(self) -> bytes:
        length = self.number("<Q")
        if length > STRING_BYTES_MAX:
            raise HeaderError(f"a string of {length} bytes; at most {STRING_BYTES_MAX} are read")
        return self.take(length)

    def text(self) -> str:
        return self.bytes_of_string().decode("utf-8", "replace")

    def value(self, kind: int) -> Value | None:
        """One value; None for an array that is too long to be of use."""
        if kind == _STRING:
            return self.text()
        if kind == _ARRAY:
            return self._array()
        return self._scalars(kind, 1)[0]

    def _array(self) -> tuple[Scalar, ...] | None:
        kind, count = self.number("<I"), self.number("<Q")
        if count > ARRAY_ITEMS_MAX:
            raise HeaderError(f"an array of {count} items; at most {ARRAY_ITEMS_MAX} are read")
        if kind == _ARRAY:
            raise HeaderError("arrays of arrays are not readable")
        if kind != _STRING:
            found = self._scalars(kind, count)
            return found if count <= KEPT_ITEMS_MAX else None
        for _ in range(count):
            self.bytes_of_string()
        return None

    def _scalars(self, kind: int, count: int) -> tuple[Scalar, ...]:
        layout = _FORMATS.get(kind)
        if layout is None:
            raise HeaderError(f"a value of unknown type {kind}")
        found = self.take(struct.calcsize(layout) * count)
        if count > KEPT_ITEMS_MAX:
            return ()
        numbers = struct.unpack(f"<{count}{layout[1]}", found)
        return tuple(bool(number) for number in numbers) if kind == _BOOL else numbers


def attention_of(header: GgufHeader) -> AttentionShape:
    """Heads and lengths of each layer that keeps a key/value cache.

    Raises:
        HeaderError: the layout is none whose cache can be calculated, or its numbers are
            missing or beyond belief. The message is fit for people.
    """
    arch = header.architecture
    refuse_layout(arch, header.values)
    layers = _count(header, f"{arch}.block_count", LAYERS_MAX)
    heads = _per_layer(header, f"{arch}.attention.head_count", layers)
    kv_heads = _per_layer(header, f"{arch}.attention.head_count_kv", layers, heads)
    derived = None
    if f"{arch}.attention.key_length" not in header.values and max(heads) > 0:
        derived = _count(header, f"{arch}.embedding_length", COUNT_MAX) // max(heads)
    key = _count(header, f"{arch}.attention.key_length", COUNT_MAX, derived)
    value = _count(header, f"{arch}.attention.value_length", COUNT_MAX, derived or key)
    kept = tuple((count, key, value) for count in kv_heads if count > 0)
    if not kept:
        raise HeaderError("no layer keeps a key/value cache")
    context = header.values.get(f"{arch}.context_length")
    return AttentionShape(
        layers_kv=kept,
        context_length=_count(header, f"{arch}.context_length", 1 << 31) if context else None,
    )


def _count(header: GgufHeader, key: str, count_max: int, default: int | None = None) -> int:
    found = header.values.get(key, default)
    if found is None:
        raise HeaderError(f"the header has no {key}")
    if not isinstance(found, int) or isinstance(found, bool) or not 1 <= found <= count_max:
        raise HeaderError(f"{key} is {found!r}; a number from 1 to {count_max} is expected")
    return found


def _per_layer(
    header: GgufHeader, key: str, layers: int, default: tuple[int, ...] | None = None
) -> tuple[int, ...]:
    """A number for each layer, from one for all or an array; 0 is a layer without a cache."""
    found = header.values.get(key)
    if found is None and default is not None:
        return default
    if not isinstance(found, tuple):
        return (_count(header, key, COUNT_MAX),) * layers
    if len(found) != layers:
        raise HeaderError(f"{key} has {len(found)} numbers for {layers} layers")
    numbers = [number for number in found if isinstance(number, int) and 0 <= number <= COUNT_MAX]
    if len(numbers) != layers:
        raise HeaderError(f"{key} holds what is not a number from 0 to {COUNT_MAX}")
    return tuple(numbers)
