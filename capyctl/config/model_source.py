"""`model`: where a model's files are, in every spelling."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Mapping
from typing import Annotated, Any, Literal
from urllib.parse import urlsplit

from pydantic import Field, field_validator, model_validator

from capyctl.config.fields import Closed, Name, bad_value

COMMIT = re.compile(r"[0-9a-f]{40}")
_REPOSITORY = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*/[A-Za-z0-9][A-Za-z0-9._-]*")
_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")
_SECRET = re.compile(r"secret://[A-Za-z0-9][A-Za-z0-9._-]*")
_SHA256 = re.compile(r"[0-9a-f]{64}")
KINDS = ("local", "huggingface", "http")
PATH_MAX_CHARACTERS = 4096


def check_path(value: str) -> str:
    """A path as it may stand in a document.

    Raises:
        PydanticCustomError: empty, of someone's home, outside the models directory, too long.
    """
    if not value.strip():
        raise bad_value("expected a path")
    if value.startswith("~"):
        raise bad_value(
            "a path of a home directory is not known here: write an absolute path, or one "
            "inside the models directory"
        )
    if "\0" in value or len(value) > PATH_MAX_CHARACTERS:
        raise bad_value("not a path")
    if not value.startswith("/") and ".." in value.split("/"):
        raise bad_value("a relative path stays inside the models directory")
    return value


def _secret(value: str | None) -> str | None:
    if value is not None and _SECRET.fullmatch(value) is None:
        raise bad_value("expected secret://<name>")
    return value


class LocalSource(Closed):
    type: Literal["local"]
    path: str

    _path = field_validator("path")(check_path)


class HuggingfaceSource(Closed):
    type: Literal["huggingface"]
    repo: str
    revision: str
    files: list[str] | None = Field(default=None, min_length=1, max_length=1024)
    token_ref: str | None = None

    _token = field_validator("token_ref")(_secret)

    @model_validator(mode="before")
    @classmethod
    def _renamed(cls, value: object) -> object:
        if isinstance(value, Mapping) and "locked_commit" in value:
            raise bad_value("locked_commit is not a setting: write the commit as revision")
        return value

    @field_validator("repo")
    @classmethod
    def _repository(cls, value: str) -> str:
        if _REPOSITORY.fullmatch(value) is None:
            raise bad_value("expected owner/repo")
        return value

    @field_validator("revision")
    @classmethod
    def _pinned(cls, value: str) -> str:
        if COMMIT.fullmatch(value) is None:
            raise bad_value("expected a commit of 40 lowercase hexadecimal digits")
        return value


class HttpSource(Closed):
    type: Literal["http"]
    url: str | None = None
    url_ref: str | None = None
    sha256: str
    archive: Literal["tar"] | None = None

    _reference = field_validator("url_ref")(_secret)

    @field_validator("sha256")
    @classmethod
    def _hash(cls, value: str) -> str:
        if _SHA256.fullmatch(value) is None:
            raise bad_value("expected 64 lowercase hexadecimal digits")
        return value

    @field_validator("url")
    @classmethod
    def _address(cls, value: str | None) -> str | None:
        if value is None:
            return None
        try:
            found = urlsplit(value)
            plain = value.isascii() and value.isprintable() and " " not in value
            usable = plain and len(value) <= PATH_MAX_CHARACTERS and bool(found.hostname)
            usable = usable and found.scheme in ("https", "http") and found.port != 0
        except ValueError:
            usable = False
        if not usable:
            raise bad_value("expected an https:// address")
        if found.username is not None or found.password is not None:
            raise bad_value("an address with a password goes into a secret: use url_ref")
        return value

    @model_validator(mode="after")
    def _one_address(self) -> HttpSource:
        if (self.url is None) == (self.url_ref is None):
            raise bad_value("expected either url or url_ref")
        return self


Source = Annotated[LocalSource | HuggingfaceSource | HttpSource, Field(discriminator="type")]


class ModelFiles(Closed):
    """Exactly one of `path`, `hf` and `source`."""

    path: str | None = None
    hf: str | None = None
    source: Source | None = None

    @field_validator("path")
    @classmethod
    def _path(cls, value: str | None) -> str | None:
        return None if value is None else check_path(value)

    @field_validator("source", mode="before")
    @classmethod
    def _tagged(cls, value: Any) -> Any:
        """`{local: {…}}` means `{type: local, …}`."""
        if not isinstance(value, Mapping) or "type" in value:
            return value
        kinds = [kind for kind in KINDS if kind in value]
        if len(kinds) != 1 or len(value) != 1 or not isinstance(value[kinds[0]], Mapping):
            raise bad_value("expected one block named local, huggingface or http")
        if "type" in value[kinds[0]]:
            raise bad_value("the block's name is its type")
        return {"type": kinds[0], **value[kinds[0]]}


class Model(ModelFiles):
    revision: Name = "1"
    content_fingerprint: Name = "measured"
    draft: ModelFiles | None = None

    @field_validator("draft", mode="before")
    @classmethod
    def _short_draft(cls, value: object) -> object:
        return {"path": value} if isinstance(value, str) else value

    @field_validator("content_fingerprint")
    @classmethod
    def _fingerprint(cls, value: str) -> str:
        if value.startswith("sha256:") and _DIGEST.fullmatch(value) is None:
            raise bad_value("sha256: is followed by 64 lowercase hexadecimal digits")
        return value

    @property
    def expected_digest(self) -> str | None:
        """A fingerprint of this form is an expectation, any other one a label."""
        fingerprint = self.content_fingerprint
        return fingerprint if fingerprint.startswith("sha256:") else None


def split_reference(reference: str) -> tuple[str, str | None] | None:
    """``owner/repo`` and what follows ``@``; None for anything else."""
    repository, _, revision = reference.partition("@")
    if _REPOSITORY.fullmatch(repository) is None:
        return None
    return repository, revision or None


def absolute_path(path: str, models_root: str) -> str:
    """Where a model is: relative paths are inside the models directory."""
    return posixpath.normpath(posixpath.join(models_root, path))
