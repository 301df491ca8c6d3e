"""Speculative decoding: what arguments say of it, and whether a draft goes with them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import attrs

from capyctl.config.deployment import DeploymentDocument
from capyctl.config.parsers import spelled
from capyctl.config.problems import ProblemClass, invalid, unsupported
from capyctl.domain.devices import Profile

_FIELD = "model.draft"
_WITHOUT_WEIGHTS = frozenset({"ngram", "suffix", "none", ""})
"""Methods that draft from what was said before."""


@attrs.frozen(kw_only=True)
class Speculation:
    """What the arguments switch on."""

    method: str
    """In small letters, as vLLM's `method` or SGLang's algorithm."""
    tokens: int | None = None
    """Drafted at a time, where it is stated."""
    names_model: bool = False
    """The arguments name a draft model by themselves."""

    @property
    def has_weights(self) -> bool:
        """Whether it drafts by weights, in a model of its own or in layers of the model."""
        return self.method not in _WITHOUT_WEIGHTS


def speculation_of(family: str, arguments: Sequence[str]) -> Speculation | None:
    """None where an engine decodes plainly, and for other engines than vLLM and SGLang."""
    values = {spelled(name): value for name, value in with_next(arguments)}
    if family == "vllm" and "--speculative-config" in values:
        stated = _object(values["--speculative-config"])
        return Speculation(
            method=str(stated.get("method", "")).lower() or "draft_model",
            tokens=_count(stated.get("num_speculative_tokens")),
            names_model="model" in stated,
        )
    if family == "sglang" and "--speculative-algorithm" in values:
        return Speculation(
            method=values["--speculative-algorithm"].lower(),
            tokens=_count(values.get("--speculative-num-draft-tokens")),
            names_model=bool(
                {"--speculative-draft-model-path", "--speculative-draft-model"} & set(values)
            ),
        )
    return None


def check_draft(parsed: DeploymentDocument, profile: Profile) -> None:
    """Refuse a draft model that the engine would not use, or would be given twice.

    Raises:
        Refused: ``invalid_config`` at `model.draft`, with what to do.
    """
    if parsed.model.draft is None:
        return
    arguments = (*profile.args, *parsed.engine_config.extra_args)
    if profile.family == "llamacpp":
        raise unsupported(
            _FIELD, "llama.cpp takes its draft as an argument: use --model-draft in extra_args"
        )
    if profile.family == "tensorfold":
        names = {spelled(token) for token in arguments}
        if {"--drafter", "--no-drafts"} & names:
            raise invalid(ProblemClass.CONFLICT, _FIELD, "--drafter or --no-drafts is given too")
        return
    speculation = speculation_of(profile.family, arguments)
    if speculation is None or not speculation.has_weights:
        raise unsupported(_FIELD, _switch_on(profile.family))
    if speculation.names_model:
        raise invalid(ProblemClass.CONFLICT, _FIELD, "the arguments name a draft model too")
    if profile.family == "vllm" and speculation.tokens is None:
        raise unsupported(_FIELD, _switch_on(profile.family))


def with_next(arguments: Sequence[str]) -> list[tuple[str, str]]:
    """Each token and what may be its value: after its ``=``, else the token after it."""
    following = (*arguments, "")[1:]
    pairs = zip(arguments, following, strict=True)
    return [
        (token, token.partition("=")[2] if token.startswith("--") and "=" in token else after)
        for token, after in pairs
    ]


def _switch_on(family: str) -> str:
    if family == "sglang":
        return "its engine drafts with --speculative-algorithm in extra_args only"
    return (
        "its engine drafts with --speculative-config in extra_args only, which states method and "
        "num_speculative_tokens"
    )


def _object(text: str) -> dict[str, Any]:
    try:
        found = json.loads(text)
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def _count(value: object) -> int | None:
    text = str(value)
    return int(text) if text.isdecimal() and 0 < int(text) < 1 << 16 else None
