"""Reads the command lines of the real engines: every option they have that matters, no others."""

from __future__ import annotations

import attrs


class BadUsage(Exception):
    """The command line is refused, as the engine would word it."""


@attrs.frozen(kw_only=True)
class Options:
    """Values by option name without dashes; a switch has the value ``""``."""

    values: dict[str, tuple[str, ...]]
    positional: tuple[str, ...] = ()

    def has(self, name: str) -> bool:
        return name in self.values

    def text(self, name: str, default: str = "") -> str:
        found = self.values.get(name, ())
        return found[-1] if found else default

    def number(self, name: str, default: int) -> int:
        """Raises:
        BadUsage: the value is no number.
        """
        text = self.text(name)
        try:
            return human_number(text) if text else default
        except ValueError:
            raise BadUsage(f"argument --{name}: invalid int value: {text!r}") from None

    def ratio(self, name: str, default: float) -> float:
        """Raises:
        BadUsage: the value is no number from 0 to 1.
        """
        text = self.text(name)
        try:
            found = float(text) if text else default
        except ValueError:
            raise BadUsage(f"argument --{name}: invalid float value: {text!r}") from None
        if not 0 < found <= 1:
            raise BadUsage(f"argument --{name}: {found} is not in (0, 1]")
        return found


_MULTIPLES = {"k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12}
_BINARY = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}


def human_number(text: str) -> int:
    """``25600``, ``25.6k`` (decimal) or ``1G`` (binary), as vLLM reads them.

    Raises:
        ValueError: none of these.
    """
    factor = (_MULTIPLES | _BINARY).get(text[-1:], 1)
    return int(float(text[:-1]) * factor) if factor != 1 else int(text)


def parse_vllm(arguments: list[str]) -> Options:
    """``serve MODEL --option value …``; underscores stand for dashes, prefixes for options.

    Raises:
        BadUsage: unknown option, a value is missing or one too many.
    """
    options = _Collected()
    rest = [*arguments]
    while rest:
        word = rest.pop(0)
        if not word.startswith("-") or word == "-":
            options.positional.append(word)
            continue
        name, equals, value = word.partition("=")
        key = _vllm_name(name)
        if key in _VLLM_SWITCHES:
            if equals:
                raise BadUsage(f"argument {name}: ignored explicit argument {value!r}")
            options.put(key, "")
        elif equals:
            options.put(key, value)
        elif key in _VLLM_LISTS:
            taken = _take_values(rest)
            if not taken:
                raise BadUsage(f"argument {name}: expected at least one argument")
            options.put(key, *taken)
        else:
            options.put(key, _one_value(name, rest))
    return options.done()


def _vllm_name(word: str) -> str:
    key = _VLLM_SHORT.get(word) or word.removeprefix("--").replace("_", "-")
    if word.startswith("--") or word in _VLLM_SHORT:
        key = key.removeprefix("no-") if key.removeprefix("no-") in _VLLM_SWITCHES else key
        known = _VLLM_SWITCHES | _VLLM_LISTS | _VLLM_VALUES
        if key in known:
            return key
        meant = [name for name in known if name.startswith(key)]
        if len(meant) == 1:
            return meant[0]
        if meant:
            matches = ", ".join(f"--{name}" for name in sorted(meant))
            raise BadUsage(f"ambiguous option: {word} could match {matches}")
    raise BadUsage(f"unrecognized arguments: {word}")


def parse_llama(arguments: list[str]) -> Options:
    """``--option value …`` with llama-server's short names; ``--option=value`` is unknown to it.

    Raises:
        BadUsage: unknown option, or a value is missing.
    """
    options = _Collected()
    rest = [*arguments]
    while rest:
        word = rest.pop(0)
        name = "--" + word[2:].replace("_", "-") if word.startswith("--") else word
        key = _LLAMA_SHORT.get(name, name.removeprefix("--"))
        if key in _LLAMA_SWITCHES:
            options.put(key, "")
        elif key in _LLAMA_VALUES and name.startswith("-"):
            if not rest:
                raise BadUsage(f"error: argument {word}: expected value for argument")
            options.put(key, rest.pop(0))
        else:
            raise BadUsage(f"error: invalid argument: {word}")
    return options.done()


class _Collected:
    def __init__(self) -> None:
        self._values: dict[str, tuple[str, ...]] = {}
        self.positional: list[str] = []

    def put(self, key: str, *values: str) -> None:
        self._values[key] = values

    def done(self) -> Options:
        return Options(values=self._values, positional=tuple(self.positional))


def _take_values(rest: list[str]) -> list[str]:
    taken = []
    while rest and not rest[0].startswith("--"):
        taken.append(rest.pop(0))
    return taken


