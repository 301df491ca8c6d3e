"""The OpenAPI 3.1 description of the management API, made of the schemas of its bodies."""

from __future__ import annotations

import functools
import json
from typing import Any

from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

from capyctl.domain.canonical import canonical_json
from capyctl.domain.ids import INDEX_MAX
from capyctl.wire import openapi_shapes as shapes
from capyctl.wire.bodies import (
    ACTIONS,
    ACTIONS_NOT_OFFERED,
    ActionModel,
    CreateModel,
    ReplaceModel,
)
from capyctl.wire.openapi_hosts import HOST_ANSWERS, HOST_BODIES, host_paths
from capyctl.wire.openapi_parts import (
    ALWAYS,
    CHANGE,
    CHANGE_MORE,
    HEADERS,
    KEY,
    ON_EVERY_ANSWER,
    PREFIX,
    REFS,
    change,
    json_answer,
    read,
    refusals_of,
)
from capyctl.wire.paths import NAME_BYTES_MAX, ULID_PATTERN

_BODIES: tuple[type[BaseModel], ...] = (CreateModel, ReplaceModel, ActionModel)
_ANSWERS: tuple[type[BaseModel], ...] = (
    shapes.Error,
    shapes.ConfigurationReceipt,
    shapes.ActionReceipt,
    shapes.Snapshot,
    shapes.EffectiveConfig,
    shapes.EngineLog,
    shapes.Load,
    shapes.Latency,
    shapes.ModelSources,
)
_DOCUMENT = ("invalid_config", "profile_not_published", "route_conflict", "host_ineligible")
_DOCUMENT_MORE = ("host_policy_denied", "unsupported_capability", "group_shape_unsupported")
_ACTION = (
    "not_found",
    "revision_conflict",
    "runtime_retained",
    "lifecycle_conflict",
    "delete_requires_cleanup",
    "checkpoint_mismatch",
    "checkpoint_unusable",
    "model_source_failed",
    "startup_requires_empty_host",
    "checkpoint_digest_pending",
    "model_source_pending",
    "still_stopping",
    "capacity_blocked",
    "switch_failed",
    "host_ineligible",
    "unsupported_capability",
)
ID = {
    "name": "id",
    "in": "path",
    "required": True,
    "description": "The deployment's id, in upper case; a name is refused.",
    "schema": {"type": "string", "pattern": f"^{ULID_PATTERN}$"},
}
ID_OR_NAME = {
    "name": "id",
    "in": "path",
    "required": True,
    "description": "The deployment's id or name.",
    "schema": {"type": "string", "minLength": 1, "maxLength": NAME_BYTES_MAX},
}
INDEX = {
    "name": "index",
    "in": "path",
    "required": True,
    "schema": {"type": "integer", "minimum": 0, "maximum": INDEX_MAX},
}


@functools.cache
def openapi_json() -> str:
    """The description as compact JSON with sorted keys; made once."""
    return canonical_json(openapi_document())


def openapi_document() -> dict[str, Any]:
    """The description: every route, body, answer and refusal."""
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "CapyCTL management API",
            "version": "1",
            "description": "Drives which models run. Loopback only; every request carries the "
            "admin token. While `retryable` is true, send the same request again: same key, same "
            "body.",
        },
        "servers": [{"url": "http://127.0.0.1:7443"}],
        "security": [{"admin_token": []}],
        "paths": _paths(),
        "components": {
            "securitySchemes": {"admin_token": {"type": "http", "scheme": "bearer"}},
            "headers": {
                name: {"required": True, "schema": {"const": value, "type": "string"}}
                for name, value in HEADERS.items()
            },
            "schemas": _schemas(),
        },
    }


def _paths() -> dict[str, Any]:
    one = f"{PREFIX}/deployments/{{id}}"
    return {
        f"{PREFIX}/snapshot": {"get": read("snapshot", "Snapshot", "What is deployed and runs.")},
        f"{PREFIX}/events": {"get": _events()},
        f"{PREFIX}/deployments": {"post": _create()},
        one: {"put": _replace()},
        f"{one}/actions": {"post": _action("act", "Act on a deployment.", [ID])},
        f"{one}/instances/{{index}}/actions": {
            "post": _action("act_on_instance", "Start or stop one instance.", [ID, INDEX])
        },
        f"{one}/effective-config": {
            "get": read(
                "effective_config",
                "EffectiveConfig",
                "The configuration as it was resolved.",
                parameters=[ID_OR_NAME],
                refusals=("not_found",),
            )
        },
        f"{one}/engine-log": {"get": _engine_log()},
        f"{PREFIX}/metrics/load": {"get": _load()},
        f"{PREFIX}/metrics/latency": {
            "get": read("latency", "Latency", "Times by phase of a request.")
        },
        f"{PREFIX}/model-sources": {
            "get": read("model_sources", "ModelSources", "Remote sources in use.")
        },
        **host_paths(),
        f"{PREFIX}/openapi.json": {"get": _openapi()},
    }


