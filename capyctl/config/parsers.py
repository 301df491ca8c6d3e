"""Tool and reasoning parsers that fit a model's family, where the document leaves the choice."""

from __future__ import annotations

import attrs

from capyctl.config.engine_config import EngineConfig
from capyctl.config.problems import ProblemClass, invalid

_BY_MODEL = {
    "vllm": {
        "qwen3": ("hermes", "qwen3"),
        "qwen3_moe": ("hermes", "qwen3"),
        "qwen3_5": ("qwen3_coder", "qwen3"),
        "qwen3_5_moe": ("qwen3_coder", "qwen3"),
    },
    "sglang": {
        "qwen3": ("qwen25", "qwen3"),
        "qwen3_moe": ("qwen25", "qwen3"),
        "qwen3_5": ("qwen3_coder", "qwen3"),
        "qwen3_5_moe": ("qwen3_coder", "qwen3"),
    },
}
_KINDS = (("tool_call_parser", "--tool-call-parser"), ("reasoning_parser", "--reasoning-parser"))


@attrs.frozen(kw_only=True)
class Parser:
    """One chosen parser. ``name`` is None where none is rendered."""

    name: str | None
    source: str
    """``declared``, ``off``, ``extra_args``, ``host_fixed``, ``model_family``,
    ``unknown_family`` or, before the model was measured, ``on_host``."""


def choose_parsers(
    family: str,
    settings: EngineConfig,
    *,
    model_type: str | None,
    measured: bool,
    profile_args: tuple[str, ...],
) -> dict[str, Parser]:
    """`tool_call_parser` and `reasoning_parser` of a vLLM or SGLang deployment.

    Raises:
        Refused: ``invalid_config`` where a parser is stated as a field and as an argument.
    """
    if family not in _BY_MODEL:
        return {}
    block = settings.vllm if family == "vllm" else settings.sglang
    known = _BY_MODEL[family].get(model_type or "")
    chosen: dict[str, Parser] = {}
    for position, (field, option) in enumerate(_KINDS):
        stated = getattr(block, field) if block is not None else "auto"
        given = _given(option, settings.extra_args, profile_args)
        if given is not None and stated != "auto":
            path = f"engine_config.{family}.{field}"
            raise invalid(ProblemClass.CONFLICT, path, f"{option} states it too")
        if given is not None:
            chosen[field] = Parser(name=None, source=given)
        elif stated != "auto":
            off = stated == "none"
            chosen[field] = Parser(name=None if off else stated, source=_stated(off))
        elif known is not None:
            chosen[field] = Parser(name=known[position], source="model_family")
        else:
            chosen[field] = Parser(name=None, source="unknown_family" if measured else "on_host")
    return chosen


def _stated(off: bool) -> str:
    return "off" if off else "declared"


def _given(option: str, extra: list[str], fixed: tuple[str, ...]) -> str | None:
    for source, tokens in (("extra_args", extra), ("host_fixed", fixed)):
        if any(spelled(token) == option for token in tokens):
            return source
    return None


def spelled(token: str) -> str:
    """An option's name as engines read it: dashes for underscores, without ``=value``."""
    name = token.partition("=")[0]
    return "--" + name[2:].replace("_", "-") if name.startswith("--") else name
