"""The bodies of changes: their strict shapes, what is made of them, and what they are known by."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Annotated, Any, TypeVar

import attrs
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from capyctl.domain.canonical import canonical_json
from capyctl.domain.errors import Refused
from capyctl.wire.strict_json import read_json

WHOLE_NUMBER_MAX = 2**63 - 1
ACTIONS = frozenset({"start", "stop", "park", "preinitialize", "delete"})
ACTIONS_NOT_OFFERED = frozenset({"suspend", "resume"})
"""Words of the contract that this release refuses as unsupported, not as unknown."""

_WholeNumber = Annotated[int, Field(ge=1, le=WHOLE_NUMBER_MAX)]


class _Strict(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)


class CreateModel(_Strict):
    config: dict[str, Any]
    activate: bool


class ReplaceModel(_Strict):
    config: dict[str, Any]
    expected_revision: _WholeNumber


class ActionModel(_Strict):
    action: str
    expected_revision: _WholeNumber
    deadline_ms: _WholeNumber
    evict: bool = False


@attrs.frozen(kw_only=True)
class CreateBody:
    """A document to create. ``activate`` was false."""

    document: Mapping[str, object]

    def fingerprint(self, scope: str) -> str:
        """SHA-256, hexadecimal, of what was asked in this scope."""
        return _fingerprint(scope, {"config": self.document})


@attrs.frozen(kw_only=True)
class ReplaceBody:
    document: Mapping[str, object]
    expected_revision: int

    def fingerprint(self, scope: str) -> str:
        """SHA-256, hexadecimal, of what was asked in this scope."""
        return _fingerprint(
            scope, {"config": self.document, "expected_revision": self.expected_revision}
        )


@attrs.frozen(kw_only=True)
class ActionBody:
    action: str
    """One of ACTIONS or ACTIONS_NOT_OFFERED."""
    expected_revision: int
    deadline_at_ms: int
    evict: bool

    def fingerprint(self, scope: str) -> str:
        """SHA-256, hexadecimal, of what was asked in this scope; an absent ``evict`` is false."""
        return _fingerprint(
            scope,
            {
                "action": self.action,
                "deadline_ms": self.deadline_at_ms,
                "evict": self.evict,
                "expected_revision": self.expected_revision,
            },
        )


def read_create(body: bytes) -> CreateBody:
    """Raises Refused: ``invalid_request``, or ``unsupported_capability`` for ``activate: true``."""
    model = _read(CreateModel, body)
    if model.activate:
        raise Refused(
            "unsupported_capability",
            "A deployment cannot be created active: create it with activate false, then start it",
        )
    return CreateBody(document=model.config)


def read_replace(body: bytes) -> ReplaceBody:
    """Raises Refused(``invalid_request``)."""
    model = _read(ReplaceModel, body)
    return ReplaceBody(document=model.config, expected_revision=model.expected_revision)


def read_action(body: bytes) -> ActionBody:
    """Raises Refused(``invalid_request``), also for ``evict`` on anything but a start."""
    model = _read(ActionModel, body)
    if model.action not in ACTIONS | ACTIONS_NOT_OFFERED:
        raise Refused("invalid_request", f"The action must be one of {', '.join(sorted(ACTIONS))}")
    if model.evict and model.action != "start":
        raise Refused("invalid_request", "Only a start takes evict")
    return ActionBody(
        action=model.action,
        expected_revision=model.expected_revision,
        deadline_at_ms=model.deadline_ms,
        evict=model.evict,
    )


_Model = TypeVar("_Model", bound=_Strict)


def _read(shape: type[_Model], body: bytes) -> _Model:
    try:
        return shape.model_validate(read_json(body))
    except ValidationError as problem:
        raise Refused("invalid_request", _what_is_wrong(shape, problem)) from None


def _what_is_wrong(shape: type[_Strict], problem: ValidationError) -> str:
    """Names the field, but only one of ours, and never what was written in it."""
    error = problem.errors(include_url=False, include_context=False, include_input=False)[0]
    field = next(iter(error["loc"]), None)
    if error["type"] == "extra_forbidden":
        return f"The body may only hold {', '.join(shape.model_fields)}"
    if field is None:
        return "The body must be a JSON object"
    if error["type"] == "missing":
        return f"The body lacks {field}"
    expected = {"action": "a string", "config": "an object", "activate": "true or false"}
    expected["evict"] = "true or false"
    number = f"a whole number from 1 to {WHOLE_NUMBER_MAX}"
    return f"{field} must be {expected.get(str(field), number)}"


def _fingerprint(scope: str, asked: Mapping[str, object]) -> str:
    text = canonical_json({"asked": asked, "scope": scope})
    return hashlib.sha256(text.encode()).hexdigest()
