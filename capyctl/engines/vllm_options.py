"""Classes of vLLM's command-line options."""

from __future__ import annotations

from capyctl.engines.options import OptionTable

_PARALLEL = """
tensor-parallel-size pipeline-parallel-size prefill-context-parallel-size
decode-context-parallel-size data-parallel-size data-parallel-size-local data-parallel-rank
data-parallel-start-rank data-parallel-address data-parallel-rpc-port data-parallel-backend
data-parallel-hybrid-lb data-parallel-external-lb data-parallel-multi-port-external-lb
distributed-executor-backend headless api-server-count nnodes node-rank master-addr master-port
device device-ids
"""

_MEMORY = """
gpu-memory-utilization device-memory-utilization cpu-offload-gb swap-space kv-cache-memory-bytes
kv-cache-memory num-gpu-blocks-override enable-sleep-mode enable-cumem-allocator
"""

_NETWORK = """
host port uds root-path api-key middleware grpc ssl-keyfile ssl-certfile ssl-ca-certs ssl-cert-reqs
ssl-ciphers enable-ssl-refresh hf-token enable-scale-out
"""

_LOGGING = """
enable-log-requests disable-log-requests enable-log-outputs enable-log-deltas max-log-len
disable-log-stats log-config-file logging-config log-level uvicorn-log-level
disable-uvicorn-access-log disable-access-log-for-endpoints enable-per-request-metrics
"""

_IDENTITY = "model model-tag served-model-name revision code-revision config help version"

_APPROVAL = """
speculative-config spec-method spec-tokens kv-transfer-config io-processor-plugin worker-cls
worker-extension-cls logits-processors compilation-config watermark-config engram-config
"""

_APPROVAL_PATHS = "tool-parser-plugin reasoning-parser-plugin spec-model"

VLLM_OPTIONS = OptionTable(
    family="vllm",
    typed={
        "dtype": "dtype",
        "quantization": "quantization",
        "kv-cache-dtype": "kv_cache_dtype",
        "max-model-len": "context_length",
        "max-num-seqs": "max_concurrent_requests",
        "enforce-eager": "cuda_graphs",
        "language-model-only": "language_model_only",
        "trust-remote-code": "trust_remote_code",
        "runner": "task",
        "block-size": "vllm.block_size_tokens",
        "max-num-batched-tokens": "vllm.max_num_batched_tokens",
        "safetensors-load-strategy": "vllm.safetensors_load_strategy",
    },
    either={
        "tool-call-parser": "vllm.tool_call_parser",
        "enable-auto-tool-choice": "vllm.tool_call_parser",
        "reasoning-parser": "vllm.reasoning_parser",
    },
    reserved=frozenset(" ".join((_PARALLEL, _MEMORY, _NETWORK, _LOGGING, _IDENTITY)).split()),
    approval=frozenset(_APPROVAL.split()),
    approval_paths=frozenset(_APPROVAL_PATHS.split()),
    abbreviates=True,
    inline_values=True,
    always_rendered=frozenset({"enable-per-request-metrics", "runner"}),
)
