"""`engine_config`: settings of the engine, and which of them each family knows."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, field_validator

from capyctl.config.fields import Closed, Count, Name, PositiveSize, bad_value

FAMILIES = ("vllm", "sglang", "tensorfold", "llamacpp")
LLAMACPP_CACHE_TYPES = (
    "f32",
    "f16",
    "bf16",
    "q8_0",
    "q4_0",
    "q4_1",
    "iq4_nl",
    "q5_0",
    "q5_1",
)
EXTRA_ARGS_MAX = 256


class EngineMemory(Closed):
    """Bytes that one instance is given."""

    request: PositiveSize | None = None
    kv_cache: PositiveSize | None = None
    startup: PositiveSize | None = None


class VllmSettings(Closed):
    block_size_tokens: Count | None = None
    max_num_batched_tokens: Count | None = None
    safetensors_load_strategy: Literal["eager", "lazy"] | None = None
    tool_call_parser: Name = "auto"
    reasoning_parser: Name = "auto"


class SglangSettings(Closed):
    max_total_tokens: Count | None = None
    chunked_prefill_size: int | None = Field(default=None, ge=-1, le=1 << 31)
    tokenizer_workers: Count | None = None
    tool_call_parser: Name = "auto"
    reasoning_parser: Name = "auto"


class TensorfoldSettings(Closed):
    max_tokens: Count | None = None
    thinking: bool | None = None


class LlamacppSettings(Closed):
    n_gpu_layers: int | str = "all"
    gguf_file: str | None = None
    mmproj_file: str | None = None
    pooling: Literal["mean", "cls", "last"] | None = None
    """How an embedding is made where the file does not say; `task: embed` alone has it."""

    @field_validator("n_gpu_layers", mode="before")
    @classmethod
    def _layers(cls, value: object) -> object:
        whole = isinstance(value, int) and not isinstance(value, bool) and value >= 0
        if not whole and value != "all":
            raise bad_value("expected a whole number of layers or all")
        return value

    @field_validator("gguf_file", "mmproj_file")
    @classmethod
    def _inside(cls, value: str | None) -> str | None:
        if value is None:
            return value
        parts = value.split("/")
        if not value.endswith(".gguf") or "" in parts or ".." in parts or "." in parts:
            raise bad_value("expected a .gguf file by its path inside the model's directory")
        return value


class EngineConfig(Closed):
    task: Literal["generate", "embed", "rerank", "transcribe"] = "generate"
    """What the model is for."""
    dtype: Name | None = None
    quantization: Name | None = None
    kv_cache_dtype: Name | None = None
    context_length: Count | None = None
    max_concurrent_requests: Count | None = None
    cuda_graphs: bool | None = None
    language_model_only: bool | None = None
    trust_remote_code: bool = False
    memory: EngineMemory = EngineMemory()
    vllm: VllmSettings | None = None
    sglang: SglangSettings | None = None
    tensorfold: TensorfoldSettings | None = None
    llamacpp: LlamacppSettings | None = None
    accept_extra_args: bool = False
    extra_args: list[str] = Field(default_factory=list, max_length=EXTRA_ARGS_MAX)
    env: dict[str, str] = Field(default_factory=dict)

    def stated(self) -> frozenset[str]:
        """Dotted names of the typed fields that the document states."""
        names: set[str] = set()
        for name in self.model_fields_set - {"extra_args", "accept_extra_args", "env"}:
            value = getattr(self, name)
            inner = value.model_fields_set if isinstance(value, Closed) else None
            names |= {name} if inner is None else {f"{name}.{field}" for field in inner}
        return frozenset(names)


REFUSED_FIELDS: dict[str, tuple[str, ...]] = {
    "vllm": (),
    "sglang": (),
    "tensorfold": (
        "dtype",
        "quantization",
        "cuda_graphs",
        "language_model_only",
        "trust_remote_code",
        "memory.request",
        "memory.kv_cache",
        "memory.startup",
    ),
    "llamacpp": ("dtype", "quantization", "cuda_graphs"),
}
"""Typed fields that a family has no option for."""


def refused_field(family: str, settings: EngineConfig) -> tuple[str, str] | None:
    """The first stated field that this family does not know, and why; None when all is well."""
    for other in FAMILIES:
        if other != family and getattr(settings, other) is not None:
            return other, f"this block is for {other}; the deployment runs on {family}"
    stated = settings.stated()
    for name in REFUSED_FIELDS[family]:
        if name in stated:
            why = "TensorFold's memory is stated in resources" if "memory" in name else ""
            return name, why or f"{family} has no such option"
    if family == "tensorfold" and settings.task != "generate":
        return "task", "TensorFold serves models that generate text"
    if family != "llamacpp":
        return None
    llamacpp = settings.llamacpp or LlamacppSettings()
    if llamacpp.pooling is not None and settings.task != "embed":
        return "llamacpp.pooling", "only task: embed makes embeddings"
    if settings.task == "transcribe" and llamacpp.mmproj_file is None:
        return "task", "llama.cpp hears with a projector: state llamacpp.mmproj_file"
    for name in ("language_model_only", "trust_remote_code"):
        if getattr(settings, name):
            return name, "llamacpp has no such option"
    if settings.kv_cache_dtype not in (None, *LLAMACPP_CACHE_TYPES):
        return "kv_cache_dtype", f"expected one of {', '.join(LLAMACPP_CACHE_TYPES)}"
    return None