# Routes


def _events() -> dict[str, Any]:
    cursor = {"type": "string", "pattern": shapes.CURSOR_PATTERN}
    frames = {"schema": {"type": "string"}}
    return {
        "operationId": "events",
        "summary": "A stream of what changes, as it is committed.",
        "description": "Server-sent events, for five minutes; go on from the last id.",
        "parameters": [
            {"name": "after", "in": "query", "schema": cursor},
            {"name": "Last-Event-ID", "in": "header", "schema": cursor},
        ],
        "responses": {
            "200": {
                "description": "The stream.",
                "headers": ON_EVERY_ANSWER,
                "content": {"text/event-stream": frames},
            },
            **refusals_of((*ALWAYS, "invalid_cursor", "cursor_expired", "queue_full")),
        },
    }


def _create() -> dict[str, Any]:
    return {
        **change("create", "Create a deployment. It does not run yet.", "CreateModel", [KEY]),
        "responses": {
            "202": json_answer("Saved, at revision 1.", "ConfigurationReceipt", _links()),
            **refusals_of((*ALWAYS, *CHANGE, *CHANGE_MORE, *_DOCUMENT, *_DOCUMENT_MORE)),
        },
    }


def _replace() -> dict[str, Any]:
    refusals = (*_DOCUMENT, *_DOCUMENT_MORE, "not_found", "revision_conflict", "runtime_retained")
    return {
        **change("replace", "Replace the whole configuration.", "ReplaceModel", [ID, KEY]),
        "responses": {
            "202": json_answer("Saved, at the next revision.", "ConfigurationReceipt", _links()),
            **refusals_of((*ALWAYS, *CHANGE, *CHANGE_MORE, *refusals)),
        },
    }


def _action(name: str, summary: str, parameters: list[Any]) -> dict[str, Any]:
    return {
        **change(name, summary, "ActionModel", [*parameters, KEY]),
        "responses": {
            "202": json_answer("Accepted, not done.", "ActionReceipt", _links()),
            **refusals_of((*ALWAYS, *CHANGE, *CHANGE_MORE, *_ACTION)),
        },
    }


def _engine_log() -> dict[str, Any]:
    kib = {"type": "integer", "minimum": 1, "maximum": 256, "default": 64}
    return read(
        "engine_log",
        "EngineLog",
        "The end of an instance's engine log.",
        parameters=[
            ID,
            {"name": "instance", "in": "query", "schema": INDEX["schema"]},
            {"name": "kib", "in": "query", "schema": kib},
        ],
        refusals=("not_found", "observation_stale", "snapshot_unavailable"),
    )


def _load() -> dict[str, Any]:
    one = {"name": "deployment", "in": "query", "schema": ID["schema"]}
    return read(
        "load", "Load", "Live load of every model.", parameters=[one], refusals=("not_found",)
    )


def _openapi() -> dict[str, Any]:
    document = {"schema": {"type": "object"}}
    return {
        "operationId": "openapi",
        "summary": "This description.",
        "responses": {
            "200": {
                "description": "OpenAPI 3.1.",
                "headers": ON_EVERY_ANSWER,
                "content": {"application/json": document},
            },
            **refusals_of((*ALWAYS, "invalid_request")),
        },
    }


def _links() -> dict[str, Any]:
    """From a receipt to what can be asked of the deployment next."""
    id = "$response.body#/deployment_id"
    named = ("replace", "act", "act_on_instance", "effective_config", "engine_log")
    links: dict[str, Any] = {
        name: {"operationId": name, "parameters": {"path.id": id}} for name in named
    }
    links["load"] = {"operationId": "load", "parameters": {"query.deployment": id}}
    return links


# Schemas


def _schemas() -> dict[str, Any]:
    modes = [(shape, "validation") for shape in (*_BODIES, *HOST_BODIES, *_ANSWERS, *HOST_ANSWERS)]
    _, whole = models_json_schema(modes, ref_template=REFS)  # type: ignore[arg-type]  # literals
    schemas: dict[str, Any] = json.loads(json.dumps(whole["$defs"]))
    action = schemas["ActionModel"]["properties"]["action"]
    action["enum"] = sorted(ACTIONS | ACTIONS_NOT_OFFERED)
    config = {"type": "object", "description": "The deployment document, as a user writes it."}
    for name in ("CreateModel", "ReplaceModel"):
        schemas[name]["properties"]["config"] = config
    schemas["CreateModel"]["properties"]["activate"]["description"] = (
        "Must be false: create, then start."
    )
    _tidy(schemas)
    return schemas


def _tidy(schema: Any) -> None:
    """Titles that repeat a name go; so do defaults that only mean that a field may be absent."""
    if isinstance(schema, list):
        for one in schema:
            _tidy(one)
    if not isinstance(schema, dict):
        return
    if isinstance(schema.get("title"), str):
        del schema["title"]
    if "default" in schema and schema["default"] is None:
        del schema["default"]
    for one in schema.values():
        _tidy(one)
