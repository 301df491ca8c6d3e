"""What the snapshot says of settings that were left to capyctl: parsers, and the context."""

from __future__ import annotations

from typing import Any

from capyctl.domain.specs import ResolvedSpec


def choices_of(resolved: ResolvedSpec | None) -> dict[str, Any]:
    """`context` and, for engines that have them, `parsers`; nothing until the files are measured.

    Tokens and requests are numbers; null is the engine's own choice.
    """
    if resolved is None or resolved.provisional:
        return {}
    context: dict[str, Any] = {"length": resolved.engine.context_length}
    if resolved.notes:
        context["warning"] = "; ".join(resolved.notes)
    if resolved.running_limit is not None:
        context["running_limit"] = resolved.running_limit
    found: dict[str, Any] = {"context": context}
    if resolved.parsers:
        found["parsers"] = {
            parser.field: {"name": parser.name, "source": parser.source}
            for parser in resolved.parsers
        }
    return found
