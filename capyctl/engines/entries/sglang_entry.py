"""Starts SGLang in this process: capyctl's settings held fast, keys off the command line.

Run by the engine's own interpreter as ``python3 -I sglang_entry.py COUNT ARGUMENT...``; the first
COUNT arguments are capyctl's own, the others are a profile's or a deployment's. Of the standard
library alone until SGLang is imported, because it is copied beside the state and runs without us.
"""

from __future__ import annotations

import argparse
import grp
import importlib
import importlib.util
import os
import pwd
import stat
import sys
from collections.abc import Iterator, MutableMapping, Sequence
from pathlib import Path
from typing import Any

EXIT_MISMATCH = 78
"""A reserved setting was changed, by an argument or by SGLang itself."""

RESERVED = """
admin_api_key api_key attn_cp_size attn_dp_size base_gpu_id config cpu_offload_gb
crash_dump_folder custom_sigquit_handler dcp_size delete_ckpt_after_loading device
disaggregation_mode dist_init_addr dp_size enable_cache_report enable_dp_attention
enable_draft_weights_cpu_backup enable_flexkv enable_hierarchical_cache
enable_http_worker_reuseport enable_http2 enable_lmcache enable_memory_saver enable_metrics
enable_metrics_for_all_schedulers enable_ssl_refresh enable_weights_cpu_backup encoder_only
ep_size export_metrics_to_file fastapi_root_path file_storage_path gpu_id_step grpc_mode
grpc_port host is_embedding kv_events_config log_level log_level_http log_requests
log_requests_level log_requests_target mem_fraction_static model_path
modelopt_checkpoint_restore_path modelopt_checkpoint_save_path modelopt_export_path nccl_port
nnodes node_rank port pp_size quantize_and_serve revision served_model_name sidecar sidecar_args
skip_server_warmup smg_grpc_mode smg_http_sidecar_port ssl_ca_certs ssl_certfile ssl_keyfile
ssl_keyfile_password tokenizer_path tokenizer_worker_num tool_server tp_size use_ray warmups
weight_cache_mode weight_version
"""
"""Destinations of the parser that only capyctl sets; a release has some of them."""

RESOLVED = """
dp_size enable_memory_saver enable_metrics enable_weights_cpu_backup host log_requests
mem_fraction_static model_path nnodes port pp_size served_model_name tp_size use_ray
"""
"""Those that SGLang's own resolution must have left as they were, where capyctl states them."""

SAVER = "torch_memory_saver"


class Refused(Exception):
    """SGLang is not started. ``exit_code`` and one sentence for the engine's log."""

    def __init__(self, exit_code: int, detail: str) -> None:
        super().__init__(detail)
        self.exit_code = exit_code


def main(argv: Sequence[str]) -> int:
    """Serves until told to end; the exit code."""
    try:
        ours, arguments = split(argv)
        inference, admin = take_keys(os.environ)
        mine = check(ours, arguments)
        server_args = build(arguments, inference=inference, admin=admin)
        resolve(server_args, mine)
    except Refused as refused:
        print(f"capyctl: {refused}", file=sys.stderr, flush=True)
        return refused.exit_code
    if mine.enable_memory_saver:
        report_saver()
    sys.argv = ["sglang", "serve", *arguments]
    serve(server_args)
    return 0


def split(argv: Sequence[str]) -> tuple[list[str], list[str]]:
    """Capyctl's own arguments, and all of them.

    Raises:
        Refused: the count is missing or larger than what follows.
    """
    count = int(argv[0]) if argv and argv[0].isdecimal() else -1
    arguments = list(argv[1:])
    if not 0 <= count <= len(arguments):
        raise Refused(2, "usage: sglang_entry.py COUNT ARGUMENT...")
    return arguments[:count], arguments


def take_keys(environ: MutableMapping[str, str]) -> tuple[str, str]:
    """Inference and admin key, out of the environment, so that no child inherits them.

    Raises:
        Refused: one is missing, or both are the same.
    """
    inference = environ.pop("CAPYCTL_ENGINE_API_KEY", "")
    admin = environ.pop("CAPYCTL_SGLANG_ADMIN_KEY", "")
    if not inference or not admin or inference == admin:
        raise Refused(2, "two different keys are needed in the environment")
    return inference, admin


