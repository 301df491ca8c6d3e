"""From a parsed document to its model, with the first thing wrong said in our own words."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

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
    "union_tag_not_found": "expected a type",
    "union_tag_invalid": "expected type local, huggingface or http",
}
"""Words for pydantic's error types; for the others its own words do, which hold no value."""

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
        raise InvalidDocument(_problem(first, document), what) from None


def _urgency(error: Any) -> int:
    """A document of another kind says so first; then keys that do not belong here."""
    if error["loc"] in (("schema_version",), ("kind",)):
        return 0
    return 1 if error["type"] in ("extra_forbidden", "invalid_key") else 2


def _problem(error: Any, document: object) -> ConfigProblem:
    kind, detail = _words(error)
    return ConfigProblem(
        kind=kind,
        path=field_path(error["loc"], document, last=error["type"]),
        detail=detail,
        code=_CODES.get(error["type"], "invalid_config"),
    )


def _words(error: Any) -> tuple[ProblemClass, str]:
    found = error["type"]
    if error["loc"] in (("schema_version",), ("kind",)) and found != "missing":
        return ProblemClass.SCHEMA, "not what this document must state"
    if found in ("extra_forbidden", "invalid_key"):
        return ProblemClass.UNKNOWN_FIELD, "no such setting"
    if found == "missing":
        return ProblemClass.MISSING, "must be stated"
    if found == "bad_unit":
        return ProblemClass.INVALID_UNIT, error["msg"]
    if found in ("bad_value", "bad_topology"):
        return ProblemClass.UNSUPPORTED, error["msg"]
    return ProblemClass.UNSUPPORTED, _EXPECTED.get(found) or _plain(error["msg"])


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
