"""Starts one simulated engine of any family, from its arguments to its exit code."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Sequence

from capyctl.simulated.behaviour import BadDocument
from capyctl.simulated.command_line import BadUsage, Options, parse_llama, parse_vllm
from capyctl.simulated.engines import (
    LLAMACPP_VERSION,
    SGLANG_VERSION,
    TENSORFOLD_VERSION,
    VLLM_VERSION,
)
from capyctl.simulated.launch_context import LaunchContext, read_context
from capyctl.simulated.local_model import LocalModel, MissingModel, open_model
from capyctl.simulated.process_tree import ProcessTree, fork_tree
from capyctl.simulated.sglang_command_line import parse_sglang
from capyctl.simulated.sglang_processes import fork_sglang_tree
from capyctl.simulated.tensorfold_command_line import parse_tensorfold


def start_engine(arguments: Sequence[str]) -> int:
    """Run ``vllm …``, ``llamacpp …`` and so on until it ends; the exit code."""
    family, rest = (arguments[0] if arguments else ""), list(arguments[1:])
    start = _STARTS.get(family)
    if start is None:
        return _refuse(f"usage: engine_program.py {'|'.join(_STARTS)} …", 2)
    try:
        return start(rest)
    except BadDocument as error:
        return _refuse(f"simulated engine: {error}", 2)


def _refuse(text: str, exit_code: int) -> int:
    print(text, file=sys.stderr, flush=True)
    return exit_code


def _start_vllm(arguments: list[str]) -> int:
    if "--version" in arguments:
        print(VLLM_VERSION)
        return 0
    if arguments[:1] == ["serve"]:
        del arguments[0]
    try:
        options = parse_vllm(arguments)
        path = options.text("model") or next(iter(options.positional), "")
        options.number("max-num-seqs", 1)
    except BadUsage as error:
        usage = "usage: vllm serve [model_tag] [options]\nvllm serve: error: "
        return _refuse(f"{usage}{error}", 2)
    names = options.values.get("served-model-name", (path,))
    try:
        model = open_model(path)
    except MissingModel:
        return _refuse(f"OSError: Can't load the configuration of '{path}'.", 1)
    context = read_context(os.environ, model_path=path, served_names=names)
    tree = _fork(context, workers=True)
    # Late, so that the children above are small.
    from capyctl.simulated.vllm_engine import run_vllm

    return run_vllm(options, model=model, names=names, context=context, tree=tree, env=os.environ)


def _start_llama(arguments: list[str]) -> int:
    try:
        options = parse_llama(arguments)
        _check_llama(options)
    except BadUsage as error:
        return _refuse(str(error), 1)
    if options.has("version"):
        return _refuse(f"version: {LLAMACPP_VERSION} (build 11434, commit simulated)", 0)
    path = options.text("model")
    model: LocalModel | None
    try:
        model = open_model(path)
    except MissingModel:
        model = None
    names = tuple(name.strip() for name in options.text("alias", path).split(",") if name.strip())
    context = read_context(os.environ, model_path=path, served_names=names)
    tree = _fork(context, workers=False)
    from capyctl.simulated.llama_engine import run_llama

    return run_llama(options, model=model, names=names, context=context, tree=tree, env=os.environ)


def _start_sglang(arguments: list[str]) -> int:
    if arguments == ["version"]:
        print(f"sglang version: {SGLANG_VERSION}")
        return 0
    if arguments[:1] == ["serve"]:
        del arguments[0]
    try:
        options = parse_sglang(arguments)
        options.number("max-running-requests", 1)
        options.number("port", 30000)
    except BadUsage as error:
        return _refuse(f"usage: sglang serve [options]\nsglang serve: error: {error}", 2)
    path = options.text("model-path")
    name = options.text("served-model-name") or path
    try:
        model = open_model(path)
    except MissingModel:
        return _refuse(f"OSError: Can't load the configuration of '{path}'.", 1)
    context = read_context(os.environ, model_path=path, served_names=(name,))
    faults = context.behaviour.faults
    tree = fork_sglang_tree(survivor=faults.forks_child)
    if faults.ignores_sigterm:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    # Late, so that the children above are small.
    from capyctl.simulated.sglang_engine import run_sglang

    return run_sglang(options, model=model, name=name, context=context, tree=tree, env=os.environ)


def _start_tensorfold(arguments: list[str]) -> int:
    if arguments == ["--version"]:
        print(f"tensorfold {TENSORFOLD_VERSION}")
        return 0
    if arguments[:1] != ["serve"]:
        return _refuse("usage: tensorfold --version | serve MODEL [options]", 2)
    try:
        options = parse_tensorfold(arguments[1:])
        options.number("parallel", 8)
        options.number("port", 8080)
    except BadUsage as error:
        return _refuse(f"usage: tensorfold serve MODEL\ntensorfold serve: error: {error}", 2)
    (path,) = options.positional
    name = options.text("name") or path
    try:
        model = open_model(path)
    except MissingModel:
        return _refuse(f"tensorfold: no model at {path}", 1)
    context = read_context(os.environ, model_path=path, served_names=(name,))
    tree = _fork(context, workers=False)
    from capyctl.simulated.tensorfold_engine import run_tensorfold

    return run_tensorfold(
        options, model=model, name=name, context=context, tree=tree, env=os.environ
    )


def _check_llama(options: Options) -> None:
    for name, default in (("port", 8080), ("ctx-size", 0), ("parallel", 4)):
        try:
            options.number(name, default)
        except BadUsage:
            text = options.text(name)
            raise BadUsage(f"error: argument --{name}: invalid value: {text}") from None


def _fork(context: LaunchContext, *, workers: bool) -> ProcessTree:
    faults = context.behaviour.faults
    tree = fork_tree(workers=workers, survivor=faults.forks_child)
    if faults.ignores_sigterm:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    return tree


_STARTS: dict[str, Callable[[list[str]], int]] = {
    "vllm": _start_vllm,
    "llamacpp": _start_llama,
    "sglang": _start_sglang,
    "tensorfold": _start_tensorfold,
}
