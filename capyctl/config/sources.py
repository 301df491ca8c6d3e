"""Where a model's files lie on the machine that runs it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import attrs

from capyctl.config.model_source import (
    COMMIT,
    HttpSource,
    HuggingfaceSource,
    LocalSource,
    Model,
    absolute_path,
    split_reference,
)
from capyctl.config.problems import ProblemClass, invalid, unsupported
from capyctl.domain.errors import Refused


@attrs.frozen(kw_only=True)
class SourcePolicy:
    """Which kinds of sources the host's policy allows."""

    huggingface: bool = True
    http: bool = True
    plain_http: bool = False


def materialise(
    model: Model, document: Mapping[str, Any], models_root: str, policy: SourcePolicy
) -> str:
    """Absolute path of the model's files.

    Raises:
        Refused: ``invalid_config``: no source or two, not pinned to a commit, not allowed on
            this host, or a kind that this release does not fetch.
    """
    short = isinstance(document["model"], str)
    stated = [name for name in ("path", "hf", "source") if getattr(model, name) is not None]
    if not stated:
        detail = "state path, hf or source"
        raise invalid(ProblemClass.MISSING, "model", detail)
    if len(stated) > 1:
        path = "model.hf" if "hf" in stated else "model.source"
        raise invalid(ProblemClass.CONFLICT, path, f"{' and '.join(stated)} are stated")
    if model.draft is not None:
        raise unsupported(
            "model.draft",
            "files of a draft model are not counted in this release; use a draft inside the "
            "model's directory, or none",
        )
    if model.hf is not None:
        return _huggingface(model.hf, policy)
    if model.path is not None:
        return _check_folder(absolute_path(model.path, models_root), models_root, short=short)
    assert model.source is not None
    if isinstance(model.source, LocalSource):
        return absolute_path(model.source.path, models_root)
    return _remote(model.source, policy)


def _check_folder(path: str, models_root: str, *, short: bool) -> str:
    if path == absolute_path(".", models_root):
        field = "model" if short else "model.path"
        raise unsupported(field, "this is the models directory itself; name a model inside it")
    return path


def _huggingface(reference: str, policy: SourcePolicy) -> str:
    found = split_reference(reference)
    if found is None:
        raise unsupported("model.hf", "expected owner/repo@<40-character commit>")
    repository, revision = found
    if revision is None or COMMIT.fullmatch(revision) is None:
        detail = (
            f"`{reference}` is not pinned to a commit: write {repository}@<40-character commit>"
        )
        raise unsupported("model.hf", detail)
    if not policy.huggingface:
        raise _denied("model.hf")
    return fetch_path("model.hf")


def _remote(source: HuggingfaceSource | HttpSource, policy: SourcePolicy) -> str:
    allowed = policy.huggingface if isinstance(source, HuggingfaceSource) else policy.http
    if not allowed:
        raise _denied("model.source")
    plain = isinstance(source, HttpSource) and (source.url or "").startswith("http://")
    if plain and not policy.plain_http:
        detail = "this host fetches https:// only (model_sources.plain_http)"
        raise invalid(ProblemClass.DENIED, "model.source", detail)
    return fetch_path("model.source")


def _denied(path: str) -> Refused:
    detail = "this host's model_sources turn that kind of source off"
    return invalid(ProblemClass.DENIED, path, detail)


def fetch_path(path: str) -> str:
    """Where a remote source's files will be once they are fetched.

    Raises:
        Refused: always, in this release: files must be on the machine already.
    """
    raise invalid(
        ProblemClass.SOURCE,
        path,
        "this release downloads nothing: fetch the files into the models directory yourself "
        "and name their path",
    )
