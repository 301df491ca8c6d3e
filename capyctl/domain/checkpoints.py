"""What is known of a model's files."""

from __future__ import annotations

import enum

import attrs


class DigestState(enum.Enum):
    PENDING = "pending"
    RECORDED = "recorded"
    MISMATCH = "mismatch"
    UNUSABLE = "unusable"


class SourceKind(enum.Enum):
    HUGGINGFACE = "huggingface"
    HTTP = "http"


@attrs.frozen(kw_only=True)
class RemoteSource:
    """Where a model's files are fetched from. Secrets are named, never held."""

    kind: SourceKind
    key: str
    """``sources/huggingface/<Owner>--<Name>@<commit>``, or alike; one key is one download."""
    repository: str = ""
    """``owner/name``; Hugging Face only, as are the next two."""
    commit: str = ""
    files: tuple[str, ...] = ()
    """Patterns of the files to fetch; empty: all of them."""
    token_ref: str | None = None
    """``secret://<name>``."""
    url: str | None = attrs.field(default=None, repr=False)
    """HTTP only, as is all that follows. None when `url_ref` names the secret that holds it."""
    url_ref: str | None = None
    sha256: str = ""
    """Of the file or archive, 64 hexadecimal digits."""
    archive: bool = False
    """The file is a tar archive of the model's directory."""


def host_allowed(host: str, allowed: tuple[str, ...] | None) -> bool:
    """Whether ``host`` is on the list: by its name, or below a ``*.name``. None allows all."""
    if allowed is None:
        return True
    name = host.lower().rstrip(".")
    entries = [entry.lower().rstrip(".") for entry in allowed]
    return any(
        name.endswith(entry[1:]) if entry.startswith("*.") else name == entry for entry in entries
    )


class SourceState(enum.Enum):
    PENDING = "pending"
    DOWNLOADING = "downloading"
    VERIFIED = "verified"
    FAILED = "failed"


@attrs.frozen(kw_only=True)
class SourceRecord:
    """How far one host has come with fetching a model's files."""

    host: str
    state: SourceState = SourceState.PENDING
    bytes_done: int = 0
    bytes_total: int = 0
    """0 while it is not known."""
    reason: str | None = None
    """``<token>: <sentence>``, when it failed or waits to try again."""
    terminal: bool = False
    """It will not come by waiting; somebody has to change something."""


@attrs.frozen(kw_only=True)
class AttentionShape:
    """What a plain attention model keeps per token. None of this for other layouts."""

    layers_kv: tuple[tuple[int, int, int], ...]
    """Per layer that keeps a cache: key/value heads, key length, value length."""
    context_length: int | None
    """Trained context, in tokens."""


@attrs.frozen(kw_only=True)
class HybridShape:
    """A model of attention layers and recurrent ones (gated delta nets), and what each keeps."""

    attention: AttentionShape
    """Of the layers that keep a cache per token."""
    recurrent_count: int
    """Layers that keep a state of fixed size per request."""
    conv_bytes: int
    """One layer's convolution state, in two bytes a value."""
    temporal_bytes: int
    """One layer's recurrent state."""

    @property
    def slot_bytes(self) -> int:
        """State of one request, all layers together."""
        return self.recurrent_count * (self.conv_bytes + self.temporal_bytes)


class ToolStyle(enum.Enum):
    """How a chat template has tools called."""

    FUNCTION = "function"
    """``<function=`` tags."""
    JSON = "json"
    """JSON inside ``<tool_call>``."""


@attrs.frozen(kw_only=True)
class TemplateMarks:
    """What a model's chat template says of parsers."""

    tools: ToolStyle | None = None
    thinks: bool = False
    """It has ``<think>``."""


@attrs.frozen(kw_only=True)
class DraftFacts:
    """The measurement of a draft model, which is launched together with its model."""

    path: str
    digest: str
    weights_bytes: int
    attention: AttentionShape | None = None
    attention_refused: str | None = None


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
    hybrid: HybridShape | None = None
    """In place of `attention` where the layers are of two kinds."""
    model_type: str | None = None
    quantization: str | None = None
    """How the files say that they are quantised."""
    template: TemplateMarks | None = None
    """None: there is no chat template."""
    draft: DraftFacts | None = None
    stat_identity: tuple[tuple[str, int, int, int, int, int], ...] = ()
    """Per file: relative path, device, inode, size, mtime ns, ctime ns."""
    provenance: str = "measured"
    """``measured``, or ``fetched`` when every digest was taken while the file came in."""


@attrs.frozen(kw_only=True)
class HostFiles:
    """How far one of several machines has come with a model's files."""

    host: str
    state: DigestState = DigestState.PENDING
    digest: str | None = None
    """As measured there."""
    diagnostic: str | None = None
    detail: str | None = None
    source: SourceRecord | None = None


@attrs.frozen(kw_only=True)
class CheckpointRecord:
    """The durable state of a deployment's digest."""

    state: DigestState = DigestState.PENDING
    expected: str | None = None
    facts: CheckpointFacts | None = None
    diagnostic: str | None = None
    """Closed token: ``invalid_root``, ``unsafe_file``, ``too_large``, ``changed``, …"""
    detail: str | None = None
    """One sentence for people."""
    source: SourceRecord | None = None
    """The download; None for files that are on the machine, and before the first news of it."""
    host: str | None = None
    """Of several machines, the one whose measurement the others are held against."""
    hosts: tuple[HostFiles, ...] = ()
    """Each of several machines, by id; what is above is what they come to together. Empty where
    there is one machine."""
