"""Classes of SGLang's command-line options."""

from __future__ import annotations

from capyctl.engines.options import OptionTable

_NETWORK = """
host port fastapi-root-path api-key admin-api-key enable-http2 http2-max-concurrent-streams
http2-initial-connection-window-size ssl-keyfile ssl-certfile ssl-ca-certs ssl-keyfile-password
enable-ssl-refresh enable-http-worker-reuseport file-storage-path tool-server
"""

_SIDECARS = """
smg-grpc-mode grpc-mode grpc-port grpc-worker-threads grpc-response-timeout-secs sidecar
sidecar-args smg-http-sidecar-port load-publish-endpoint kv-events-config
"""

_IDENTITY = """
model-path model served-model-name revision config help version model-type weight-version
tokenizer-path decrypted-config-file decrypted-draft-config-file
"""

_PARALLEL = """
tp-size tensor-parallel-size pp-size pipeline-parallel-size dp-size data-parallel-size ep-size
expert-parallel-size ep moe-dp-size attn-dp-size attn-cp-size dcp-size dwdp-size nnodes node-rank
nccl-port dist-init-addr dist-timeout base-gpu-id gpu-id-step device use-ray enable-dp-attention
enable-dp-lm-head load-balance-method ep-join-mode ep-join-rank-offset elastic-ep-backend
gated-launch-port
"""

_MEMORY = """
mem-fraction-static cpu-offload-gb offload-group-size offload-num-in-group offload-prefetch-step
offload-mode enable-memory-saver enable-weights-cpu-backup enable-draft-weights-cpu-backup
weight-cache-mode weight-cache-socket weight-cache-timeout delete-ckpt-after-loading
startup-weight-load-mode checkpoint-engine-wait-weights-before-ready enable-hierarchical-cache
hicache-ratio hicache-size hicache-host-memory-mode hicache-host-memory-fraction
hicache-write-policy hicache-io-backend hicache-mem-layout hicache-storage-backend
hicache-storage-prefetch-policy hicache-storage-backend-extra-config enable-lmcache
lmcache-config-file enable-flexkv flexkv-config-file custom-sigquit-handler
"""

_LOGGING = """
log-level log-level-http log-requests log-requests-level log-requests-format log-requests-target
uvicorn-access-log-exclude-prefixes crash-dump-folder show-time-cost enable-metrics
enable-metrics-for-all-schedulers export-metrics-to-file export-metrics-to-file-dir
enable-cache-report skip-server-warmup warmups enable-request-time-stats-logging stat-loggers
debug-tensor-dump-output-folder debug-tensor-dump-input-file
"""

_ELSEWHERE = """
disaggregation-mode disaggregation-transfer-backend disaggregation-bootstrap-port
disaggregation-ib-device encoder-only language-only encoder-urls encoder-transfer-backend
encoder-bootstrap-port encoder-register-urls enable-pdmux pdmux-config-path quantize-and-serve
modelopt-quant modelopt-checkpoint-restore-path modelopt-checkpoint-save-path modelopt-export-path
remote-instance-weight-loader-seed-instance-ip
remote-instance-weight-loader-seed-instance-service-port
remote-instance-weight-loader-send-weights-group-ports remote-instance-weight-loader-backend
"""

_APPROVAL = """
custom-weight-loader enable-custom-logit-processor model-loader-extra-config forward-hooks
json-model-override-args watermark-config modelexpress-config
"""

_APPROVAL_PATHS = """
speculative-draft-model-path speculative-draft-model speculative-token-map uno-lora-path
speculative-ngram-external-corpus-path chat-template completion-template kt-weight-path
"""

SGLANG_OPTIONS = OptionTable(
    family="sglang",
    typed={
        "dtype": "dtype",
        "quantization": "quantization",
        "kv-cache-dtype": "kv_cache_dtype",
        "context-length": "context_length",
        "max-running-requests": "max_concurrent_requests",
        "disable-cuda-graph": "cuda_graphs",
        "language-model-only": "language_model_only",
        "trust-remote-code": "trust_remote_code",
        "is-embedding": "task",
        "max-total-tokens": "sglang.max_total_tokens",
        "chunked-prefill-size": "sglang.chunked_prefill_size",
        "tokenizer-worker-num": "sglang.tokenizer_workers",
    },
    either={
        "tool-call-parser": "sglang.tool_call_parser",
        "reasoning-parser": "sglang.reasoning_parser",
    },
    reserved=frozenset(
        " ".join((_NETWORK, _SIDECARS, _IDENTITY, _PARALLEL, _MEMORY, _LOGGING, _ELSEWHERE)).split()
    ),
    approval=frozenset(_APPROVAL.split()),
    approval_paths=frozenset(_APPROVAL_PATHS.split()),
    abbreviates=True,
    inline_values=True,
    always_rendered=frozenset({"tokenizer-worker-num", "is-embedding"}),
)
