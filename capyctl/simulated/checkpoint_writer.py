"""Writes a sparse, well-formed checkpoint of any size: real headers, weights that are a hole."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

from capyctl.domain.units import GIB

FORMATS = ("safetensors", "gguf")
WEIGHTS_BYTES_MIN = 4_096
WEIGHTS_BYTES_MAX = 8 << 40
SHARD_BYTES = 40 * GIB
"""Safetensors above this are split into shards with an index, as published models are."""
LAYERS = 32
HEADS = 32
KV_HEADS = 8
HEAD_DIM = 128
CONTEXT_LENGTH = 32_768

_CHAT_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n"
    "{{ message.content }}<|im_end|>\n{% endfor %}<|im_start|>assistant\n"
)
_CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": HEADS * HEAD_DIM,
    "intermediate_size": 14_336,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": HEADS,
    "num_key_value_heads": KV_HEADS,
    "head_dim": HEAD_DIM,
    "vocab_size": 32_000,
    "torch_dtype": "bfloat16",
}


def write_checkpoint(
    folder: Path | str,
    *,
    weights_bytes: int,
    format: str = "safetensors",
    context_length: int = CONTEXT_LENGTH,
    seed: int = 0,
) -> Path:
    """Write a checkpoint whose measured weights are exactly ``weights_bytes``; blocks briefly.

    The weights are a hole, so that hundreds of GiB take no room and no time. ``seed`` goes
    into the headers: models of one size with different seeds have different digests.

    Args:
        folder: Made if it is absent; must be empty otherwise.
        weights_bytes: 4 KiB to 8 TiB.
        format: ``safetensors`` (bytes of the tensors) or ``gguf`` (size of the file).
        context_length: Trained context in the headers, in tokens.

    Returns:
        What a deployment names: the folder, or the ``.gguf`` file in it.

    Raises:
        ValueError: unknown format, or a size out of bounds.
        FileExistsError: the folder is not empty.
        OSError: it cannot be written.
    """
    if format not in FORMATS:
        raise ValueError(f"format is {format!r}; it must be one of {', '.join(FORMATS)}")
    if not WEIGHTS_BYTES_MIN <= weights_bytes <= WEIGHTS_BYTES_MAX:
        raise ValueError(
            f"weights of {weights_bytes} bytes; they must have "
            f"{WEIGHTS_BYTES_MIN} to {WEIGHTS_BYTES_MAX} bytes"
        )
    target = Path(folder)
    target.mkdir(parents=True, exist_ok=True)
    if any(target.iterdir()):
        raise FileExistsError(f"{target} is not empty; name a new folder")
    if format == "gguf":
        return _write_gguf(target, weights_bytes, context_length, seed)
    _write_json(target / "config.json", _CONFIG | {"max_position_embeddings": context_length})
    _write_json(
        target / "tokenizer_config.json",
        {"chat_template": _CHAT_TEMPLATE, "model_max_length": context_length},
    )
    _write_safetensors(target, weights_bytes, seed)
    return target


def _write_safetensors(folder: Path, weights_bytes: int, seed: int) -> None:
    count = -(-weights_bytes // SHARD_BYTES)
    if count == 1:
        _write_shard(folder / "model.safetensors", "model.weight", weights_bytes, seed)
        return
    weight_map = {}
    for number in range(1, count + 1):
        name = f"model-{number:05}-of-{count:05}.safetensors"
        tensor = f"model.layers.{number - 1}.weight"
        size = min(SHARD_BYTES, weights_bytes - (number - 1) * SHARD_BYTES)
        _write_shard(folder / name, tensor, size, seed)
        weight_map[tensor] = name
    index = {"metadata": {"total_size": weights_bytes}, "weight_map": weight_map}
    _write_json(folder / "model.safetensors.index.json", index)


def _write_shard(path: Path, tensor: str, size_bytes: int, seed: int) -> None:
    header = {
        "__metadata__": {"format": "pt", "simulated_seed": str(seed)},
        tensor: {"dtype": "U8", "shape": [size_bytes], "data_offsets": [0, size_bytes]},
    }
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with path.open("xb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        file.truncate(8 + len(text) + size_bytes)


def _write_json(path: Path, content: dict[str, Any]) -> None:
    path.write_text(json.dumps(content, indent=2) + "\n")


_U32, _F32, _STRING, _ARRAY = 4, 6, 8, 9


def _write_gguf(folder: Path, weights_bytes: int, context_length: int, seed: int) -> Path:
    path = folder / "model.gguf"
    header = _gguf_header(weights_bytes, context_length, seed)
    with path.open("xb") as file:
        file.write(header)
        file.truncate(weights_bytes)
    return path


def _gguf_header(weights_bytes: int, context_length: int, seed: int) -> bytes:
    values: dict[str, str | int | float] = {
        "general.architecture": "llama",
        "general.name": f"simulated-{seed}",
        "general.alignment": 32,
        "llama.block_count": LAYERS,
        "llama.context_length": context_length,
        "llama.embedding_length": HEADS * HEAD_DIM,
        "llama.feed_forward_length": 14_336,
        "llama.attention.head_count": HEADS,
        "llama.attention.head_count_kv": KV_HEADS,
        "llama.attention.key_length": HEAD_DIM,
        "llama.attention.value_length": HEAD_DIM,
        "llama.attention.layer_norm_rms_epsilon": 1e-5,
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.chat_template": _CHAT_TEMPLATE,
    }
    head = b"".join(_gguf_value(key, value) for key, value in values.items())
    tokens = [b"<s>", b"</s>", b"<|im_start|>", b"<|im_end|>"]
    head += _gguf_text("tokenizer.ggml.tokens") + struct.pack("<IIQ", _ARRAY, _STRING, len(tokens))
    head += b"".join(struct.pack("<Q", len(token)) + token for token in tokens)
    begin = b"GGUF" + struct.pack("<IQQ", 3, 1, len(values) + 1)
    # One tensor of bytes (type 24, I8) that fills the file from the aligned end of the header.
    name = _gguf_text("token_embd.weight")
    info_bytes = len(name) + 4 + 8 + 4 + 8
    start = -(-(len(begin) + len(head) + info_bytes) // 32) * 32
    info = name + struct.pack("<IQIQ", 1, max(0, weights_bytes - start), 24, 0)
    return (begin + head + info).ljust(start, b"\0")


def _gguf_value(key: str, value: str | int | float) -> bytes:
    if isinstance(value, str):
        return _gguf_text(key) + struct.pack("<I", _STRING) + _gguf_text(value)
    kind, layout = (_U32, "<II") if isinstance(value, int) else (_F32, "<If")
    return _gguf_text(key) + struct.pack(layout, kind, value)


def _gguf_text(text: str) -> bytes:
    encoded = text.encode()
    return struct.pack("<Q", len(encoded)) + encoded
