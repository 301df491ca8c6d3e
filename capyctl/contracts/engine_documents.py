"""How `engines.yaml` is read and written, for the command that keeps it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from capyctl.domain.profiles import StoredProfile

DOCUMENT_MAX_BYTES = 32 << 10


class Invalid(ValueError):
    """A document is refused. ``path`` names the setting, ``detail`` says what is wrong."""

    def __init__(self, path: str, detail: str) -> None:
        super().__init__(f"{path}: {detail}")
        self.path = path
        self.detail = detail


class EngineDocuments(Protocol):
    def read(self, text: str, *, name: str) -> Mapping[str, StoredProfile]:
        """The profiles of a document by name. ``name`` is what the document is called.

        Raises:
            Invalid: it is not what it should be.
        """

    def write(self, profiles: Mapping[str, StoredProfile]) -> str:
        """A document that `read` makes the same profiles of; defaults are left out."""

    def check_name(self, name: str) -> None:
        """Refuse a profile name that documents cannot use.

        Raises:
            Invalid: names `runtime_profiles`.
        """
