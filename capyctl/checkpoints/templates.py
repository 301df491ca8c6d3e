"""What a model's chat template says of parsers: how it has tools called, whether it thinks."""

from __future__ import annotations

import re
from typing import Any

from capyctl.domain.checkpoints import TemplateMarks, ToolStyle

FILES = ("chat_template.jinja", "tokenizer_config.json", "chat_template.json")
"""Where a template may be, and in which order one is believed."""
_JSON_CALL = re.compile(r"<tool_call>(?:\\n|\s)*(?:\{\{-?\s*['\"])?\s*\{\\?[\"']")
_JSON_SHAPE = re.compile(r"[\"']name\\?[\"']\s*:.{0,80}[\"']arguments\\?[\"']", re.DOTALL)


def template_in(name: str, content: str, config: dict[str, Any]) -> str | None:
    """The template that one of `FILES` holds; ``config`` is its content where it is JSON."""
    if name.endswith(".jinja"):
        return content
    found = config.get("chat_template")
    if isinstance(found, list):
        named = {one.get("name"): one.get("template") for one in found if isinstance(one, dict)}
        found = named.get("default") or next(iter(named.values()), None)
    return found if isinstance(found, str) else None


def marks_of(template: str) -> TemplateMarks:
    """Pure; looks at words only, whatever else the template does."""
    tools = None
    if "<function=" in template:
        tools = ToolStyle.FUNCTION
    elif "<tool_call>" in template and (
        _JSON_CALL.search(template) or _JSON_SHAPE.search(template)
    ):
        tools = ToolStyle.JSON
    return TemplateMarks(tools=tools, thinks="<think>" in template)
