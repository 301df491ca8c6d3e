"""Tool and reasoning parsers that fit a model, where the document leaves the choice."""

from __future__ import annotations

import attrs

from capyctl.config.engine_config import EngineConfig
from capyctl.config.problems import ProblemClass, invalid
from capyctl.domain.checkpoints import CheckpointFacts, TemplateMarks, ToolStyle

_MODELS = frozenset({"qwen3", "qwen3_moe", "qwen3_5", "qwen3_5_moe"})
_TOOLS = {
    ("vllm", ToolStyle.JSON): "hermes",
    ("sglang", ToolStyle.JSON): "qwen25",
    ("vllm", ToolStyle.FUNCTION): "qwen3_coder",
    ("sglang", ToolStyle.FUNCTION): "qwen3_coder",
}
_REASONING = "qwen3"
_KINDS = (("tool_call_parser", "--tool-call-parser"), ("reasoning_parser", "--reasoning-parser"))
_TEXTUAL = ("generate", "transcribe")


@attrs.frozen(kw_only=True)
class Parser:
    """One chosen parser. ``name`` is None where none is rendered."""

    name: str | None
    source: str
    """``declared``, ``off``, ``extra_args``, ``host_fixed``; ``model_family`` where the template
    of a known family decided, ``unsupported`` where it has no use for one, ``unknown_family``
    also without a template, and ``on_host`` before the model was measured."""


def choose_parsers(
    family: str,
    settings: EngineConfig,
    *,
    facts: CheckpointFacts | None,
    profile_args: tuple[str, ...],
) -> dict[str, Parser]:
    """`tool_call_parser` and `reasoning_parser` of a vLLM or SGLang deployment.

    Raises:
        Refused: ``invalid_config`` where a parser is stated as a field and as an argument.
    """
    if family not in ("vllm", "sglang"):
        return {}
    block = settings.vllm if family == "vllm" else settings.sglang
    chosen: dict[str, Parser] = {}
    for field, option in _KINDS:
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
        else:
            chosen[field] = _fitting(family, field, settings.task, facts)
    return chosen


def _fitting(family: str, field: str, task: str, facts: CheckpointFacts | None) -> Parser:
    """By the model's family and what its template says."""
    if task not in _TEXTUAL:
        return Parser(name=None, source="unsupported")
    if facts is None:
        return Parser(name=None, source="on_host")
    if facts.model_type not in _MODELS or facts.template is None:
        return Parser(name=None, source="unknown_family")
    name = _by_template(family, field, facts.template)
    return Parser(name=name, source="unsupported" if name is None else "model_family")


def _by_template(family: str, field: str, template: TemplateMarks) -> str | None:
    if field == "reasoning_parser":
        return _REASONING if template.thinks else None
    return None if template.tools is None else _TOOLS[family, template.tools]


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
