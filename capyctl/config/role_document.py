"""A role's document: where it lies, what is laid over it, and where each setting comes from.

Precedence: ``--set`` over ``CAPYCTL_SET__…`` over flag over variable over document over default.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Generic, TypeVar

import attrs
from pydantic import BaseModel

from capyctl.config.check import check
from capyctl.config.named_settings import NamedSetting
from capyctl.config.overrides import (
    Override,
    lay_over,
    matches,
    named_overrides,
    path_overrides,
    setting_paths,
)
from capyctl.config.owner_files import write_new_owner_file
from capyctl.config.problems import ConfigProblem, InvalidDocument, ProblemClass
from capyctl.config.role_settings import Setting, expanded
from capyctl.config.yaml import read_text, read_yaml

Model = TypeVar("Model", bound=BaseModel)


@attrs.frozen(kw_only=True)
class Role(Generic[Model]):
    """One kind of role document."""

    kind: str
    model: type[Model]
    named: tuple[NamedSetting, ...]
    generated: str | None = None
    """What is written at the first start; None: there must be a document."""


@attrs.frozen(kw_only=True)
class Given:
    """What a role was started with, beside its document."""

    flags: Mapping[str, str] = attrs.field(factory=dict)
    """Named ones that were given, with their dashes; a switch has the value ``true``."""
    env: Mapping[str, str]
    sets: Sequence[str] = ()
    config_path: Path | None = None
    """An explicit document; it must be there and valid."""


@attrs.frozen(kw_only=True)
class Laid(Generic[Model]):
    """A document with everything laid over it."""

    parsed: Model
    path: Path
    settings: tuple[Setting, ...]


def read_role(role: Role[Model], state_root: Path, given: Given) -> Laid[Model]:
    """Read, lay over, check. Nothing is written.

    Without an explicit document it is ``<state root>/config/<kind>.yaml``, and the built-in one
    while that is not there (`generate_document` writes it).

    Raises:
        InvalidDocument: a document that is missing, anything that is not valid, an unreadable
            or invalid override (its source is named), sources that disagree (both are).
    """
    path = given.config_path or default_document_path(state_root, role.kind)
    written = _read(path, role, explicit=given.config_path is not None)
    paths = setting_paths(role.model, maps=True)
    laid, chosen = lay_over(
        written,
        path_overrides(paths, sets=given.sets, env=given.env, what=role.kind),
        named_overrides(role.named, flags=given.flags, env=given.env, what=role.kind),
        role.kind,
    )
    return Laid(
        parsed=_checked(role, laid, chosen),
        path=path,
        settings=tuple(
            Setting(
                path=one,
                value=_at(role.model, laid, one),
                source=_source(one, written, chosen),
            )
            for one in sorted(_stated_paths(paths, laid))
        ),
    )


def _checked(role: Role[Model], laid: Mapping[str, Any], chosen: Mapping[str, Override]) -> Model:
    """The document's model; what is wrong with an override is said of its source."""
    try:
        return check(role.model, laid, what=role.kind)
    except InvalidDocument as refused:
        problem = refused.problem
        block = f"{problem.path.partition('[')[0]}."
        origins = [one.origin for path, one in chosen.items() if f"{path}.".startswith(block)]
        if not origins:
            raise
        detail = f"{' and '.join(dict.fromkeys(origins))}: {problem.detail}"
        raise InvalidDocument(attrs.evolve(problem, detail=detail), role.kind) from None


def find_state_root(
    flags: Mapping[str, str], env: Mapping[str, str], config_path: Path | None
) -> Path:
    """``--state-dir``, ``CAPYCTL_STATE_DIR``, `state_dir` of an explicit document, then
    ``$XDG_STATE_HOME/capyctl``, else ``~/.local/state/capyctl``.

    Raises:
        InvalidDocument: an explicit document that cannot be read, or a relative directory.
    """
    stated: object = flags.get("--state-dir") or env.get("CAPYCTL_STATE_DIR")
    what = "role"
    if not stated and config_path is not None:
        text = read_text(config_path, what=what)
        document = read_yaml(text, what=what, name=str(config_path))
        stated, kind = document.get("state_dir"), document.get("kind")
        what = kind if isinstance(kind, str) else what
    if stated:
        if not isinstance(stated, str) or not stated.startswith(("/", "~/")):
            raise unsupported_at("state_dir", "expected an absolute path", what)
        return Path(expanded(stated, env))
    base = env.get("XDG_STATE_HOME") or expanded("~/.local/state", env)
    return Path(base) / "capyctl"


