"""The reference pages name every field, with the default that the code has."""

from __future__ import annotations

import re

import pytest

from capyctl.config.deployment import DeploymentDocument
from capyctl.config.engine_config import EngineConfig
from capyctl.config.host_document import HostDocument
from capyctl.config.named_settings import HOST_SETTINGS, SERVER_SETTINGS, STANDALONE_SETTINGS
from capyctl.config.overrides import setting_paths
from capyctl.config.problems import ProblemClass
from capyctl.config.role_document import default_at
from capyctl.config.server_document import ServerDocument
from capyctl.config.standalone import StandaloneDocument
from tests.tidy.tree import ROOT

STANDALONE = (ROOT / "docs/reference/standalone-document.md").read_text()
SERVER = (ROOT / "docs/reference/server-document.md").read_text()
HOST = (ROOT / "docs/reference/host-document.md").read_text()
ROLES = ((ServerDocument, SERVER), (HostDocument, HOST))
DEPLOYMENT = (ROOT / "docs/reference/deployment-document.md").read_text()
ENGINE_BLOCKS = ("vllm", "sglang", "tensorfold", "llamacpp")


def shown(value: object) -> str:
    if value is None:
        return "\N{EN DASH}"
    if isinstance(value, bool):
        return f"`{str(value).lower()}`"
    return "empty" if value in ([], {}) else f"`{value}`"


@pytest.mark.parametrize("path", setting_paths(StandaloneDocument))
def test_every_standalone_setting_is_in_the_table(path):
    default = shown(default_at(StandaloneDocument, path))

    assert f"| `{path}` | {default} |" in STANDALONE


@pytest.mark.parametrize(
    ("path", "model", "page"),
    [(path, model, page) for model, page in ROLES for path in setting_paths(model)],
    ids=lambda value: value if isinstance(value, str) and len(value) < 80 else "",
)
def test_every_setting_of_a_role_is_in_its_table(path, model, page):
    default = shown(default_at(model, path))

    assert f"| `{path}` | {default} |" in page


@pytest.mark.parametrize(
    ("named", "page"),
    [*((one, SERVER) for one in SERVER_SETTINGS), *((one, HOST) for one in HOST_SETTINGS)],
    ids=lambda value: "" if isinstance(value, str) else value.flag or value.variables[0],
)
def test_every_flag_and_variable_of_a_role_is_in_its_table(named, page):
    for word in [*([named.flag] if named.flag else []), *named.variables]:
        row = next(line for line in page.splitlines() if f"`{word}`" in line and "|" in line)
        assert all(f"`{path}`" in row for path in named.paths)


@pytest.mark.parametrize("named", STANDALONE_SETTINGS, ids=lambda n: n.flag or n.variables[0])
def test_every_flag_and_variable_is_in_the_table(named):
    words = [*([named.flag] if named.flag else []), *named.variables]

    for word in words:
        row = next(line for line in STANDALONE.splitlines() if f"`{word}`" in line and "|" in line)
        assert all(f"`{path}`" in row for path in named.paths)


@pytest.mark.parametrize(
    "path",
    [
        path
        for path in setting_paths(DeploymentDocument)
        if not path.startswith(("engine_config.", "model."))
    ],
)
def test_every_deployment_field_is_in_the_table(path):
    assert re.search(rf"^\| `{re.escape(path)}` \|", DEPLOYMENT, re.MULTILINE)


def engine_fields():
    for path in setting_paths(EngineConfig):
        if path not in ENGINE_BLOCKS:
            yield path
    for block in ENGINE_BLOCKS:
        annotation = EngineConfig.model_fields[block].annotation
        model = next(part for part in annotation.__args__ if part is not type(None))
        yield from (f"{block}.{name}" for name in model.model_fields)


@pytest.mark.parametrize("path", list(engine_fields()))
def test_every_engine_field_is_named(path):
    assert f"`{path}`" in DEPLOYMENT


@pytest.mark.parametrize("kind", ProblemClass)
def test_every_class_of_problems_is_named(kind):
    assert f"`{kind.value}`" in DEPLOYMENT
