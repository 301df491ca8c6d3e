"""Classes of llama-server's options, which it takes by exact name and without ``=value``."""

from __future__ import annotations

from capyctl.engines.options import OptionTable

_RENDERED = """
host port model alias kv-unified fit cache-ram context-shift metrics slots offline ui cors-origins
cors-credentials
"""

_NETWORK = """
api-key api-key-file reuse-port path api-prefix ssl-key-file ssl-cert-file cors-methods cors-headers
rpc props ui-config ui-config-file ui-mcp-proxy
"""

_MODELS = """
models-dir models-preset models-max models-autoload sleep-idle-seconds model-url docker-repo hf-repo
hf-file hf-token hf-repo-v hf-file-v mmproj-url mmproj-auto spec-draft-hf tags
"""

_TOOLS = "tools tools-runtime agent mcp-servers-config mcp-servers-json"

_MEMORY = """
fit-target fit-ctx fit-print kv-unified-per-slot slot-save-path cache-idle-slots device split-mode
tensor-split main-gpu mmproj-device
"""

_LOGGING = """
log-disable log-file log-jsonl log-prompts-dir verbose verbosity
"""

_PRINT_AND_EXIT = "help version license cache-list completion-bash list-devices"

_APPROVAL_PATHS = """
model-draft lora lora-scaled control-vector control-vector-scaled chat-template-file grammar-file
json-schema-file lookup-cache-static lookup-cache-dynamic media-path video-ffmpeg-dir
"""

_ALWAYS = """
ctx-size parallel gpu-layers cache-type-k cache-type-v embedding rerank pooling
"""

_ALIASES = {
    "n-gpu-layers": "gpu-layers",
    "webui": "ui",
    "webui-config": "ui-config",
    "webui-config-file": "ui-config-file",
    "webui-mcp-proxy": "ui-mcp-proxy",
    "no-mmproj": "mmproj-auto",
    "hf-repo-draft": "spec-draft-hf",
    "spec-draft-model": "model-draft",
    "embeddings": "embedding",
    "reranking": "rerank",
    "log-verbose": "verbose",
    "log-verbosity": "verbosity",
    "usage": "help",
    "n-predict": "predict",
    "swa-checkpoints": "ctx-checkpoints",
    "sampling-seq": "sampler-seq",
    "temperature": "temp",
    "top-n-sigma": "top-nsigma",
    "typical-p": "typical",
    "draft-n": "draft",
    "draft-max": "draft",
    "draft-n-min": "draft-min",
    "gpu-layers-draft": "spec-draft-ngl",
    "n-gpu-layers-draft": "spec-draft-ngl",
    "spec-draft-ncmoe": "spec-draft-n-cpu-moe",
    "n-cpu-moe-draft": "spec-draft-n-cpu-moe",
    "cache-type-k-draft": "spec-draft-type-k",
    "cache-type-v-draft": "spec-draft-type-v",
    "draft-p-split": "spec-draft-p-split",
    "draft-p-min": "spec-draft-p-min",
}

_DRAFT = """
device threads threads-batch cpu-mask cpu-range cpu-strict prio poll cpu-mask-batch cpu-range-batch
cpu-strict-batch prio-batch poll-batch override-tensor cpu-moe
"""
"""Options of the draft model: each is `spec-draft-NAME` and, older, `NAME-draft`."""

LLAMA_CPP_OPTIONS = OptionTable(
    family="llamacpp",
    typed={
        "ctx-size": "context_length",
        "parallel": "max_concurrent_requests",
        "gpu-layers": "llamacpp.n_gpu_layers",
        "cache-type-k": "kv_cache_dtype",
        "cache-type-v": "kv_cache_dtype",
        "mmproj": "llamacpp.mmproj_file",
        "embedding": "task",
        "rerank": "task",
        "pooling": "llamacpp.pooling",
    },
    reserved=frozenset(
        " ".join((_RENDERED, _NETWORK, _MODELS, _TOOLS, _MEMORY, _LOGGING, _PRINT_AND_EXIT)).split()
    ),
    reserved_endings=("-default", "b-spec"),
    approval=frozenset(),
    approval_paths=frozenset(_APPROVAL_PATHS.split()),
    aliases=_ALIASES | {f"{name}-draft": f"spec-draft-{name}" for name in _DRAFT.split()},
    two_values=frozenset({"control-vector-layer-range"}),
    abbreviates=False,
    inline_values=False,
    always_rendered=frozenset((_RENDERED + _ALWAYS).split()),
)