def find_engines_path(env: Mapping[str, str], config_path: Path | None) -> Path:
    """`engines.yaml` beside an explicit document, else in the user's configuration directory."""
    if config_path is not None:
        return config_path.parent / "engines.yaml"
    base = env.get("XDG_CONFIG_HOME") or expanded("~/.config", env)
    return Path(base) / "capyctl" / "engines.yaml"


def default_document_path(state_root: Path, kind: str) -> Path:
    return state_root / "config" / f"{kind}.yaml"


def generate_document(role: Role[Any], state_root: Path) -> Path:
    """Write the built-in document, owner-only, unless one is there. Blocks on the disk."""
    assert role.generated is not None
    path = default_document_path(state_root, role.kind)
    write_new_owner_file(path, role.generated)
    return path


def check_folder(path: str, stated: str | None, expected: Path, what: str) -> None:
    """Refuse a directory that may be stated, but not chosen.

    Raises:
        InvalidDocument: it is stated and is not ``expected``.
    """
    if stated is not None and stated != str(expected):
        raise unsupported_at(path, "must be the directory of that name in the state root", what)


def default_at(model: type[BaseModel], path: str) -> object:
    """Default of a setting, in the words of the document."""
    *blocks, name = path.split(".")
    here: Any = model
    for block in blocks:
        here = here.model_fields[block].annotation
    field = here.model_fields[name]
    return None if field.is_required() else field.get_default(call_default_factory=True)


def unsupported_at(path: str, detail: str, what: str) -> InvalidDocument:
    problem = ConfigProblem(kind=ProblemClass.UNSUPPORTED, path=path, detail=detail)
    return InvalidDocument(problem, what)


def _read(path: Path, role: Role[Any], *, explicit: bool) -> Mapping[str, Any]:
    if explicit or path.exists():
        return read_yaml(read_text(path, what=role.kind), what=role.kind, name=str(path))
    if role.generated is None:
        detail = f"not there; make it with `capyctl init {role.kind}`"
        problem = ConfigProblem(kind=ProblemClass.IO, path=str(path), detail=detail)
        raise InvalidDocument(problem, role.kind)
    return read_yaml(role.generated, what=role.kind)


def _stated_paths(paths: Sequence[str], laid: Mapping[str, Any]) -> Iterator[str]:
    """Each setting's path, those inside of maps for the names that are in the document."""
    for path in paths:
        yield from _expand(path.split("."), laid, "")


def _expand(parts: list[str], here: Any, before: str) -> Iterator[str]:
    if "*" not in parts:
        yield before + ".".join(parts)
        return
    at = parts.index("*")
    for part in parts[:at]:
        here = here.get(part) if isinstance(here, Mapping) else None
    if isinstance(here, Mapping):
        prefix = before + "".join(f"{part}." for part in parts[:at])
        for name, inner in here.items():
            rest = parts[at + 1 :]
            if rest:
                yield from _expand(rest, inner, f"{prefix}{name}.")
            else:
                yield f"{prefix}{name}"


def _at(model: type[BaseModel], laid: Mapping[str, Any], path: str) -> object:
    """As written where it was, else the default."""
    here: Any = laid
    for part in path.split("."):
        if not isinstance(here, Mapping) or part not in here:
            return _default(model, path)
        here = here[part]
    return here


def _default(model: type[BaseModel], path: str) -> object:
    """As `default_at`, also of a setting inside of a map."""
    if path in setting_paths(model):
        return default_at(model, path)
    pattern = next(one for one in setting_paths(model, maps=True) if matches(path, one))
    *blocks, name = pattern.split(".")
    here: Any = model
    for block in blocks:
        # What a map holds is the second part of its annotation.
        here = here.__args__[1] if block == "*" else here.model_fields[block].annotation
    field = here.model_fields[name]
    return None if field.is_required() else field.get_default(call_default_factory=True)


def _source(path: str, written: Mapping[str, Any], chosen: Mapping[str, Override]) -> str:
    if path in chosen:
        return chosen[path].source
    here: Any = written
    for part in path.split("."):
        if not isinstance(here, Mapping) or part not in here:
            return "default"
        here = here[part]
    return "yaml"
