"""The flags of the roles: settings of their documents that have a flag of their own."""

from __future__ import annotations

import attrs


@attrs.frozen
class Flag:
    """A flag of a role, with the words in its help."""

    name: str
    value: str | None
    help: str
    """``value`` is None for a switch."""
    choices: tuple[str, ...] | None = None


_SERVING = (
    Flag("--listen", "ADDRESS", "where inference is served (0.0.0.0:8443)"),
    Flag("--no-inference-auth", None, "serve inference without an API key"),
    Flag("--management-listen", "ADDRESS", "where management is served (127.0.0.1:7443)"),
)
_MACHINE = (
    Flag("--models-root", "DIR", "the models directory (~/models)"),
    Flag(
        "--model-sources", "POLICY", "whether models may be fetched at all", ("allowed", "disabled")
    ),
    Flag("--model-sources-max", "SIZE", "bound on all downloads together (500GiB)"),
    Flag("--model-sources-path", "DIR", "where downloads lie (the models directory)"),
    Flag(
        "--model-sources-plain-http", "POLICY", "whether http:// is fetched", ("allowed", "denied")
    ),
    Flag("--hf-endpoint", "URL", "the Hugging Face mirror to use"),
    Flag("--trust-declared-digest", "BOOL", "take a declared digest for measured (false)"),
    Flag("--vllm-bin", "PATH", "a vLLM executable to publish"),
    Flag("--sglang-bin", "PATH", "an SGLang interpreter to publish"),
    Flag("--tensorfold-bin", "PATH", "a TensorFold executable to publish"),
    Flag("--llamacpp-bin", "PATH", "a llama-server executable to publish"),
    Flag("--engine-fingerprint", "TEXT", "the build's name, instead of its version check"),
    Flag("--engine-args", "ARGS", 'arguments of every launch, as --engine-args="--a 1"'),
)
_CACHE = (Flag("--kv-cache", "SIZE", "KV cache of models on these executables that state none"),)
_MACHINE_MORE = (
    Flag("--deep-park", "ON", "whether these executables park", ("on", "off")),
    Flag("--trust-remote-code", "BOOL", "let models bring code of their own (false)"),
    Flag("--installation-drift", "POLICY", "on a changed installation", ("warn", "refuse")),
    Flag("--cuda-home", "DIR", "the CUDA toolkit of these executables"),
    Flag("--runtime-dir", "DIR", "the engine entry points: only runtime/ in the state directory"),
    Flag("--engine-ports", "A-B", "loopback ports of engines (8100-8199)"),
    Flag("--peer-address", "ADDRESS", "this machine's address in groups"),
    Flag("--rendezvous-ports", "A-B", "ports where groups meet (25000-25099)"),
    Flag("--require-rdma", "BOOL", "refuse groups without RDMA (false)"),
)
_STALL = (Flag("--group-stall-timeout", "TIME", "how long a group may make no progress (120s)"),)
_LOGS = (Flag("--debug-engine-logs", None, "let engines log everything, prompts included"),)
STANDALONE_FLAGS = (*_SERVING, *_MACHINE, *_CACHE, *_MACHINE_MORE, *_STALL, *_LOGS)
SERVER_FLAGS = (*_SERVING, *_STALL)
HOST_FLAGS = (*_MACHINE, *_MACHINE_MORE, *_LOGS)
FLAGS = {"standalone": STANDALONE_FLAGS, "server": SERVER_FLAGS, "host": HOST_FLAGS}


def destination(flag: str) -> str:
    """The attribute that an option's value gets."""
    return flag.lstrip("-").replace("-", "_")