def check(ours: Sequence[str], arguments: Sequence[str]) -> argparse.Namespace:
    """What capyctl's own arguments alone mean.

    Raises:
        Refused: something that is not capyctl's changes a reserved setting.
        SystemExit: the installed parser refuses them.
    """
    mine, whole = _parsed(ours), _parsed(arguments)
    changed = [
        name
        for name in RESERVED.split()
        if hasattr(whole, name) and getattr(whole, name) != getattr(mine, name)
    ]
    if changed:
        raise Refused(EXIT_MISMATCH, f"effective_args_mismatch: {', '.join(changed)}")
    return mine


def _parsed(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="sglang serve")
    _attribute("sglang.srt.server_args", "ServerArgs").add_cli_args(parser)
    return parser.parse_args(list(arguments))


def build(arguments: Sequence[str], *, inference: str, admin: str) -> Any:
    """SGLang's record of its settings, with the keys in it.

    Raises:
        Refused: this release has no such keys, so nothing would be guarded.
    """
    load_plugins = _optional("sglang.srt.plugins", "load_plugins")
    if load_plugins is not None:
        load_plugins()
    server_args = _attribute("sglang.srt.server_args", "prepare_server_args")(list(arguments))
    for name, key in (("api_key", inference), ("admin_api_key", admin)):
        if not hasattr(server_args, name):
            raise Refused(1, f"this SGLang knows no {name}; its version is not supported")
        setattr(server_args, name, key)
    return server_args


def resolve(server_args: Any, mine: argparse.Namespace) -> None:
    """Let SGLang decide what is left to it, and see that it decided nothing of capyctl's.

    Raises:
        Refused: it did.
    """
    resolve_once = getattr(server_args, "resolve_once", None)
    found = server_args
    if resolve_once is not None:
        resolve_once()
        view = _optional("sglang.srt.arg_groups.overrides", "resolving_view")
        found = server_args if view is None else view(server_args)
    changed = [
        name
        for name in RESOLVED.split()
        if getattr(mine, name, None) is not None
        and getattr(found, name, None) != getattr(mine, name)
    ]
    if changed:
        raise Refused(EXIT_MISMATCH, f"effective_args_mismatch: {', '.join(changed)}")


def serve(server_args: Any) -> None:
    """SGLang's own server, in this process, until it ends; its children end with it."""
    run_server = _attribute("sglang.launch_server", "run_server")
    kill_process_tree = _attribute("sglang.srt.utils", "kill_process_tree")
    try:
        run_server(server_args)
    finally:
        kill_process_tree(os.getpid(), include_parent=False)


def report_saver() -> None:
    """Say in the engine's log whether others may write the library that moves its memory."""
    for path in saver_libraries():
        outcome = writable_by_others(path)
        if outcome is not None:
            event = "capyctl_saver_library_permissions"
            print(f"{event} outcome={outcome} path={path}", file=sys.stderr, flush=True)


def saver_libraries() -> Iterator[Path]:
    """The shared objects of the memory saver, without importing it."""
    spec = importlib.util.find_spec(SAVER)
    if spec is None or not spec.origin:
        return
    package = Path(spec.origin).parent
    for folder in (package, package.parent):
        yield from sorted(folder.glob(f"{SAVER}*.so"))


def writable_by_others(path: Path) -> str | None:
    """``warned``, ``group_undetermined``, or None where its owner alone may write it."""
    held = path.stat()
    if held.st_mode & stat.S_IWOTH:
        return "warned"
    if not held.st_mode & stat.S_IWGRP:
        return None
    try:
        owner = pwd.getpwuid(held.st_uid).pw_name
        members = set(grp.getgrgid(held.st_gid).gr_mem) - {owner}
    except KeyError:
        return "group_undetermined"
    return "warned" if members else None


def _attribute(module: str, name: str) -> Any:
    try:
        return getattr(importlib.import_module(module), name)
    except AttributeError:
        text = f"this SGLang has no {module}.{name}; its version is not supported"
        raise Refused(1, text) from None


def _optional(module: str, name: str) -> Any:
    """None where this release has no such thing."""
    try:
        return getattr(importlib.import_module(module), name, None)
    except ModuleNotFoundError as missing:
        if not module.startswith(str(missing.name)):
            raise
        return None


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
