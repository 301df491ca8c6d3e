"""What is wrong with a document, and the words in which it is said."""

from __future__ import annotations

import enum

import attrs

from capyctl.domain.errors import Refused


class ProblemClass(enum.Enum):
    """The closed list of what can be wrong; the values are part of the messages."""

    UNKNOWN_FIELD = "unknown field"
    DUPLICATE_KEY = "duplicate key"
    INVALID_UNIT = "invalid unit"
    MISSING = "missing required field"
    UNSUPPORTED = "unsupported combination"
    CONFLICT = "conflicting arguments"
    CACHE_REFERENCE = "invalid cache reference"
    CONNECTION = "contradictory connection"
    SCHEMA = "schema version / kind mismatch"
    SOURCE = "source not materialisable"
    DENIED = "source denied by host policy"
    IO = "I/O"


@attrs.frozen(kw_only=True)
class ConfigProblem:
    """One thing that is wrong. ``detail`` never holds a value of the document, with one
    exception: the reference of a Hugging Face model that is not pinned to a commit."""

    kind: ProblemClass
    path: str
    """Dotted path of the field, with ``[n]`` for list items; a file's name for I/O."""
    detail: str
    code: str = "invalid_config"

    def message(self, what: str = "deployment") -> str:
        at = self.path or "document"
        return f"Invalid {what} configuration: {self.kind.value} at `{at}`: {self.detail}"


class InvalidDocument(Exception):
    """A document that is refused as a whole. ``problem`` is the first thing wrong with it."""

    def __init__(self, problem: ConfigProblem, what: str = "deployment") -> None:
        super().__init__(problem.message(what))
        self.problem = problem
        self.what = what

    def refusal(self) -> Refused:
        """The management API's ``invalid_config``, or the problem's own code."""
        return Refused(self.problem.code, str(self), {"path": self.problem.path})


def invalid(kind: ProblemClass, path: str, detail: str) -> Refused:
    """``invalid_config`` for one field of a deployment document."""
    return InvalidDocument(ConfigProblem(kind=kind, path=path, detail=detail)).refusal()


def unsupported(path: str, detail: str) -> Refused:
    return invalid(ProblemClass.UNSUPPORTED, path, detail)
