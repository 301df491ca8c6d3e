"""Pins the Hugging Face reference of a document to the commit that it names now."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from capyctl.cli.call import Call
from capyctl.cli.failure import CommandFailed
from capyctl.cli.refusing import documents_refused
from capyctl.cli.role import find_state_root, role_document

_COMMIT_CHARACTERS = frozenset("0123456789abcdef")


def pinned(call: Call, document: Mapping[str, Any]) -> Mapping[str, Any]:
    """The document with ``owner/repo[@branch]`` as ``owner/repo@<commit>``.

    The endpoint that the role uses is asked, and only for a reference that is not pinned yet.
    Whatever is no reference at all is left for the role to refuse.

    Raises:
        CommandFailed: ``model_source_failed``: the endpoint does not know it or does not
            answer; ``invalid_config``: the role's settings cannot be read.
    """
    model = document.get("model")
    if not isinstance(model, Mapping):
        return document
    if isinstance(model.get("hf"), str):
        return {**document, "model": {**model, "hf": _pin(call, model["hf"])}}
    source = model.get("source")
    if not isinstance(source, Mapping):
        return document
    if source.get("type") == "huggingface":
        return {**document, "model": {**model, "source": _with_commit(call, source)}}
    inner = source.get("huggingface")
    if not isinstance(inner, Mapping):
        return document
    held = {**source, "huggingface": _with_commit(call, inner)}
    return {**document, "model": {**model, "source": held}}


def _with_commit(call: Call, source: Mapping[str, Any]) -> Mapping[str, Any]:
    repository, revision = source.get("repo"), source.get("revision")
    if not isinstance(repository, str) or not isinstance(revision, str | None):
        return source
    if "locked_commit" in source:
        return source
    reference = repository if revision is None else f"{repository}@{revision}"
    return {**source, "revision": _pin(call, reference).rpartition("@")[2]}


def _pin(call: Call, reference: str) -> str:
    repository, _, revision = reference.partition("@")
    if len(revision) == 40 and _COMMIT_CHARACTERS.issuperset(revision):
        return reference
    if repository.count("/") != 1 or not repository.strip("/"):
        return reference
    from capyctl.checkpoints.hub import pin
    from capyctl.contracts.checkpoints import Unfetchable

    endpoint, token = _hub(call)
    try:
        found = pin(reference, endpoint=endpoint, token=token)
    except Unfetchable as problem:
        raise CommandFailed(
            "model_source_failed",
            f"model: `{reference}` cannot be pinned to a commit: {problem.detail}",
            details={"reason": problem.reason},
            retryable=not problem.terminal,
        ) from None
    call.here.err.write(f"{reference} is {found}\n")
    return found


def _hub(call: Call) -> tuple[str, str | None]:
    """Endpoint and token, from the flag, the variables and the role's document."""
    from pathlib import Path

    from capyctl.checkpoints.sources_secrets import read_owner_text
    from capyctl.config.settings import load_standalone
    from capyctl.config.sources import HUB
    from capyctl.contracts.checkpoints import Unfetchable

    stated = call.option("hf_endpoint")
    environ = call.here.environ
    token = environ.get("HF_TOKEN") or environ.get("HUGGING_FACE_HUB_TOKEN") or None
    if call.role().kind == "server":
        # Where hosts fetch from is theirs to say; a commit is the same everywhere.
        variables = (environ.get("CAPYCTL_HF_ENDPOINT"), environ.get("HF_ENDPOINT"))
        return next(filter(None, (stated, *variables, HUB))), token
    state_root = find_state_root(call)
    try:
        with documents_refused():
            settings = load_standalone(
                state_root,
                config_path=role_document(call, state_root, "standalone"),
                flags={"--hf-endpoint": stated} if stated else {},
                env=environ,
                sets=(),
            )
        file = settings.sources.token_file
        if file is not None:
            return settings.sources.endpoint, read_owner_text(Path(file), file)
    except Unfetchable as problem:
        raise CommandFailed("model_source_failed", problem.detail) from None
    return settings.sources.endpoint, token
