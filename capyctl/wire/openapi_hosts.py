"""The routes about machines, as the description of the management API has them."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from capyctl.domain.hosts import Compatibility, IngressTransport
from capyctl.wire.host_bodies import HostActionModel, InviteModel
from capyctl.wire.openapi_parts import (
    ALWAYS,
    CHANGE,
    CHANGE_MORE,
    KEY,
    PREFIX,
    change,
    json_answer,
    read,
    refusals_of,
)
from capyctl.wire.openapi_shapes import MAY_BE_ABSENT, Count, Decimal, Ulid
from capyctl.wire.paths import NAME_BYTES_MAX

HOST = {
    "name": "id",
    "in": "path",
    "required": True,
    "description": "The host's id or name.",
    "schema": {"type": "string", "minLength": 1, "maxLength": NAME_BYTES_MAX},
}
_COMPATIBILITIES: Any = {"enum": [one.value for one in Compatibility]}
_TRANSPORTS: Any = {"enum": [one.value for one in IngressTransport]}


class _Shape(BaseModel):
    model_config = ConfigDict(extra="allow", defer_build=True)


class HostProfile(_Shape):
    name: str
    family: str
    revision: Decimal
    version: str
    deep_park: bool
    deployments: list[str] = Field(description="Names of those that hold something there.")


class HostGpu(_Shape):
    id: str
    uuid: str
    name: str
    total_bytes: Decimal


class HostMemory(_Shape):
    """One pool of memory."""

    domain: str
    kind: Literal["unified", "distinct", "device"]
    total_bytes: Decimal
    managed_limit_bytes: Decimal
    free_reserve_bytes: Decimal
    parked_limit_bytes: Decimal
    charged_bytes: Decimal = Field(description="To instances, parked ones included.")
    parked_bytes: Decimal
    outside_bytes: Decimal = Field(description="Held by programs that are not ours.")
    available_bytes: Decimal | None = Field(description="As last seen.")


class HostIngress(_Shape):
    host: str
    port: Count
    transport: str = Field(json_schema_extra=_TRANSPORTS)


class HostSession(_Shape):
    capabilities_missing: list[str] = Field(
        description="What a host of the server's release can do and this one cannot."
    )
    memory_warnings: list[str] = Field(description="Those of `warnings` that are about memory.")


class HostedInstance(_Shape):
    deployment_id: Ulid
    name: str
    index: Count
    observed_state: str


class Host(_Shape):
    """One machine."""

    host_id: str
    name: str
    state: Literal["online", "suspended", "offline", "revoked"]
    state_ms: Count = Field(default=MAY_BE_ABSENT, description="For how long it has been so.")
    eligible: bool = Field(description="Whether anything new may begin there.")
    ineligible_reason: str = MAY_BE_ABSENT
    draining: bool
    drained: bool = Field(description="It is drained, and nothing of ours is left there.")
    compatibility: str = Field(json_schema_extra=_COMPATIBILITIES)
    compatibility_reason: str = MAY_BE_ABSENT
    binary_version: str | None = Field(description="Null before it has connected once.")
    capabilities: list[str]
    labels: dict[str, str]
    profiles: list[HostProfile]
    gpus: list[HostGpu]
    memory: list[HostMemory]
    sample_age_ms: Count | None
    ingress: HostIngress | None
    session: HostSession
    instances: list[HostedInstance]
    warnings: list[str]
    enrolled_at_ms: Decimal = MAY_BE_ABSENT
    revoked_at_ms: Decimal = MAY_BE_ABSENT
    certificate_expires_at_ms: Decimal = MAY_BE_ABSENT


class HostAnswer(Host):
    api_version: Literal["1"]


class Hosts(_Shape):
    """Every machine, by name; a standalone daemon shows its own."""

    api_version: Literal["1"]
    observed_at_ms: Decimal
    server_version: str
    hosts: list[Host]


class HostReceipt(_Shape):
    """An accepted change of a host: accepted, not done."""

    api_version: Literal["1"]
    action: Literal["drain", "undrain", "revoke"]
    host_id: str
    host_name: str
    joined: bool = Field(description="It was so before.")


class InvitationReceipt(_Shape):
    """An invitation. Its text comes with the first answer under a key, and never again."""

    api_version: Literal["1"]
    invitation_id: Ulid
    host_name: str
    host_id: str | None = Field(description="Of the host that is to come back.")
    expires_at_ms: Decimal
    document: str = Field(default=MAY_BE_ABSENT, description="The join file, with its secret.")


HOST_BODIES: tuple[type[BaseModel], ...] = (HostActionModel, InviteModel)
HOST_ANSWERS: tuple[type[BaseModel], ...] = (Hosts, HostAnswer, HostReceipt, InvitationReceipt)
_REFUSALS = (*ALWAYS, *CHANGE, *CHANGE_MORE, "not_found", "lifecycle_conflict")


def host_paths() -> dict[str, Any]:
    """The routes under ``/hosts`` and ``/invitations``."""
    one = f"{PREFIX}/hosts/{{id}}"
    return {
        f"{PREFIX}/hosts": {"get": read("hosts", "Hosts", "Machines, and what they are used for.")},
        one: {
            "get": read(
                "host", "HostAnswer", "One machine.", parameters=[HOST], refusals=("not_found",)
            )
        },
        f"{one}/actions": {"post": _act()},
        f"{PREFIX}/invitations": {"post": _invite()},
    }


def _act() -> dict[str, Any]:
    return {
        **change(
            "act_on_host", "Drain, use again, or revoke a host.", "HostActionModel", [HOST, KEY]
        ),
        "responses": {
            "202": json_answer("Accepted, not done.", "HostReceipt"),
            **refusals_of((*_REFUSALS, "unsupported_capability")),
        },
    }


def _invite() -> dict[str, Any]:
    return {
        **change("invite", "Let a machine join, or a revoked one return.", "InviteModel", [KEY]),
        "responses": {
            "202": json_answer("Invited.", "InvitationReceipt"),
            **refusals_of((*_REFUSALS, "host_not_revoked", "unsupported_capability")),
        },
    }
