"""Where a model's files lie on the machine that runs it, and where they are fetched from."""

from __future__ import annotations

import hashlib
import posixpath
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

import attrs

from capyctl.config.model_source import (
    COMMIT,
    HttpSource,
    HuggingfaceSource,
    LocalSource,
    Model,
    ModelFiles,
    absolute_path,
    split_reference,
)
from capyctl.config.problems import ProblemClass, invalid, unsupported
from capyctl.domain.checkpoints import RemoteSource, SourceKind, host_allowed
from capyctl.domain.errors import Refused
from capyctl.domain.units import GIB

HUB = "https://huggingface.co"


@attrs.frozen(kw_only=True)
class SourcePolicy:
    """What the host's `model_sources` say of fetching files."""

    huggingface: bool = True
    http: bool = True
    plain_http: bool = False
    allowed_hosts: tuple[str, ...] | None = None
    """Names of hosts; ``*.name`` stands for every host below it. None: any host."""
    max_bytes: int = 500 * GIB
    root: str | None = None
    """Downloads lie in ``sources`` below it; relative paths are inside the models directory,
    which it is itself when None."""
    endpoint: str = HUB
    token_file: str | None = None


@attrs.frozen(kw_only=True)
class Files:
    """Absolute path of a model's files, and their source when they are fetched first."""

    path: str
    source: RemoteSource | None = None
    draft_path: str | None = None


def materialise(
    model: Model, document: Mapping[str, Any], models_root: str, policy: SourcePolicy
) -> Files:
    """Where the model's files are or will be.

    Raises:
        Refused: ``invalid_config``: no source or two, not pinned to a commit, or not allowed
            on this host.
    """
    short = isinstance(document["model"], str)
    stated = [name for name in ("path", "hf", "source") if getattr(model, name) is not None]
    if not stated:
        detail = "state path, hf or source"
        raise invalid(ProblemClass.MISSING, "model", detail)
    if len(stated) > 1:
        path = "model.hf" if "hf" in stated else "model.source"
        raise invalid(ProblemClass.CONFLICT, path, f"{' and '.join(stated)} are stated")
    draft = None if model.draft is None else _draft(model.draft, models_root)
    if model.path is not None:
        path = _check_folder(absolute_path(model.path, models_root), models_root, short)
        return Files(path=path, draft_path=draft)
    if isinstance(model.source, LocalSource):
        return Files(path=absolute_path(model.source.path, models_root), draft_path=draft)
    source = _remote(model, policy)
    root = absolute_path(policy.root or ".", models_root)
    return Files(path=posixpath.join(root, source.key), source=source, draft_path=draft)


def _draft(draft: ModelFiles, models_root: str) -> str:
    """Absolute path of a draft model, which must be on the machine."""
    stated = [name for name in ("path", "hf", "source") if getattr(draft, name) is not None]
    if len(stated) != 1:
        raise invalid(ProblemClass.MISSING, "model.draft", "state its path")
    if draft.path is not None:
        return absolute_path(draft.path, models_root)
    if isinstance(draft.source, LocalSource):
        return absolute_path(draft.source.path, models_root)
    raise unsupported(
        "model.draft",
        "a draft model is not fetched: download its files (huggingface-cli download) and state "
        "their path",
    )


def _check_folder(path: str, models_root: str, short: bool) -> str:
    if path == absolute_path(".", models_root):
        field = "model" if short else "model.path"
        raise unsupported(field, "this is the models directory itself; name a model inside it")
    return path


def _remote(model: Model, policy: SourcePolicy) -> RemoteSource:
    if model.hf is not None:
        return _huggingface(_reference(model.hf), "model.hf", policy)
    if isinstance(model.source, HuggingfaceSource):
        return _huggingface(model.source, "model.source", policy)
    assert isinstance(model.source, HttpSource)
    return _http(model.source, policy)


def _reference(text: str) -> HuggingfaceSource:
    found = split_reference(text)
    if found is None:
        raise unsupported("model.hf", "expected owner/repo@<40-character commit>")
    repository, revision = found
    if revision is None or COMMIT.fullmatch(revision) is None:
        detail = f"`{text}` is not pinned to a commit: write {repository}@<40-character commit>"
        raise unsupported("model.hf", detail)
    return HuggingfaceSource(type="huggingface", repo=repository, revision=revision)


def _huggingface(source: HuggingfaceSource, field: str, policy: SourcePolicy) -> RemoteSource:
    if "--" in source.repo:
        raise unsupported(field, "no repository has two hyphens in a row in its name")
    if not policy.huggingface:
        raise _turned_off()
    _check_host(policy.endpoint, policy)
    files = tuple(sorted(set(source.files or ())))
    owner, _, name = source.repo.partition("/")
    key = f"sources/huggingface/{owner}--{name}@{source.revision}"
    if files:
        key += "-" + hashlib.sha256("\n".join(files).encode()).hexdigest()[:12]
    return RemoteSource(
        kind=SourceKind.HUGGINGFACE,
        key=key,
        repository=source.repo,
        commit=source.revision,
        files=files,
        token_ref=source.token_ref,
    )


def _http(source: HttpSource, policy: SourcePolicy) -> RemoteSource:
    if not policy.http:
        raise _turned_off()
    if source.url is not None:
        if urlsplit(source.url).scheme == "http" and not policy.plain_http:
            detail = "this host fetches https:// only (model_sources.plain_http)"
            raise invalid(ProblemClass.DENIED, "model.source", detail)
        _check_host(source.url, policy)
    return RemoteSource(
        kind=SourceKind.HTTP,
        key=f"sources/http/{source.sha256}{'-tar' if source.archive else ''}",
        url=source.url,
        url_ref=source.url_ref,
        sha256=source.sha256,
        archive=source.archive is not None,
    )


def _check_host(url: str, policy: SourcePolicy) -> None:
    if not host_allowed(urlsplit(url).hostname or "", policy.allowed_hosts):
        detail = "this host fetches from certain hosts only (model_sources.allowed_hosts)"
        raise invalid(ProblemClass.DENIED, "model.source", detail)


def _turned_off() -> Refused:
    detail = "this host's model_sources turn that kind of source off"
    return invalid(ProblemClass.DENIED, "model.source", detail)
