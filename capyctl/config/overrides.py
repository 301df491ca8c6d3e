"""Values for single settings, from flags and variables, laid over a document."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, get_args, get_origin

import attrs
from pydantic import BaseModel

from capyctl.config.named_settings import SECRET_PATHS, SET_PREFIX, NamedSetting
from capyctl.config.problems import ConfigProblem, InvalidDocument, ProblemClass
from capyctl.config.yaml import read_scalar

NEAREST_MAX = 3


@attrs.frozen(kw_only=True)
class Override:
    """One setting's value, as it would stand in the document, and where it comes from."""

    path: str
    value: object
    source: str
    """``set``, ``flag`` or ``env``."""
    origin: str
    """As a person wrote it: ``--listen``, ``CAPYCTL_SET__…``."""


def setting_paths(model: type[BaseModel], prefix: str = "", *, maps: bool = False) -> list[str]:
    """Dotted paths of every single setting of a document, blocks left out.

    ``maps``: a map of blocks or texts is gone into as well, with ``*`` for the names in it.
    """
    found: list[str] = []
    for name, field in model.model_fields.items():
        path = f"{prefix}{name}"
        block = field.annotation
        if maps and get_origin(block) is dict and get_args(block)[1] is not Any:
            path, block = f"{path}.*", get_args(block)[1]
        if isinstance(block, type) and issubclass(block, BaseModel):
            found += setting_paths(block, f"{path}.", maps=maps)
        else:
            found.append(path)
    return found


def matches(path: str, pattern: str) -> bool:
    """Whether a path is the one of a pattern, in which ``*`` stands for any one name."""
    parts, wanted = path.split("."), pattern.split(".")
    pairs = zip(parts, wanted, strict=False)
    return len(parts) == len(wanted) and all(w in ("*", p) and p for p, w in pairs)


def path_overrides(
    paths: Sequence[str], *, sets: Iterable[str], env: Mapping[str, str], what: str
) -> list[Override]:
    """``--set`` first, then ``CAPYCTL_SET__…`` variables; an empty variable is unset.

    Raises:
        InvalidDocument: an unknown path (with the nearest ones), a block, a secret, a value
            that is not YAML, or the same path twice.
    """
    found: list[Override] = []
    for text in sets:
        path, equals, value = text.partition("=")
        if not equals:
            raise _refused(path, "--set takes <path>=<value>", what)
        if any(matches(path, secret) for secret in SECRET_PATHS):
            detail = "a secret: state it in the document or as a variable, not with --set"
            raise _refused(path, detail, what)
        found.append(_override(path, value, "set", "--set", paths, what))
    for name in sorted(env):
        if name.upper().startswith(SET_PREFIX) and env[name]:
            path = name[len(SET_PREFIX) :].replace("__", ".").lower()
            found.append(_override(path, env[name], "env", name, paths, what))
    _check_once(found, what)
    return found


def named_overrides(
    settings: Sequence[NamedSetting],
    *,
    flags: Mapping[str, str],
    env: Mapping[str, str],
    what: str,
) -> list[Override]:
    """Flags first, then variables, each in the order of ``settings``.

    Raises:
        InvalidDocument: an unreadable value, named by its source and never shown; an empty
            variable where emptiness could mean something else.
    """
    found: list[Override] = []
    for setting in settings:
        if setting.flag is not None and setting.flag in flags:
            found += _read(setting, flags[setting.flag], "flag", setting.flag, what)
    for setting in settings:
        variable = next((name for name in setting.variables if name in env), None)
        if variable is None:
            continue
        if env[variable] == "":
            if setting.empty_refused:
                raise _refused(setting.paths[0], f"{variable} is empty", what)
            continue
        found += _read(setting, env[variable], "env", variable, what)
    return found


def lay_over(
    document: Mapping[str, Any], by_path: Sequence[Override], named: Sequence[Override], what: str
) -> tuple[dict[str, Any], dict[str, Override]]:
    """The document with every override in it, and the one that won for each path.

    Order: ``--set``, ``CAPYCTL_SET__…``, flag, variable. A path override and a named flag or
    variable for the same setting must agree.

    Raises:
        InvalidDocument: they do not; both are named.
    """
    chosen: dict[str, Override] = {}
    for override in (*by_path, *named):
        first = chosen.setdefault(override.path, override)
        apart = first in by_path and override in named
        if apart and not _same(first.value, override.value):
            detail = f"{first.origin} and {override.origin} state different values"
            raise InvalidDocument(
                ConfigProblem(kind=ProblemClass.CONFLICT, path=override.path, detail=detail), what
            )
    laid = _copied(document)
    for path, override in chosen.items():
        _put(laid, path.split("."), override.value)
    return laid, chosen


def _same(one: object, other: object) -> bool:
    """A named value is text where a path's value may be a YAML number."""
    return one == other or str(one) == str(other)


def _read(setting: NamedSetting, text: str, source: str, origin: str, what: str) -> list[Override]:
    try:
        values = setting.read(text, setting.paths)
    except ValueError as problem:
        raise _refused(setting.paths[0], f"{origin}: {problem}", what) from None
    return [
        Override(path=path, value=value, source=source, origin=origin)
        for path, value in values.items()
    ]


def _override(
    path: str, text: str, source: str, origin: str, paths: Sequence[str], what: str
) -> Override:
    if not any(matches(path, known) for known in paths):
        raise _unknown(path, paths, what)
    try:
        value = read_scalar(text)
    except ValueError as problem:
        raise _refused(path, f"{origin}: {problem}", what) from None
    return Override(path=path, value=value, source=source, origin=origin)


def _unknown(path: str, paths: Sequence[str], what: str) -> InvalidDocument:
    depth = path.count(".") + 1
    inside = [
        known
        for known in paths
        if known.count(".") >= depth and matches(path, ".".join(known.split(".")[:depth]))
    ]
    if inside:
        detail = f"a block, not a setting; it has {', '.join(inside)}"
        return _refused(path, detail, what)
    nearest = difflib.get_close_matches(path, paths, n=NEAREST_MAX, cutoff=0.4)
    detail = f"no such setting; nearest: {', '.join(nearest)}" if nearest else "no such setting"
    problem = ConfigProblem(kind=ProblemClass.UNKNOWN_FIELD, path=path, detail=detail)
    return InvalidDocument(problem, what)


def _check_once(found: Sequence[Override], what: str) -> None:
    for source in ("set", "env"):
        seen: set[str] = set()
        for override in (o for o in found if o.source == source):
            if override.path in seen:
                raise _refused(override.path, f"{override.origin} states it twice", what)
            seen.add(override.path)


def _refused(path: str, detail: str, what: str) -> InvalidDocument:
    problem = ConfigProblem(kind=ProblemClass.UNSUPPORTED, path=path, detail=detail)
    return InvalidDocument(problem, what)


def _copied(value: Mapping[str, Any]) -> dict[str, Any]:
    return {k: _copied(v) if isinstance(v, Mapping) else v for k, v in value.items()}


def _put(document: dict[str, Any], path: list[str], value: object) -> None:
    here = document
    for part in path[:-1]:
        inner = here.get(part)
        if not isinstance(inner, dict):
            inner = here[part] = {}
        here = inner
    here[path[-1]] = value
