"""What is known of a model's files."""

from __future__ import annotations

import enum

import attrs


class DigestState(enum.Enum):
    PENDING = "pending"
    RECORDED = "recorded"
    MISMATCH = "mismatch"
    UNUSABLE = "unusable"


@attrs.frozen(kw_only=True)
class AttentionShape:
    """What a plain attention model keeps per token. None of this for other layouts."""

    layers_kv: tuple[tuple[int, int, int], ...]
    """Per layer that keeps a cache: key/value heads, key length, value length."""
    context_length: int | None
    """Trained context, in tokens."""


@attrs.frozen(kw_only=True)
class CheckpointFacts:
    """One complete measurement of a model's files on one host."""

    digest: str
    """``sha256:`` and 64 hexadecimal digits over every file."""
    weights_bytes: int
    format: str
    """``safetensors``, ``gguf`` or ``unknown``."""
    weights_file: str | None = None
    """For GGUF, the file (or first shard) to load, relative to the model's directory."""
    attention: AttentionShape | None = None
    attention_refused: str | None = None
    """Why the cache size cannot be derived, when it cannot."""
    model_type: str | None = None
    stat_identity: tuple[tuple[str, int, int, int, int, int], ...] = ()
    """Per file: relative path, device, inode, size, mtime ns, ctime ns."""


@attrs.frozen(kw_only=True)
class CheckpointRecord:
    """The durable state of a deployment's digest."""

    state: DigestState = DigestState.PENDING
    expected: str | None = None
    facts: CheckpointFacts | None = None
    diagnostic: str | None = None
    """Closed token: ``invalid_root``, ``unsafe_file``, ``too_large``, ``changed``, ``io_error`` …"""
    detail: str | None = None
    """One sentence for people."""
