"""The committed description of the management API is the one that the daemon serves."""

from __future__ import annotations

import json

from capyctl.api.app import PREFIX
from capyctl.domain.errors import MANAGEMENT_ERRORS
from capyctl.wire.openapi import openapi_document, openapi_json
from tests.tidy.tree import ROOT

COMMITTED = ROOT / "docs/reference/openapi.json"
WRITE = "python -m tests.tidy.write_openapi"


def test_the_committed_description_is_up_to_date():
    assert json.loads(COMMITTED.read_text()) == openapi_document(), f"run {WRITE}"


def test_what_is_served_is_what_is_committed():
    assert json.loads(openapi_json()) == json.loads(COMMITTED.read_text())


def test_every_code_of_the_api_is_told_somewhere():
    """But for what only other roles answer."""
    text = json.dumps(openapi_document()["paths"])

    assert {code for code in MANAGEMENT_ERRORS if f'"{code}"' not in text} == set()


def test_every_reference_leads_somewhere():
    document = openapi_document()
    kinds = document["components"]

    for ref in references(document):
        _, components, kind, name = ref.split("/")
        assert components == "components"
        assert name in kinds[kind]


def references(value):
    if isinstance(value, list):
        for one in value:
            yield from references(one)
    elif isinstance(value, dict):
        if isinstance(value.get("$ref"), str):
            yield value["$ref"]
        for one in value.values():
            yield from references(one)


def test_links_name_operations_that_are_there():
    operations = {
        operation["operationId"]: operation
        for path in openapi_document()["paths"].values()
        for operation in path.values()
    }
    links = [
        link
        for operation in operations.values()
        for answer in operation["responses"].values()
        for link in answer.get("links", {}).values()
    ]

    assert links
    for link in links:
        parameters = operations[link["operationId"]]["parameters"]
        named = {f"{one['in']}.{one['name']}" for one in parameters}
        assert link["parameters"].keys() <= named


def test_paths_are_those_of_the_page():
    assert {path.removeprefix(PREFIX) for path in openapi_document()["paths"]} == {
        "/snapshot",
        "/events",
        "/deployments",
        "/deployments/{id}",
        "/deployments/{id}/actions",
        "/deployments/{id}/instances/{index}/actions",
        "/deployments/{id}/effective-config",
        "/deployments/{id}/engine-log",
        "/metrics/load",
        "/metrics/latency",
        "/model-sources",
        "/hosts",
        "/hosts/{id}",
        "/hosts/{id}/actions",
        "/invitations",
        "/openapi.json",
    }
