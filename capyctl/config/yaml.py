"""Strict YAML: one document, no key twice, no aliases, and only the scalars of YAML 1.2."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from capyctl.config.problems import ConfigProblem, InvalidDocument, ProblemClass

TEXT_MAX_BYTES = 1 << 20
NESTING_MAX = 64
_NULL = frozenset({"", "~", "null", "Null", "NULL"})
_BOOLS = {"true": True, "True": True, "TRUE": True, "false": False, "False": False, "FALSE": False}
_INT = re.compile(r"[-+]?[0-9]+")
_HEX = re.compile(r"0x[0-9a-fA-F]+")
_OCTAL = re.compile(r"0o[0-7]+")
_FLOAT = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?")
_DIGITS_MAX = 300
_PLAIN_TAGS = frozenset(
    f"tag:yaml.org,2002:{name}"
    for name in ("str", "int", "float", "bool", "null", "timestamp", "value", "seq", "map")
)


class _Loader(yaml.SafeLoader):
    """Composes nodes; an alias is refused where it is met, so that nothing is multiplied."""

    def compose_node(self, parent: Any, index: Any) -> Any:
        if self.check_event(yaml.AliasEvent):
            event = self.peek_event()  # type: ignore[no-untyped-call]
            line = event.start_mark.line + 1
            raise _Refusal(ProblemClass.UNSUPPORTED, "", f"line {line}: aliases are not accepted")
        return super().compose_node(parent, index)


class _Refusal(Exception):
    def __init__(self, kind: ProblemClass, path: str, detail: str) -> None:
        super().__init__(detail)
        self.problem = ConfigProblem(kind=kind, path=path, detail=detail)


def read_text(path: Path, *, what: str) -> str:
    """The text of a document on disk.

    Raises:
        InvalidDocument: class I/O: not there, not readable, not UTF-8, above 1 MiB.
    """
    try:
        with path.open("rb") as file:
            body = file.read(TEXT_MAX_BYTES + 1)
    except OSError as problem:
        raise _io(str(path), problem.strerror or "cannot be read", what) from problem
    if len(body) > TEXT_MAX_BYTES:
        raise _io(str(path), f"has more than {TEXT_MAX_BYTES} bytes", what)
    try:
        return body.decode()
    except UnicodeDecodeError as problem:
        raise _io(str(path), "is not UTF-8 text", what) from problem


def read_yaml(text: str, *, what: str, name: str = "document") -> Mapping[str, Any]:
    """One document whose top level is a map with text keys.

    Words such as ``on``, ``off``, ``yes`` and ``12:30`` are text, as YAML 1.2 has it.

    Raises:
        InvalidDocument: class I/O with line and column for a syntax error, `duplicate key`
            with the path of the key, `unsupported combination` for the rest.
    """
    try:
        return _top(yaml.compose(text, Loader=_Loader), name)
    except _Refusal as refused:
        raise InvalidDocument(refused.problem, what) from None
    except yaml.MarkedYAMLError as problem:
        raise _io(name, f"not valid YAML{_where(problem)}", what) from problem
    except yaml.YAMLError as problem:
        raise _io(name, "not valid YAML", what) from problem
    except RecursionError:
        raise _io(name, f"nested more than {NESTING_MAX} levels deep", what) from None


def read_scalar(text: str) -> object:
    """A value given on a command line: a YAML scalar or a bracket list of them.

    Raises:
        ValueError: not YAML, or a map.
    """
    try:
        node = yaml.compose(text, Loader=_Loader)
        value = None if node is None else _value(node, "", 0)
    except (yaml.YAMLError, _Refusal, RecursionError) as problem:
        raise ValueError("expected a YAML value or a [bracket, list]") from problem
    if isinstance(value, dict):
        raise ValueError("expected a single value or a [bracket, list]")
    return value


def _io(path: str, detail: str, what: str) -> InvalidDocument:
    return InvalidDocument(ConfigProblem(kind=ProblemClass.IO, path=path, detail=detail), what)


def _where(problem: yaml.MarkedYAMLError) -> str:
    mark = problem.problem_mark
    return "" if mark is None else f" at line {mark.line + 1}, column {mark.column + 1}"


def _top(node: Any, name: str) -> Mapping[str, Any]:
    if node is None:
        raise _Refusal(ProblemClass.IO, name, "is empty")
    if not isinstance(node, yaml.MappingNode):
        raise _Refusal(ProblemClass.UNSUPPORTED, "", "expected a map of settings")
    return _map(node, "", 1)


def _value(node: Any, path: str, depth: int) -> Any:
    if depth > NESTING_MAX:
        raise _Refusal(
            ProblemClass.UNSUPPORTED, path, f"nested more than {NESTING_MAX} levels deep"
        )
    if node.tag not in _PLAIN_TAGS:
        raise _Refusal(ProblemClass.UNSUPPORTED, path, "tags are not accepted")
    if isinstance(node, yaml.MappingNode):
        return _map(node, path, depth + 1)
    if isinstance(node, yaml.SequenceNode):
        items = enumerate(node.value)
        return [_value(item, f"{path}[{index}]", depth + 1) for index, item in items]
    return _scalar(node, path)


def _map(node: yaml.MappingNode, path: str, depth: int) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key_node, value_node in node.value:
        key = key_node.value
        if not isinstance(key_node, yaml.ScalarNode) or not isinstance(key, str):
            raise _Refusal(ProblemClass.UNSUPPORTED, path, "keys are text")
        key = _text(key, path)
        at = f"{path}.{key}" if path else key
        if key_node.tag == "tag:yaml.org,2002:merge":
            raise _Refusal(ProblemClass.UNSUPPORTED, at, "merge keys are not accepted")
        if key in found:
            raise _Refusal(ProblemClass.DUPLICATE_KEY, at, "stated twice")
        found[key] = _value(value_node, at, depth)
    return found


def _text(text: str, path: str) -> str:
    """Escaped surrogate pairs as the characters they stand for, as JSON has it.

    No path, argument or variable can hold a NUL character.
    """
    if "\0" in text:
        raise _Refusal(ProblemClass.UNSUPPORTED, path, "NUL characters are not accepted")
    try:
        return text.encode("utf-16", "surrogatepass").decode("utf-16")
    except UnicodeDecodeError:
        raise _Refusal(ProblemClass.UNSUPPORTED, path, "half a surrogate pair") from None


def _scalar(node: Any, path: str) -> object:
    text = _text(node.value, path)
    if node.style is not None:
        return text
    if text in _NULL:
        return None
    if text in _BOOLS:
        return _BOOLS[text]
    if len(text) > _DIGITS_MAX:
        return text
    for pattern, base in ((_INT, 10), (_HEX, 16), (_OCTAL, 8)):
        if pattern.fullmatch(text):
            return int(text, base)
    if _FLOAT.fullmatch(text) and any(c.isdigit() for c in text):
        number = float(text)
        if not math.isfinite(number):
            raise _Refusal(ProblemClass.UNSUPPORTED, path, "a number is too large")
        return number
    return text
