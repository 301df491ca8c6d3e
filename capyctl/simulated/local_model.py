"""What a simulated engine takes from a model's files: their size, identity and context length."""

from __future__ import annotations

import hashlib
import json
import os
import struct
from pathlib import Path
from typing import Any

import attrs

FILES_MAX = 10_000
_HEAD_BYTES = 65_536
_WEIGHTS = (".safetensors", ".gguf", ".bin", ".pt", ".pth")


class MissingModel(Exception):
    """There is no such model; the message is for the engine's log."""


@attrs.frozen(kw_only=True)
class LocalModel:
    path: str
    weights_bytes: int
    weights_id: bytes
    """Differs for other weights, as far as names, sizes and the first 64 KiB tell."""
    context_length: int
    kv_bytes_per_token: int
    """Of a 16-bit cache."""
    hears: bool = False
    """It takes recordings: its `config.json` has an `audio_config`, or is Whisper's."""


def open_model(path: str) -> LocalModel:
    """Look at a model's directory or its ``.gguf`` file. Blocks briefly.

    Raises:
        MissingModel: nothing there, or no weights in it.
    """
    place = Path(path)
    if place.is_file():
        return _model(path, _shards(place))
    files = sorted(place.iterdir())[:FILES_MAX] if place.is_dir() else []
    weights = [file for file in files if file.suffix in _WEIGHTS and file.is_file()]
    tensors = [file for file in weights if file.suffix == ".safetensors"]
    if not weights:
        raise MissingModel(path)
    return _model(path, tensors or weights)


def _shards(first: Path) -> list[Path]:
    stem, dash, count = first.name.rpartition("-of-")
    if not dash or not stem.endswith("-00001"):
        return [first]
    return sorted(first.parent.glob(f"{stem.removesuffix('-00001')}-*-of-{count}"))


def _model(path: str, files: list[Path]) -> LocalModel:
    identity = hashlib.sha256()
    for file in files:
        with file.open("rb") as opened:
            head = opened.read(_HEAD_BYTES)
        identity.update(f"{file.name}\0{file.stat().st_size}\0".encode() + head)
    if files[0].suffix == ".gguf":
        context, kv_bytes = _gguf_shape(files[0])
    else:
        context, kv_bytes = _config_shape(Path(path) / "config.json")
    return LocalModel(
        path=path,
        weights_bytes=sum(_weights_bytes(file) for file in files),
        weights_id=identity.digest(),
        context_length=context,
        kv_bytes_per_token=kv_bytes,
        hears=_hears(Path(path) / "config.json"),
    )


def _hears(config: Path) -> bool:
    try:
        found = json.loads(config.read_bytes())
    except (OSError, ValueError):
        return False
    return isinstance(found, dict) and (
        "audio_config" in found or found.get("model_type") == "whisper"
    )


def _weights_bytes(file: Path) -> int:
    """Bytes loaded of a file: the tensors of safetensors, all of any other."""
    size = file.stat().st_size
    if file.suffix != ".safetensors" or size < 8:
        return size
    with file.open("rb") as opened:
        header_bytes: int = struct.unpack("<Q", opened.read(8))[0]
    return max(0, size - 8 - header_bytes)


def _config_shape(path: Path) -> tuple[int, int]:
    try:
        found: dict[str, Any] = json.loads(path.read_bytes())
        found = found.get("text_config") or found
        heads = found.get("num_key_value_heads") or found["num_attention_heads"]
        length = found.get("head_dim") or found["hidden_size"] // found["num_attention_heads"]
        kv_bytes = int(2 * 2 * found["num_hidden_layers"] * heads * length)
        return int(found.get("max_position_embeddings") or 4_096), kv_bytes
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return 4_096, 0


def _gguf_shape(path: Path) -> tuple[int, int]:
    """Trained context and cache bytes per token; as much as a plain header gives."""
    try:
        found = _gguf_numbers(path)
    except (OSError, ValueError, struct.error, UnicodeDecodeError, MemoryError):
        return 4_096, 0

    def number(suffix: str, default: int = 0) -> int:
        return next((value for key, value in found.items() if key.endswith(suffix)), default)

    head_count = number(".attention.head_count", 1) or 1
    key = number(".attention.key_length", number(".embedding_length") // head_count)
    value = number(".attention.value_length", key)
    heads = number(".attention.head_count_kv", head_count)
    kv_bytes = 2 * number(".block_count") * heads * (key + value)
    return number(".context_length", 4_096), kv_bytes


_SIZES = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}


def _gguf_numbers(path: Path) -> dict[str, int]:
    """The unsigned numbers of the metadata; all else is stepped over."""
    found = {}
    with path.open("rb") as file:
        if file.read(4) != b"GGUF":
            raise ValueError("not GGUF")
        _, _, count = struct.unpack("<IQQ", file.read(20))
        for _ in range(min(count, FILES_MAX)):
            key = _gguf_text(file.read(8), file.read).decode()
            (kind,) = struct.unpack("<I", file.read(4))
            if kind == 4:
                found[key] = struct.unpack("<I", file.read(4))[0]
            elif kind == 8:
                _gguf_text(file.read(8), file.read)
            elif kind == 9:
                inner, items = struct.unpack("<IQ", file.read(12))
                for _ in range(items if inner == 8 else 0):
                    _gguf_text(file.read(8), file.read)
                file.seek(items * _SIZES.get(inner, 0), os.SEEK_CUR)
            else:
                file.seek(_SIZES[kind], os.SEEK_CUR)
    return found


def _gguf_text(length: bytes, read: Any) -> bytes:
    (count,) = struct.unpack("<Q", length)
    if count > _HEAD_BYTES * 16:
        raise ValueError("a string of more than 1 MiB")
    found: bytes = read(count)
    return found
