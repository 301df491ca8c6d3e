"""Starts one simulated engine of either family, from its arguments to its exit code."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Sequence

from capyctl.simulated.behaviour import BadDocument
from capyctl.simulated.command_line import BadUsage, Options, parse_llama, parse_vllm
from capyctl.simulated.engines import LLAMACPP_VERSION, VLLM_VERSION
from capyctl.simulated.launch_context import LaunchContext, read_context
from capyctl.simulated.local_model import LocalModel, MissingModel, open_model
from capyctl.simulated.process_tree import ProcessTree, fork_tree


def start_engine(arguments: Sequence[str]) -> int:
    """Run ``vllm …`` or ``llamacpp …`` until it ends; the exit code."""
    family, rest = (arguments[0] if arguments else ""), list(arguments[1:])
    try:
        if family == "vllm":
            return _start_vllm(rest)
        if family == "llamacpp":
            return _start_llama(rest)
    except BadDocument as error:
        return _refuse(f"simulated engine: {error}", 2)
    return _refuse("usage: engine_program.py vllm|llamacpp …", 2)


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
