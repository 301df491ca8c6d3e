"""Pieces that the descriptions of all routes are made of."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from capyctl.domain.errors import MANAGEMENT_ERRORS

PREFIX = "/management/v1"
REFS = "#/components/schemas/{model}"
ALWAYS = ("unauthenticated", "forbidden", "method_not_allowed", "internal")
READ = ("invalid_request", "queue_full", "deadline_exceeded")
CHANGE = ("invalid_request", "body_too_large", "queue_full", "deadline_exceeded")
CHANGE_MORE = ("idempotency_conflict", "reconciliation_required")
HEADERS = {"Cache-Control": "no-store", "X-Content-Type-Options": "nosniff"}
ON_EVERY_ANSWER = {name: {"$ref": f"#/components/headers/{name}"} for name in HEADERS}
KEY = {
    "name": "Idempotency-Key",
    "in": "header",
    "required": True,
    "description": "One per change. With the same body it gets the first answer again.",
    "schema": {
        "type": "string",
        "minLength": 1,
        "maxLength": 256,
        "pattern": "^[ -~]*[!-~][ -~]*$",
    },
}


def read(
    name: str,
    shape: str,
    summary: str,
    *,
    parameters: Iterable[Mapping[str, Any]] = (),
    refusals: Iterable[str] = (),
) -> dict[str, Any]:
    return {
        "operationId": name,
        "summary": summary,
        "parameters": [*parameters],
        "responses": {
            "200": json_answer("The answer.", shape),
            **refusals_of((*ALWAYS, *READ, *refusals)),
        },
    }


def change(name: str, summary: str, body: str, parameters: list[Any]) -> dict[str, Any]:
    schema = {"$ref": REFS.format(model=body)}
    return {
        "operationId": name,
        "summary": summary,
        "parameters": parameters,
        "requestBody": {"required": True, "content": {"application/json": {"schema": schema}}},
    }


def json_answer(
    description: str, shape: str, links: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    content = {"application/json": {"schema": {"$ref": REFS.format(model=shape)}}}
    answer = {"description": description, "headers": ON_EVERY_ANSWER, "content": content}
    return {**answer, "links": dict(links)} if links else answer


def refusals_of(codes: Iterable[str]) -> dict[str, Any]:
    """By status, with the codes that it can have."""
    by_status: dict[int, list[str]] = {}
    for code in dict.fromkeys(codes):
        by_status.setdefault(MANAGEMENT_ERRORS[code].http_status, []).append(code)
    return {
        str(status): {
            "description": ", ".join(f"`{code}`" for code in found) + ".",
            "headers": ON_EVERY_ANSWER,
            "content": {
                "application/json": {
                    "schema": {
                        "allOf": [
                            {"$ref": REFS.format(model="Error")},
                            {"properties": {"error": {"properties": {"code": {"enum": found}}}}},
                        ]
                    }
                }
            },
        }
        for status, found in sorted(by_status.items())
    }
