"""Asks a Hugging Face Hub what a commit consists of, and which commit a branch or tag is.

`huggingface_hub` is imported when it is needed: it is large, and most commands never are.
"""

from __future__ import annotations

import contextlib
import fnmatch
from collections.abc import Iterator
from typing import Any
from urllib.parse import quote, urlsplit

from capyctl.checkpoints.downloads_stream import Rules, check_address, refused
from capyctl.checkpoints.sources_layout import FetchedFile, check_name
from capyctl.contracts.checkpoints import Unfetchable

ENDPOINT = "https://huggingface.co"
ANSWER_S_MAX = 30.0
_COMMIT_CHARACTERS = frozenset("0123456789abcdef")


def pin(
    reference: str,
    *,
    endpoint: str = ENDPOINT,
    token: str | None = None,
    rules: Rules | None = None,
) -> str:
    """``owner/repo@<commit>`` of ``owner/repo``, ``owner/repo@branch`` or ``owner/repo@tag``.

    One that is pinned comes back as it is, without asking anybody. Blocks for up to 30 s.

    Raises:
        Unfetchable: the endpoint does not know it, wants another token, or does not answer.
    """
    repository, _, revision = reference.partition("@")
    if is_commit(revision):
        return reference
    info = _model_info(repository, revision or "main", endpoint, token, rules, files=False)
    if not isinstance(info.sha, str) or not is_commit(info.sha):
        raise Unfetchable("unreachable", f"{host_of(endpoint)} names no commit of {repository}")
    return f"{repository}@{info.sha}"


def is_commit(revision: str) -> bool:
    return len(revision) == 40 and _COMMIT_CHARACTERS.issuperset(revision)


def list_files(
    repository: str,
    commit: str,
    patterns: tuple[str, ...],
    *,
    endpoint: str = ENDPOINT,
    token: str | None = None,
    rules: Rules | None = None,
) -> tuple[FetchedFile, ...]:
    """The commit's files that match a pattern (all, without patterns), with sizes and hashes.

    A pattern is of the shell's kind, over the whole path, and ``*`` takes slashes too; one
    that ends with a slash stands for all of a directory.

    Raises:
        Unfetchable: as `pin`; ``not_found`` too when nothing matches.
    """
    info = _model_info(repository, commit, endpoint, token, rules, files=True)
    if info.sha != commit:
        raise Unfetchable("not_found", f"{host_of(endpoint)} answers another commit", terminal=True)
    files = [_file(sibling, endpoint) for sibling in info.siblings or ()]
    chosen = tuple(file for file in files if _matches(file.name, patterns))
    if not chosen:
        what = "no file that matches `files`" if files else "no files"
        raise Unfetchable("not_found", f"{repository}@{commit[:12]} has {what}", terminal=True)
    return chosen


def file_url(endpoint: str, repository: str, commit: str, name: str) -> str:
    """Where a file's bytes are."""
    return f"{endpoint.rstrip('/')}/{repository}/resolve/{commit}/{quote(name)}"


def _matches(name: str, patterns: tuple[str, ...]) -> bool:
    whole = [pattern + "*" if pattern.endswith("/") else pattern for pattern in patterns]
    return not whole or any(fnmatch.fnmatchcase(name, pattern) for pattern in whole)


def _file(sibling: Any, endpoint: str) -> FetchedFile:
    name = str(sibling.rfilename)
    try:
        check_name(name)
    except ValueError as problem:
        raise Unfetchable("denied", f"{host_of(endpoint)}: {problem}", terminal=True) from None
    sha256 = sibling.lfs.sha256 if sibling.lfs else None
    if sibling.size is None or not (sha256 or sibling.blob_id):
        detail = f"{host_of(endpoint)} states no size or hash of {name}, so it cannot be verified"
        raise Unfetchable("checksum_mismatch", detail, terminal=True)
    return FetchedFile(
        name=name,
        size_bytes=int(sibling.size),
        sha256=sha256,
        git_sha1=None if sha256 else str(sibling.blob_id),
    )


def host_of(url: str) -> str:
    """Host and port of an address, fit to be shown."""
    return urlsplit(url).netloc.rpartition("@")[2]


def _model_info(
    repository: str,
    revision: str,
    endpoint: str,
    token: str | None,
    rules: Rules | None,
    *,
    files: bool,
) -> Any:
    from huggingface_hub import HfApi

    checked = rules or Rules(plain_loopback=True)
    check_address(endpoint, checked, host_of(endpoint))
    with _translated(repository, revision, endpoint), _checked_client(endpoint, checked):
        api = HfApi(endpoint=endpoint.rstrip("/"), token=token or False)
        return api.model_info(
            repository, revision=revision, files_metadata=files, timeout=ANSWER_S_MAX
        )


@contextlib.contextmanager
def _checked_client(endpoint: str, rules: Rules) -> Iterator[None]:
    """The Hub's library asks through a client that keeps to the rules, redirects included."""
    from huggingface_hub import get_session

    secured = endpoint.startswith("https:")

    def check(request: Any) -> None:
        check_address(str(request.url), rules, host_of(endpoint), secured=secured)

    hooks = get_session().event_hooks["request"]
    hooks.append(check)
    try:
        yield
    finally:
        hooks.remove(check)


@contextlib.contextmanager
def _translated(repository: str, revision: str, endpoint: str) -> Iterator[None]:
    """The library's errors in our words; its texts may hold addresses and are left out."""
    from huggingface_hub import errors

    called, what = host_of(endpoint), f"{repository}@{revision[:12]}"
    try:
        yield
    except Unfetchable:
        raise
    except errors.GatedRepoError:
        detail = f"{called}: {what} is gated: accept its terms there, and give a token"
        raise Unfetchable("unauthorized", detail, terminal=True) from None
    except errors.RevisionNotFoundError:
        detail = f"{called}: {repository} has no revision {revision}"
        raise Unfetchable("not_found", detail, terminal=True) from None
    except errors.RepositoryNotFoundError as problem:
        status = problem.response.status_code
        if status in (401, 403):
            detail = f"{called} answers {status}: {repository} does not exist, or needs a token"
            raise Unfetchable("unauthorized", detail, terminal=True) from None
        raise Unfetchable("not_found", f"{called} has no {repository}", terminal=True) from None
    except errors.HfHubHTTPError as problem:
        raise refused(problem.response.status_code, f"{called}: {what}") from None
    except errors.OfflineModeIsEnabled:
        detail = "HF_HUB_OFFLINE is set, so the Hub is not asked"
        raise Unfetchable("unreachable", detail) from None
    except errors.HFValidationError:
        raise Unfetchable(
            "not_found", f"{what} is no name of a repository", terminal=True
        ) from None
    except Exception as problem:
        # Whatever the HTTP client below raises: it belongs to the library, not to this file.
        detail = f"{called} does not answer: {type(problem).__name__}"
        raise Unfetchable("unreachable", detail) from None
