"""`validate config`: an offline check of any document, without network, host or machine."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import attrs
from pydantic import BaseModel

from capyctl.config.check import check
from capyctl.config.complete import complete_offline
from capyctl.config.host_document import HostDocument
from capyctl.config.overrides import lay_over, path_overrides, setting_paths
from capyctl.config.problems import ConfigProblem, InvalidDocument, ProblemClass
from capyctl.config.profiles import EnginesDocument
from capyctl.config.server_document import ServerDocument
from capyctl.config.standalone import StandaloneDocument
from capyctl.config.yaml import read_text, read_yaml
from capyctl.domain.canonical import canonical_json

_ROLES: Mapping[str, type[BaseModel]] = {
    "host": HostDocument,
    "server": ServerDocument,
    "standalone": StandaloneDocument,
    "engines": EnginesDocument,
}
KINDS = ("deployment", *_ROLES)
NEEDS_A_HOST = (
    "profile and engine arguments",
    "devices, residency and memory",
    "timeouts that follow the weights",
    "the model's files and their digest",
)


@attrs.frozen(kw_only=True)
class ValidDocument:
    """A document that passed."""

    kind: str
    text: str
    """The completed deployment document, or the role document as laid over, in canonical JSON."""
    needs_host: tuple[str, ...] = ()
    """What could not be checked without a host."""

    @property
    def summary(self) -> str:
        return f"This is a valid {self.kind} document."


def validate_file(
    path: Path,
    *,
    sets: Sequence[str] = (),
    env: Mapping[str, str] | None = None,
) -> ValidDocument:
    """Check one document. ``sets`` and ``CAPYCTL_SET__…`` of ``env`` apply to role documents.

    Raises:
        InvalidDocument, Refused: what is wrong, with the field.
    """
    document = read_yaml(read_text(path, what="document"), what="document", name=str(path))
    kind = document.get("kind", "deployment")
    if kind == "deployment":
        if sets:
            problem = ConfigProblem(
                kind=ProblemClass.UNSUPPORTED,
                path="document",
                detail="deployment fields have no --set form",
            )
            raise InvalidDocument(problem)
        return ValidDocument(
            kind="deployment", text=complete_offline(document), needs_host=NEEDS_A_HOST
        )
    if not isinstance(kind, str) or kind not in _ROLES:
        detail = f"expected {', '.join(KINDS)}"
        problem = ConfigProblem(kind=ProblemClass.SCHEMA, path="kind", detail=detail)
        raise InvalidDocument(problem, "document")
    return ValidDocument(kind=kind, text=canonical_json(_role(document, kind, sets, env or {})))


def _role(
    document: Mapping[str, Any], kind: str, sets: Sequence[str], env: Mapping[str, str]
) -> dict[str, Any]:
    model = _ROLES[kind]
    by_path = path_overrides(setting_paths(model, maps=True), sets=sets, env=env, what=kind)
    laid, _ = lay_over(document, by_path, (), kind)
    check(model, laid, what=kind)
    return laid