def _one_value(name: str, rest: list[str]) -> str:
    if not rest or (rest[0].startswith("--") and len(rest[0]) > 2):
        raise BadUsage(f"argument {name}: expected one argument")
    return rest.pop(0)


_VLLM_SHORT = {
    "-tp": "tensor-parallel-size",
    "-pp": "pipeline-parallel-size",
    "-dp": "data-parallel-size",
    "-q": "quantization",
    "-n": "nnodes",
    "-r": "node-rank",
}
_VLLM_LISTS = frozenset({
    "served-model-name", "api-key", "middleware", "lora-modules", "logits-processors",
    "sleep-preserve-parameter-names", "cudagraph-capture-sizes",
})  # fmt: skip
_VLLM_SWITCHES = frozenset({
    "enable-sleep-mode", "enforce-eager", "trust-remote-code", "enable-prefix-caching",
    "enable-chunked-prefill", "enable-auto-tool-choice", "disable-log-stats",
    "enable-log-requests", "disable-log-requests", "enable-log-outputs",
    "enable-per-request-metrics", "enable-server-load-tracking", "enable-force-include-usage",
    "enable-prompt-tokens-details", "enable-request-id-headers", "enable-expert-parallel",
    "enable-lora", "headless", "disable-uvicorn-access-log", "disable-fastapi-docs",
    "disable-frontend-multiprocessing", "sleep-mode-offload-cudagraph", "language-model-only",
    "enable-cumem-allocator", "enable-nccl-comm-suspend", "enable-mfu-metrics", "async-scheduling",
    "disable-custom-all-reduce", "disable-cascade-attn", "disable-sliding-window",
    "disable-hybrid-kv-cache-manager", "skip-tokenizer-init", "skip-mm-profiling",
    "enable-tokenizer-info-endpoint", "enable-layerwise-nvtx-tracing", "enable-scale-out",
    "generation-tokens-only", "calculate-kv-scales", "return-tokens-as-token-ids",
    "exclude-tools-when-tool-choice-none", "trust-request-chat-template", "enable-prompt-embeds",
    "data-parallel-hybrid-lb", "data-parallel-external-lb", "allow-credentials",
})  # fmt: skip
_VLLM_VALUES = frozenset({
    "model", "host", "port", "uds", "root-path", "uvicorn-log-level", "log-config-file",
    "ssl-keyfile", "ssl-certfile", "ssl-ca-certs", "kv-cache-memory-bytes",
    "gpu-memory-utilization", "device-memory-utilization", "num-gpu-blocks-override",
    "max-model-len", "max-num-seqs", "max-num-batched-tokens", "max-num-partial-prefills",
    "max-num-queued-reqs", "max-num-queued-tokens", "max-logprobs", "max-log-len",
    "kv-cache-dtype", "block-size", "cpu-offload-gb", "kv-offloading-size",
    "kv-offloading-backend", "swap-space", "tensor-parallel-size", "pipeline-parallel-size",
    "data-parallel-size", "data-parallel-size-local", "data-parallel-rank",
    "data-parallel-start-rank", "data-parallel-address", "data-parallel-rpc-port",
    "data-parallel-backend", "distributed-executor-backend", "device", "device-ids", "nnodes",
    "node-rank", "master-addr", "master-port", "load-format", "download-dir", "revision",
    "code-revision", "tokenizer", "tokenizer-mode", "tokenizer-revision", "hf-token",
    "hf-config-path", "hf-overrides", "config", "config-format", "chat-template",
    "chat-template-content-format", "default-chat-template-kwargs", "response-role", "dtype",
    "quantization", "seed", "runner", "convert", "task", "tool-call-parser", "tool-parser-plugin",
    "reasoning-parser", "reasoning-parser-plugin", "shutdown-timeout", "api-server-count",
    "disable-access-log-for-endpoints", "speculative-config", "kv-transfer-config",
    "kv-events-config", "compilation-config", "structured-outputs-config", "additional-config",
    "attention-backend", "mamba-cache-dtype", "mamba-ssm-cache-dtype", "mamba-block-size",
    "mamba-cache-mode", "safetensors-load-strategy", "model-loader-extra-config",
    "model-impl", "override-generation-config", "generation-config", "limit-mm-per-prompt",
    "mm-processor-kwargs", "mm-processor-cache-gb", "mm-encoder-tp-mode", "media-io-kwargs",
    "allowed-local-media-path", "allowed-media-domains", "prefix-caching-hash-algo",
    "stream-interval", "scheduling-policy", "scheduler-cls", "worker-cls",
    "worker-extension-cls", "io-processor-plugin", "otlp-traces-endpoint", "logprobs-mode",
    "sse-keep-alive-interval", "h11-max-incomplete-event-size", "max-cudagraph-capture-size",
    "optimization-level", "performance-mode", "allowed-origins", "allowed-methods",
    "allowed-headers", "watermark-config", "engram-config", "logging-config", "log-level",
})  # fmt: skip

