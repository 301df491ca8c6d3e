"""From a parsed document to its model, with the first thing wrong said in our own words."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

import attrs
from pydantic import BaseModel, ValidationError

from capyctl.config.nearest import nearest
from capyctl.config.problems import ConfigProblem, InvalidDocument, ProblemClass

Model = TypeVar("Model", bound=BaseModel)

_EXPECTED = {
    "int_type": "expected a whole number",
    "float_type": "expected a number",
    "bool_type": "expected true or false",
    "string_type": "expected text",
    "list_type": "expected a list",
    "dict_type": "expected a map of settings",
    "model_type": "expected a map of settings",
    "model_attributes_type": "expected a map of settings",
    "string_too_short": "expected text that is not empty",
    "string_pattern_mismatch": "expected small letters, digits and _, a letter first",
    "union_tag_not_found": "expected a type",
    "union_tag_invalid": "expected type local, huggingface or http",
}
"""Words for pydantic's error types; for the others its own words do, which hold no value."""

_OF_A_KIND = ("literal_error", "bad_unit", "bad_kind", "bad_value")
_BOUNDS = {
    "greater_than": ("above", "gt"),
    "greater_than_equal": ("at least", "ge"),
    "less_than": ("below", "lt"),
    "less_than_equal": ("at most", "le"),
}
_CODES = {"bad_topology": "unsupported_gpu_topology"}


def check(model: type[Model], document: object, *, what: str) -> Model:
    """The document as ``model``.

    Raises:
        InvalidDocument: the first problem in the order of the model's fields.
    """
    try:
        return model.model_validate(document)
    except ValidationError as problems:
        errors = problems.errors(include_url=False, include_input=False, include_context=True)
        first = min(errors, key=_urgency)
        problem = _problem(first, document)
        if first["type"] == "extra_forbidden":
            near = nearest(model, first["loc"])
            more = f"; nearest: {', '.join(near)}" if near else ""
            problem = attrs.evolve(problem, detail=problem.detail + more)
        raise InvalidDocument(problem, what) from None


def _urgency(error: Any) -> int:
    """A document of another kind says so first; then keys that do not belong here."""
    if error["loc"] in (("schema_version",), ("kind",)):
        return 0
    return 1 if error["type"] in ("extra_forbidden", "invalid_key") else 2


def _problem(error: Any, document: object) -> ConfigProblem:
    kind, detail = _words(error, document)
    path = field_path(error["loc"], document, last=error["type"])
    inside = error.get("ctx", {}).get("at", "")
    return ConfigProblem(
        kind=kind,
        path=f"{path}.{inside}" if path and inside else path or inside,
        detail=detail + _found(error, document),
        code=_CODES.get(error["type"], "invalid_config"),
    )


def _found(error: Any, document: object) -> str:
    """What stands there, where it is of another kind than it should be; never the value itself."""
    kind = error["type"]
    if kind not in _EXPECTED and kind not in _OF_A_KIND:
        return ""
    here = _value_at(error["loc"], document)
    is_text = isinstance(here, str) and here != ""
    if (kind == "bad_value" and (is_text or isinstance(here, Mapping | list))) or here == document:
        return ""
    return f", found {_kind_of(here)}"


def _value_at(location: Sequence[str | int], document: object) -> object:
    """What stands at a place, as far as the document has it."""
    here = document
    for part in location:
        if _has(here, part):
            here = here[part]  # type: ignore[index]  # what has the part is a map or a list
    return here


def _kind_of(value: object) -> str:
    match value:
        case None:
            return "nothing (null)"
        case bool():
            return "true or false"
        case int():
            return "a whole number"
        case float():
            return "a number"
        case "":
            return "empty text"
        case str():
            return "other text"
        case list():
            return "a list"
        case _:
            return "a map"


def _words(error: Any, document: object) -> tuple[ProblemClass, str]:
    found = error["type"]
    if error["loc"] in (("schema_version",), ("kind",)) and found != "missing":
        expected = error.get("ctx", {}).get("expected", "1")
        return ProblemClass.SCHEMA, f"not what this document must state: {expected}"
    if found in ("extra_forbidden", "invalid_key"):
        return ProblemClass.UNKNOWN_FIELD, "no such setting"
    if found == "missing":
        return ProblemClass.MISSING, "must be stated"
    if found == "bad_unit":
        return ProblemClass.INVALID_UNIT, error["msg"]
    if found in ("bad_value", "bad_kind", "bad_topology"):
        return ProblemClass.UNSUPPORTED, error["msg"]
    if found in _BOUNDS:
        return ProblemClass.UNSUPPORTED, _bound(error, document)
    return ProblemClass.UNSUPPORTED, _EXPECTED.get(found) or _plain(error["msg"])


def _bound(error: Any, document: object) -> str:
    """In the unit of the field: what has one is text in a document."""
    words, name = _BOUNDS[error["type"]]
    unit = ""
    value = _value_at(error["loc"], document)
    if isinstance(value, str):
        unit = " bytes" if value.endswith("B") else " s"
    bound = error["ctx"][name]
    return f"expected {words} {int(bound) if bound == int(bound) else bound}{unit}"


def _plain(message: str) -> str:
    """pydantic's sentence without its capital: no value of the document is in it."""
    return message.replace("Input should be", "expected", 1)


def field_path(location: Sequence[str | int], document: object, *, last: str = "") -> str:
    """Dotted path of a field, leaving out what pydantic names but the document does not have.

    ``last`` is the error's type: only a missing field may end the path without being there.
    """
    path, here = "", document
    for position, part in enumerate(location):
        ending = position == len(location) - 1
        present = _has(here, part)
        if not present and not (ending and last == "missing"):
            continue
        path += f"[{part}]" if isinstance(part, int) else f".{part}" if path else str(part)
        here = here[part] if present else None  # type: ignore[index]
    return path


def _has(value: object, part: str | int) -> bool:
    if isinstance(part, int):
        return isinstance(value, list) and part < len(value)
    if not isinstance(value, Mapping):
        return False
    return part in value
