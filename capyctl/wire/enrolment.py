"""What a machine and its server tell each other when it joins: join file, request, answer."""

from __future__ import annotations

import json
from typing import Annotated, Literal, TypeVar

import attrs
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from capyctl.domain.canonical import canonical_json
from capyctl.domain.errors import Refused
from capyctl.domain.ids import HostId
from capyctl.wire.strict_json import read_json

JOIN_FILE_BYTES_MAX = 16 << 10
JOIN_BODY_BYTES_MAX = 16 << 10
JOIN_PATH = "/bootstrap/v1/join"

_Ulid = Annotated[str, Field(pattern="^[0-9A-HJKMNP-TV-Z]{26}$")]
_Name = Annotated[str, Field(min_length=1, max_length=256)]
_PORT = "(6553[0-5]|655[0-2][0-9]|65[0-4][0-9]{2}|6[0-4][0-9]{3}|[1-5][0-9]{4}|[1-9][0-9]{0,3})"
_LABEL = "[A-Za-z0-9]([A-Za-z0-9-]{0,61}[A-Za-z0-9])?"
_URL = rf"^https://(\[[0-9A-Fa-f:.]+\]|{_LABEL}(\.{_LABEL})*\.?):{_PORT}$"
_Url = Annotated[str, Field(pattern=_URL, max_length=300)]
_Secret = Annotated[str, Field(pattern="^[A-Za-z0-9_-]{43}$")]
_Pem = Annotated[str, Field(max_length=8192)]

M = TypeVar("M", bound=BaseModel)


class BadEnrolment(Exception):
    """It is not what it should be. The text says what is wrong, never what is in it."""


@attrs.frozen(kw_only=True)
class JoinFile:
    """All that one machine needs to join one server, once. Holds a secret: owner-only."""

    host_name: str
    recover: HostId | None
    """The revoked machine that it takes back; None: for a machine that is new."""
    server_id: str
    bootstrap_address: str
    """``https://<name or address>:<port>``"""
    control_address: str
    authority_pem: str = attrs.field(repr=False)
    """The only authority that the server's certificate may be from."""
    invitation: str
    secret: str = attrs.field(repr=False)
    expires_at_ms: int
    """For people: it is the server's clock that counts."""


@attrs.frozen(kw_only=True)
class Redemption:
    """What a machine sends once it has met the server it was invited by."""

    invitation: str
    secret: str = attrs.field(repr=False)
    host_name: str
    recovers: bool
    request_pem: str
    """A signing request; the key it is for has never left the machine."""


@attrs.frozen(kw_only=True)
class Redeemed:
    """What it is answered."""

    host: HostId
    certificate_pem: str


class _Model(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)


class JoinFileModel(_Model):
    capyctl_join_file: Literal[1]
    purpose: Literal["join", "recover"]
    host_name: _Name
    host_id: _Ulid | None
    server_id: _Ulid
    bootstrap_address: _Url
    control_address: _Url
    authority: _Pem
    invitation_id: _Ulid
    secret: _Secret
    expires_at_ms: Annotated[str, Field(pattern="^[0-9]{1,16}$")]


class JoinRequestModel(_Model):
    invitation_id: _Ulid
    secret: _Secret
    host_name: _Name
    purpose: Literal["join", "recover"]
    signing_request: _Pem


class JoinAnswerModel(_Model):
    host_id: _Ulid
    certificate: _Pem


def write_join_file(file: JoinFile) -> str:
    """Its text: JSON, one field a line."""
    body = {
        "capyctl_join_file": 1,
        "purpose": "join" if file.recover is None else "recover",
        "host_name": file.host_name,
        "host_id": file.recover,
        "server_id": file.server_id,
        "bootstrap_address": file.bootstrap_address,
        "control_address": file.control_address,
        "authority": file.authority_pem,
        "invitation_id": file.invitation,
        "secret": file.secret,
        "expires_at_ms": str(file.expires_at_ms),
    }
    return json.dumps(body, indent=2) + "\n"


def read_join_file(body: bytes) -> JoinFile:
    """Raises:
    BadEnrolment: it is not what `write_join_file` wrote.
    """
    model = _read(JoinFileModel, body, JOIN_FILE_BYTES_MAX)
    if (model.purpose == "recover") is not (model.host_id is not None):
        raise BadEnrolment("purpose and host_id contradict each other")
    return JoinFile(
        host_name=model.host_name,
        recover=None if model.host_id is None else HostId(model.host_id),
        server_id=model.server_id,
        bootstrap_address=model.bootstrap_address,
        control_address=model.control_address,
        authority_pem=model.authority,
        invitation=model.invitation_id,
        secret=model.secret,
        expires_at_ms=int(model.expires_at_ms),
    )


def write_redemption(asked: Redemption) -> bytes:
    body = {
        "invitation_id": asked.invitation,
        "secret": asked.secret,
        "host_name": asked.host_name,
        "purpose": "recover" if asked.recovers else "join",
        "signing_request": asked.request_pem,
    }
    return canonical_json(body).encode()


def read_redemption(body: bytes) -> Redemption:
    """Raises:
    BadEnrolment: it is not what `write_redemption` wrote.
    """
    model = _read(JoinRequestModel, body, JOIN_BODY_BYTES_MAX)
    return Redemption(
        invitation=model.invitation_id,
        secret=model.secret,
        host_name=model.host_name,
        recovers=model.purpose == "recover",
        request_pem=model.signing_request,
    )


def write_redeemed(answer: Redeemed) -> bytes:
    return canonical_json({"host_id": answer.host, "certificate": answer.certificate_pem}).encode()


def read_redeemed(body: bytes) -> Redeemed:
    """Raises:
    BadEnrolment: it is not what `write_redeemed` wrote.
    """
    model = _read(JoinAnswerModel, body, JOIN_BODY_BYTES_MAX)
    return Redeemed(host=HostId(model.host_id), certificate_pem=model.certificate)


def _read(kind: type[M], body: bytes, bytes_max: int) -> M:
    try:
        return kind.model_validate(read_json(body, bytes_max=bytes_max))
    except Refused as problem:
        raise BadEnrolment(problem.message) from None
    except ValidationError as problem:
        # Only where it is wrong: what stands there may be a secret.
        places = sorted({".".join(map(str, one["loc"])) or "all" for one in problem.errors()})
        known = [place for place in places if place in kind.model_fields]
        where = ", ".join(known) or "its fields"
        raise BadEnrolment(f"not what it should be: {where}") from None
