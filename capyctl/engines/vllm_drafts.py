"""vLLM's `--speculative-config`: what it says, and a deployment's draft model in it."""

from __future__ import annotations

import json
from typing import Any

import attrs

from capyctl.domain.launches import LaunchOrder
from capyctl.engines.arguments import split_options, table_of

OPTION = "speculative-config"
WITHOUT_WEIGHTS = frozenset({"ngram", "suffix"})
"""Methods that draft from what was said before."""


def with_draft(order: LaunchOrder) -> LaunchOrder:
    """The order with its draft model in the option's JSON, wherever that is given.

    Raises:
        ValueError: the option is missing, is no JSON object, or names a model itself.
    """
    engine = order.engine
    if engine.draft_path is None:
        return order
    profile_args = _merged(engine.profile_args, engine.draft_path)
    extra_args = _merged(engine.extra_args, engine.draft_path)
    if (profile_args, extra_args) == (engine.profile_args, engine.extra_args):
        raise ValueError("model.draft: vLLM drafts with --speculative-config in extra_args only")
    engine = attrs.evolve(engine, profile_args=profile_args, extra_args=extra_args)
    return attrs.evolve(order, engine=engine)


def drafts_by_weights(order: LaunchOrder) -> bool:
    """Whether it drafts with weights of its own: a draft model, or layers made for it."""
    table = table_of("vllm")
    arguments = (*order.engine.profile_args, *order.engine.extra_args)
    for option in split_options(table, arguments):
        if table.canonical(option.written) == OPTION and option.values:
            return _object(option.values[0]).get("method") not in WITHOUT_WEIGHTS
    return False


def _merged(arguments: tuple[str, ...], draft_path: str) -> tuple[str, ...]:
    table = table_of("vllm")
    found: list[str] = []
    for option in split_options(table, arguments):
        if table.canonical(option.written) != OPTION or not option.values:
            found += option.tokens
            continue
        stated = _object(option.values[0])
        if "model" in stated:
            raise ValueError("model.draft: --speculative-config names a model too")
        value = json.dumps({**stated, "model": draft_path}, separators=(",", ":"))
        found += [option.written, value]
    return tuple(found)


def _object(text: str) -> dict[str, Any]:
    try:
        found = json.loads(text)
    except ValueError:
        found = None
    if not isinstance(found, dict):
        raise ValueError("engine_config.extra_args: --speculative-config needs one JSON object")
    return found
