"""The bodies of changes of hosts: actions on one, and the invitation of another."""

from __future__ import annotations

import hashlib
from typing import Annotated

import attrs
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from capyctl.domain.canonical import canonical_json
from capyctl.domain.errors import Refused
from capyctl.domain.hosts import is_host_name
from capyctl.wire.strict_json import read_json

HOST_ACTIONS = ("drain", "undrain", "revoke")
INVITED_MS = 15 * 60 * 1000
INVITED_MS_MAX = 60 * 60 * 1000
NAME_CHARACTERS_MAX = 256


class HostActionModel(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)

    action: str = Field(json_schema_extra={"enum": [*HOST_ACTIONS]})


class InviteModel(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)

    name: Annotated[str, Field(min_length=1, max_length=NAME_CHARACTERS_MAX)]
    expires_in_ms: Annotated[int, Field(ge=1000, le=INVITED_MS_MAX)] = INVITED_MS
    recover: bool = False


@attrs.frozen(kw_only=True)
class InviteBody:
    name: str
    expires_in_ms: int
    recover: bool

    def fingerprint(self, scope: str) -> str:
        """SHA-256, hexadecimal, of what was asked in this scope."""
        return host_fingerprint(scope, attrs.asdict(self))


def read_host_action(body: bytes) -> str:
    """One of HOST_ACTIONS. Raises Refused(``invalid_request``)."""
    try:
        action = HostActionModel.model_validate(read_json(body)).action
    except ValidationError:
        raise Refused("invalid_request", "The body must hold action, and nothing else") from None
    if action not in HOST_ACTIONS:
        raise Refused("invalid_request", f"The action must be one of {', '.join(HOST_ACTIONS)}")
    return action


def read_invite(body: bytes) -> InviteBody:
    """Raises Refused(``invalid_request``)."""
    try:
        model = InviteModel.model_validate(read_json(body))
    except ValidationError:
        raise Refused(
            "invalid_request",
            f"The body must hold name (1 to {NAME_CHARACTERS_MAX} characters), and may hold "
            f"expires_in_ms (a whole number from 1000 to {INVITED_MS_MAX}) and recover",
        ) from None
    if not is_host_name(model.name):
        raise Refused(
            "invalid_request",
            "A host's name has 1 to 128 letters and digits, and . _ - inside, as in its document",
        )
    return InviteBody(name=model.name, expires_in_ms=model.expires_in_ms, recover=model.recover)


def host_fingerprint(scope: str, asked: object) -> str:
    """SHA-256, hexadecimal, of what was asked in this scope."""
    return hashlib.sha256(canonical_json({"asked": asked, "scope": scope}).encode()).hexdigest()