_LLAMA_SHORT = {
    "-m": "model", "-a": "alias", "-c": "ctx-size", "-np": "parallel", "-ngl": "gpu-layers",
    "--n-gpu-layers": "gpu-layers", "-ctk": "cache-type-k", "-ctv": "cache-type-v",
    "-fa": "flash-attn", "-b": "batch-size", "-ub": "ubatch-size", "-t": "threads",
    "-tb": "threads-batch", "-sm": "split-mode", "-ts": "tensor-split", "-mg": "main-gpu",
    "-dev": "device", "-fit": "fit", "-fitt": "fit-target", "-fitc": "fit-ctx", "-n": "predict",
    "--n-predict": "predict", "-s": "seed", "-kvu": "kv-unified", "-no-kvu": "no-kv-unified",
    "-lm": "load-mode", "-cram": "cache-ram", "-mm": "mmproj", "-v": "verbose",
    "--no-ui": "no-webui", "--embeddings": "embedding", "-hf": "hf-repo", "--api-key": "api-key",
    "-cb": "cont-batching", "-nkvo": "no-kv-offload", "-ot": "override-tensor", "-to": "timeout",
    "-md": "model-draft", "--spec-draft-model": "model-draft", "-lv": "log-verbosity",
    "--temperature": "temp", "--rerank": "reranking",
}  # fmt: skip
_LLAMA_SWITCHES = frozenset({
    "metrics", "slots", "no-slots", "props", "offline", "no-webui", "webui", "jinja", "no-jinja",
    "embedding", "reranking", "mlock", "mmap", "no-mmap", "kv-unified", "no-kv-unified",
    "context-shift", "no-context-shift", "cors-credentials", "no-cors-credentials",
    "cont-batching", "no-cont-batching", "warmup", "no-warmup", "verbose", "log-jsonl",
    "log-timestamps", "log-prefix", "swa-full", "kv-offload", "no-kv-offload", "cpu-moe",
    "no-mmproj", "mmproj-offload", "no-mmproj-offload", "check-tensors", "special", "version",
    "cache-prompt", "no-cache-prompt", "no-models-autoload", "no-perf", "perf", "no-host",
    "no-repack", "repack", "direct-io", "no-direct-io", "reuse-port", "spm-infill", "escape",
})  # fmt: skip
_LLAMA_VALUES = frozenset({
    "model", "alias", "host", "port", "ctx-size", "parallel", "gpu-layers", "cache-type-k",
    "cache-type-v", "flash-attn", "batch-size", "ubatch-size", "threads", "threads-batch",
    "threads-http", "split-mode", "tensor-split", "main-gpu", "device", "fit", "fit-target",
    "fit-ctx", "predict", "seed", "load-mode", "cache-ram", "cache-reuse", "mmproj", "api-key",
    "api-key-file", "timeout", "sse-ping-interval", "sleep-idle-seconds", "slot-save-path",
    "chat-template", "chat-template-file", "chat-template-kwargs", "reasoning-format",
    "reasoning-budget", "reasoning", "cors-origins", "cors-methods", "cors-headers", "tags",
    "rope-scaling", "rope-scale", "rope-freq-base", "rope-freq-scale", "yarn-ext-factor",
    "yarn-orig-ctx", "yarn-attn-factor", "numa", "prio", "prio-batch", "poll", "cpu-mask",
    "cpu-range", "temp", "top-k", "top-p", "min-p", "repeat-penalty", "presence-penalty",
    "frequency-penalty", "samplers", "grammar", "grammar-file", "json-schema",
    "json-schema-file", "lora", "lora-scaled", "control-vector", "model-draft", "spec-type",
    "draft-max", "draft-min", "override-tensor", "override-kv", "n-cpu-moe", "n-cpu-ffn",
    "log-file", "log-verbosity", "log-colors", "rpc", "path", "api-prefix", "hf-repo", "hf-file",
    "models-dir", "models-max", "models-preset", "keep", "pooling", "slot-prompt-similarity",
    "media-path", "ssl-key-file", "ssl-cert-file", "ctx-checkpoints", "defrag-thold",
    "image-min-tokens", "image-max-tokens", "lookup-cache-static", "lookup-cache-dynamic",
})  # fmt: skip
