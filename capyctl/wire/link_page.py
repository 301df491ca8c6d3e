"""The page of the link's frames, written from their schemas.

``python -m capyctl.wire.link_page > docs/reference/link.md``
"""

from __future__ import annotations

import json
from typing import Any

import attrs

from capyctl.wire.link import FRAME_BYTES_MAX, HOST_FRAMES, SERVER_FRAMES, Frame
from capyctl.wire.link_calls import CAPABILITY_OF, METHODS, ONCE, RESULTS

_HEAD = """# The link between a server and its hosts

A host dials its server and keeps one websocket to it, path `/link/v1`, over TLS 1.3 with
certificates on both sides. Each binary message is one frame: a JSON object of at most {mib} MiB,
told apart by its field `kind`. This page is written from the schemas
(`python -m capyctl.wire.link_page`), and a test compares them.

No prompt, answer, key or weight crosses the link, and of logs only the end of an engine's, when
somebody asks for it.

## A session

1. The host says `hello`; the server answers `welcome`, or `refused` and closes.
2. The server says in `sync` which launches and which open calls it knows. The host drops all
   other calls, ends every engine of its own that is not among the launches, and answers `synced`
   with what runs, judged by each launch's process.
3. The session is live. The server sends `call`; the host answers each once with `result` or
   `error`, and keeps the answer until its `ack`. Both sides send heartbeats about once a second,
   `heartbeat` and `watch`, before anything else that waits.

Whoever hears nothing for the time that `welcome` names closes, and the host dials again. A newer
session of a host takes the place of an older one; but another process of it, while the first is
heard, is refused as `host_identity_in_use`: two machines have one identity, and the first stays.

Calls go on through the loss of a session: the server sends those that the host does not name in
`synced` again under the same id. To another
process of the host (another `epoch`) all are sent again but {once}: nobody knows how
far these came, so they fail as `host_restarted`.

A frame that is no JSON, of an unknown kind, out of place, or with a field of another type ends
the session. Fields that are not known are left out, as a newer release may have more.
"""
_CALLS = """## Calls

The methods of a host, as `contracts/host.py` describes them. Values are JSON objects of the fields
of the classes in `domain/`, `contracts/` and `wire/link_calls.py`; an enum is its text. A host that
does not name what a method needs among its `capabilities` is not asked: the answer is
`host_capability_missing:<name>`.
"""
_METHODS_HEAD = ("| method | params | result | needs |", "| --- | --- | --- | --- |")
_ERRORS = """## Errors

| type | what is in it |
| --- | --- |
| `launch_refused` | `code`, `detail`, `final` |
| `unmeasurable` | `code`, `detail` |
| `unfetchable` | `code`, `detail`, `final`, `again` |
| `park_refused` | `detail` |
| `engine_broken` | `code`, `detail` |
| `forbidden` | `detail` |
| `unsupported` | `code`: the capability or method that the host does not have |
| `failed` | `detail`, of what no contract foresees |
"""


def link_page() -> str:
    """Markdown."""
    once = " and ".join(f"`{name}`" for name in sorted(ONCE))
    parts = [
        _HEAD.format(mib=FRAME_BYTES_MAX >> 20, once=once),
        "## From the host",
        *map(_frame, HOST_FRAMES),
        "## From the server",
        *map(_frame, SERVER_FRAMES),
        _CALLS,
        _methods(),
        _ERRORS,
    ]
    return "\n\n".join(part.strip() for part in parts) + "\n"


def _frame(kind: type[Frame]) -> str:
    schema = kind.model_json_schema()
    parts = [f"### {kind.model_fields['kind'].default}"]
    if "description" in schema:
        parts.append(_words(schema))
    parts.append(_table(schema))
    for name, inner in schema.get("$defs", {}).items():
        parts += [f"`{name}`:", _table(inner)]
    return "\n\n".join(parts)


def _table(schema: dict[str, Any]) -> str:
    rows = [
        f"| `{name}` | {_type(part)} | {_default(name, part, schema)} | {_words(part)} |"
        for name, part in schema["properties"].items()
        if name != "kind"
    ]
    return "\n".join(["| field | type | default | meaning |", "| --- | --- | --- | --- |", *rows])


def _words(part: dict[str, Any]) -> str:
    return " ".join(part.get("description", "").split()).replace("``", "`")


def _default(name: str, part: dict[str, Any], schema: dict[str, Any]) -> str:
    if name in schema.get("required", []):
        return "required"
    return f"`{json.dumps(part.get('default', {}))}`"


def _type(part: dict[str, Any]) -> str:
    """A JSON type in a few words."""
    if "anyOf" in part:
        return " or ".join(_type(one) for one in part["anyOf"])
    if "$ref" in part:
        return f"`{part['$ref'].rsplit('/', 1)[-1]}`"
    kind: str = part.get("type", "any value")
    if kind == "array":
        return f"array of {_type(part['items'])}"
    if kind == "object" and isinstance(part.get("additionalProperties"), dict):
        return f"object with values {_type(part['additionalProperties'])}"
    if "pattern" in part:
        return "ULID"
    return {"integer": "whole number"}.get(kind, kind)


def _methods() -> str:
    rows = []
    for name, kind in METHODS.items():
        fields = ", ".join(f"`{field.name}` ({_named(field)})" for field in attrs.fields(kind))
        needs = f"`{CAPABILITY_OF[name]}`" if name in CAPABILITY_OF else ""
        rows.append(f"| `{name}` | {fields} | `{RESULTS[name].__name__}` | {needs} |")
    return "\n".join([*_METHODS_HEAD, *rows])


def _named(field: attrs.Attribute[Any]) -> str:
    return str(field.type).replace(" | None", " or null")


if __name__ == "__main__":
    print(link_page(), end="")
