"""Which GGUF layouts do not keep a plain key/value cache, so that its size is not calculable."""

from __future__ import annotations

from collections.abc import Mapping

from capyctl.checkpoints.headers import HeaderError

_BY_ARCHITECTURE = {
    "clip": "a projector",
    "bert": "an embedding model",
    "modern-bert": "an embedding model",
    "nomic-bert": "an embedding model",
    "nomic-bert-moe": "an embedding model",
    "neo-bert": "an embedding model",
    "jina-bert-v2": "an embedding model",
    "jina-bert-v3": "an embedding model",
    "gemma-embedding": "an embedding model",
    "t5": "an encoder-decoder model",
    "t5encoder": "an encoder",
    "wavtokenizer-dec": "an audio decoder",
    "dream": "a diffusion model",
    "llada": "a diffusion model",
    "llada-moe": "a diffusion model",
    "rnd1": "a diffusion model",
    "mamba": "a recurrent model",
    "mamba2": "a recurrent model",
    "rwkv6": "a recurrent model",
    "rwkv6qwen2": "a recurrent model",
    "rwkv7": "a recurrent model",
    "arwkv7": "a recurrent model",
    "gemma2": "a model with sliding-window attention",
    "gemma3": "a model with sliding-window attention",
    "gemma3n": "a model with sliding-window attention",
    "llama4": "a model with chunked attention",
    "cohere2": "a model with sliding-window attention",
    "gpt-oss": "a model with sliding-window attention",
    "deepseek2": "a model with latent attention (MLA)",
    "minicpm3": "a model with latent attention (MLA)",
    "plm": "a model with latent attention (MLA)",
}
_BY_KEY = (
    ("ssm.", "a recurrent or hybrid model"),
    ("wkv.", "a recurrent model"),
    ("shortconv.", "a hybrid model"),
    ("kda.", "a hybrid model"),
    ("full_attention_interval", "a hybrid model"),
    ("attention.recurrent_layers", "a hybrid model"),
    ("attention.kv_lora_rank", "a model with latent attention (MLA)"),
    ("attention.key_length_mla", "a model with latent attention (MLA)"),
    ("attention.indexer.", "a model with an attention indexer"),
    ("attention.shared_kv_layers", "a model whose layers share their cache"),
    ("attention.chunk_size", "a model with chunked attention"),
    ("pooling_type", "an embedding model"),
    ("diffusion.", "a diffusion model"),
)


def refuse_layout(arch: str, values: Mapping[str, object]) -> None:
    """Pass a plain key/value cache, and nothing else.

    Raises:
        HeaderError: the sentence says what the model is and what to state instead.
    """
    if not arch:
        raise HeaderError("the header has no general.architecture")
    why = _BY_ARCHITECTURE.get(arch) or _by_key(arch, values)
    if why is not None:
        raise HeaderError(
            f"{arch} is {why}: its cache size is not calculable; state memory.kv_cache or resources"
        )


def _by_key(arch: str, values: Mapping[str, object]) -> str | None:
    for suffix, why in _BY_KEY:
        key = f"{arch}.{suffix}"
        is_family = suffix.endswith(".")
        if values.get(key) or (is_family and any(name.startswith(key) for name in values)):
            return why
    if any(name.startswith("diffusion.") for name in values):
        return "a diffusion model"
    if values.get(f"{arch}.attention.causal") is False:
        return "an encoder"
    window = values.get(f"{arch}.attention.sliding_window")
    return "a model with sliding-window attention" if window else None
