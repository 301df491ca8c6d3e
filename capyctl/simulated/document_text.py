"""The text of a simulated machine's document, as JSON or YAML: no key twice, nothing multiplied."""

from __future__ import annotations

import json
from collections.abc import Hashable
from typing import Any

from capyctl.simulated.behaviour import BadDocument

DOCUMENT_BYTES_MAX = 1 << 20


def parse_text(text: str, what: str) -> object:
    """The value that ``text`` writes: JSON when it begins with a brace, else YAML.

    Raises:
        BadDocument: neither, too large, a key stated twice, or an alias; ``what`` is said.
    """
    if len(text.encode(errors="replace")) > DOCUMENT_BYTES_MAX:
        raise BadDocument(f"{what} is larger than {DOCUMENT_BYTES_MAX} bytes")
    return _json(text, what) if text.lstrip().startswith("{") else _yaml(text, what)


def _json(text: str, what: str) -> object:
    try:
        return json.loads(text, object_pairs_hook=_without_repeats)
    except BadDocument:
        raise
    except (ValueError, RecursionError) as error:
        raise BadDocument(f"{what} is not JSON: {error}") from error


def _without_repeats(pairs: list[tuple[str, object]]) -> dict[str, object]:
    found = dict(pairs)
    if len(found) < len(pairs):
        keys = [key for key, _ in pairs]
        raise BadDocument(f"{next(k for k in keys if keys.count(k) > 1)} is stated twice")
    return found


def _yaml(text: str, what: str) -> object:
    # Engines read documents too, always JSON: they start without a YAML library.
    import yaml

    class Loader(yaml.SafeLoader):
        def compose_node(self, parent: Any, index: Any) -> Any:
            if self.check_event(yaml.AliasEvent):
                raise BadDocument(f"{what} has an alias; write the value out")
            return super().compose_node(parent, index)

        def construct_mapping(self, node: Any, deep: bool = False) -> dict[Hashable, Any]:
            found: dict[Hashable, Any] = super().construct_mapping(node, deep=deep)
            if len(found) < len(node.value):
                keys = [key.value for key, _ in node.value]
                twice = next((k for k in keys if keys.count(k) > 1), keys[0])
                raise BadDocument(f"{twice} is stated twice")
            return found

    try:
        # The loader is a SafeLoader: it makes plain values only.
        return yaml.load(text, Loader=Loader)
    except BadDocument:
        raise
    except (yaml.YAMLError, RecursionError, ValueError) as error:
        raise BadDocument(f"{what} is not YAML: {error}") from error
