"""Reads safetensors headers and a model's config.json: weight bytes and attention shape."""

from __future__ import annotations

import json
import re
import struct
from collections.abc import Mapping, Sequence
from typing import Any, BinaryIO

from capyctl.checkpoints.headers import COUNT_MAX, LAYERS_MAX, HeaderError
from capyctl.domain.checkpoints import AttentionShape
from capyctl.domain.units import MIB

HEADER_BYTES_MAX = 25_000_000
"""The Hugging Face hub's own limit."""
CONFIG_BYTES_MAX = 16 * MIB
_UNLOADED = ("consolidated",)


def weight_names(names: Sequence[str]) -> tuple[str, ...]:
    """The safetensors files an engine loads: not in ``original/``, not ``consolidated…``."""
    return tuple(
        name
        for name in names
        if name.endswith(".safetensors")
        and not name.startswith("original/")
        and not name.rsplit("/", 1)[-1].startswith(_UNLOADED)
    )


def read_weights_bytes(file: BinaryIO, size_bytes: int) -> int:
    """Bytes of tensors that a safetensors file of ``size_bytes`` holds. Blocks.

    Raises:
        HeaderError: no such file, or its header exceeds 25,000,000 bytes or the file.
    """
    length = file.read(8)
    if len(length) != 8:
        raise HeaderError("a safetensors file of less than 8 bytes")
    header_bytes: int = struct.unpack("<Q", length)[0]
    if header_bytes > HEADER_BYTES_MAX or header_bytes > size_bytes - 8:
        raise HeaderError(f"a safetensors header of {header_bytes} bytes in {size_bytes} bytes")
    header = read_json(file.read(header_bytes), "the safetensors header")
    room = size_bytes - 8 - header_bytes
    return sum(
        _tensor_bytes(name, tensor, room)
        for name, tensor in header.items()
        if name != "__metadata__"
    )


def _tensor_bytes(name: str, tensor: object, room_bytes: int) -> int:
    offsets = tensor.get("data_offsets") if isinstance(tensor, dict) else None
    if not isinstance(offsets, list) or len(offsets) != 2 or not all(map(_is_count, offsets)):
        raise HeaderError(f"tensor {name[:80]!r} has no data_offsets")
    begin, end = offsets
    if not begin <= end <= room_bytes:
        raise HeaderError(f"tensor {name[:80]!r} lies at {begin}-{end} of {room_bytes} bytes")
    return int(end - begin)


def indexed_names(index: Mapping[str, Any]) -> frozenset[str]:
    """File names that a ``model.safetensors.index.json`` speaks of.

    Raises:
        HeaderError: it has no ``weight_map`` of names to names.
    """
    found = index.get("weight_map")
    if not isinstance(found, dict) or not all(isinstance(name, str) for name in found.values()):
        raise HeaderError("model.safetensors.index.json has no weight_map")
    return frozenset(found.values())


def read_json(text: bytes, what: str) -> dict[str, Any]:
    """Raises:
    HeaderError: ``text`` is no JSON object.
    """
    try:
        found = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise HeaderError(f"{what} is not JSON") from error
    if not isinstance(found, dict):
        raise HeaderError(f"{what} is not a JSON object")
    return found


def model_type_of(config: Mapping[str, Any]) -> str | None:
    """`model_type`, or what the first of `architectures` stands for."""
    kind = config.get("model_type")
    if isinstance(kind, str) and kind:
        return kind
    names = config.get("architectures")
    name = names[0] if isinstance(names, list) and names else None
    if not isinstance(name, str):
        return None
    stem = re.sub(r"(For[A-Z]\w*|Model|LMHeadModel)$", "", name)
    parts = re.findall(r"[A-Z]?[a-z]+\d*(?:_\d+)?|[A-Z]+(?![a-z])\d*(?:_\d+)?|\d+", stem)
    return "_".join(part.lower() for part in parts) or None


def quantization_of(config: Mapping[str, Any]) -> str | None:
    """The method that `quantization_config` names."""
    stated = config.get("quantization_config")
    method = stated.get("quant_method") if isinstance(stated, dict) else None
    return method if isinstance(method, str) and method else None


def attention_of(config: Mapping[str, Any]) -> AttentionShape:
    """Attention shape from a ``config.json`` (its ``text_config`` where it has one).

    Raises:
        HeaderError: not plain attention, or a number is missing. The message is for people.
    """
    text = config.get("text_config")
    shape = text if isinstance(text, dict) else config
    why = _refused(shape)
    if why is not None:
        raise HeaderError(f"{shape.get('model_type') or 'the model'} {why}")
    return plain_layers(shape, count_of(shape, "num_hidden_layers", LAYERS_MAX))


def plain_layers(shape: Mapping[str, Any], layers: int) -> AttentionShape:
    """So many layers of the plain attention that a configuration describes.

    Raises:
        HeaderError: a number is missing.
    """
    heads = count_of(shape, "num_attention_heads", COUNT_MAX)
    kv_heads = count_of(shape, "num_key_value_heads", COUNT_MAX, heads)
    head_dim = shape.get("head_dim")
    if head_dim is None:
        head_dim = count_of(shape, "hidden_size", COUNT_MAX) // heads
    length = count_of({"head_dim": head_dim}, "head_dim", COUNT_MAX)
    context = shape.get("max_position_embeddings")
    return AttentionShape(
        layers_kv=((kv_heads, length, length),) * layers,
        context_length=context if _is_count(context) and context else None,
    )


_REFUSED_KEYS = {
    "kv_lora_rank": "has latent attention (MLA)",
    "full_attention_interval": "mixes attention with recurrent layers",
    "hybrid_override_pattern": "mixes attention with recurrent layers",
    "layers_block_type": "mixes attention with recurrent layers",
    "attn_layer_period": "mixes attention with recurrent layers",
    "mamba_d_state": "has recurrent layers",
    "mamba_num_heads": "has recurrent layers",
    "linear_num_value_heads": "has recurrent layers",
    "ssm_cfg": "has recurrent layers",
    "state_size": "has recurrent layers",
    "index_topk": "has an attention indexer",
    "attention_chunk_size": "has chunked attention",
    "num_kv_shared_layers": "has layers that share their cache",
}


def _refused(shape: Mapping[str, Any]) -> str | None:
    for key, why in _REFUSED_KEYS.items():
        if shape.get(key):
            return f"{why} ({key})"
    if shape.get("is_encoder_decoder"):
        return "is an encoder-decoder model"
    kinds = shape.get("layer_types")
    if isinstance(kinds, list) and any(kind != "full_attention" for kind in kinds):
        return "has layers of several kinds (layer_types)"
    # Qwen 2 names a window that it does not use.
    if shape.get("sliding_window") and shape.get("use_sliding_window", True):
        return "has sliding-window attention"
    return None


def count_of(shape: Mapping[str, Any], key: str, count_max: int, default: int | None = None) -> int:
    """A whole number of a configuration, from 1 to ``count_max``.

    Raises:
        HeaderError: it is missing, or something else.
    """
    found: object = shape.get(key)
    found = default if found is None else found
    if not isinstance(found, int) or isinstance(found, bool) or not 1 <= found <= count_max:
        raise HeaderError(f"config.json: {key} is {found!r:.40}; 1 to {count_max} is expected")
    return found


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0
